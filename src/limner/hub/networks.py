"""Networks of transformers as a `ConditionalLM`: the cache of the library is the state of a hypothesis.

Shapes: N inputs, R hypotheses of all inputs, V tokens of the hub, S locations or source tokens, H hidden size.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import TorchModels, TorchNextTokens
from limner.errors import RunError
from limner.features.encoders.transformers import load_module, require_safe, without_output
from limner.generation.request import Request
from limner.hub.tokens import OFFSET
from limner.layers.functional import repeat_rows
from limner.process import find_device, require_memory, use_threads_for
from limner.text.vocab import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

Task = Literal["describe", "translate", "match"]
Cache = tuple[tuple[Tensor, ...], ...]
"""For each layer the keys and values of the tokens so far, and with cross-attention the keys and values of the input,
each (R, heads, length, size)."""
NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
}
"""Settings of `generation_config` that this program does not have, with the values that have no effect."""


class Encoded(NamedTuple):
    """Memory of a network whose decoder attends to an encoder."""

    hidden: Tensor  # (N, S, H)
    mask: Tensor | None = None  # (N, S): 1 where there is a source token; None where all are


class Step(NamedTuple):
    """Result of a step of a decoder."""

    logits: Tensor  # (R, 1, V)
    cache: Any  # of transformers


class HubModel(ABC):
    """A network of transformers with the settings of its folder."""

    model_types: ClassVar[tuple[str, ...]]
    """Values of `model_type` in the configurations of the family."""
    task: ClassVar[Task]
    kind: ClassVar[str]
    """Class of transformers that loads the network."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401
        self.network, self.config = network, network.config

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Self:
        """Load a folder, after the memory of its weights is found to be available.

        Raises:
            BackboneError: the folder refers to code, or cannot be loaded.
            ResourceError: there is not enough memory.
        """
        require_safe(str(folder), folder)
        target = find_device(device)
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        if not weights:
            raise RunError(f"{folder}: found no *.safetensors weights; other formats are not read, as they are unsafe")
        require_memory(4 * _parameters(cls.kind, folder), f"{folder}: float32 weights", "choose a smaller model")
        network = load_module(str(folder), folder, cls.kind)[0].eval().to(target)
        use_threads_for(network.parameters())
        return cls(network)

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return torch.device(self.network.device)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.network.parameters())


def _parameters(kind: str, folder: Path) -> int:
    """Return the number of parameters of a configuration; no memory is allocated."""
    import transformers

    try:
        with without_output(), torch.device("meta"):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return sum(weight.numel() for weight in getattr(transformers, kind).from_config(config).parameters())
    except Exception as error:  # transformers raises almost any exception for sizes that do not fit each other
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"{folder}: its config.json cannot be used ({reason}); restore the file") from None


class HubNetwork(HubModel):
    """A network that generates sentences: the methods of `limner.models.protocols.ConditionalLM` for generation."""

    uses_image: ClassVar[bool]

    def __init__(self, network: Any) -> None:  # noqa: ANN401
        super().__init__(network)
        self.generation = network.generation_config
        self.tokens = int(self.decoder.get_output_embeddings().weight.shape[0])
        self.vocab_size = OFFSET + self.tokens
        eos = self.eos_token_id
        self._eos = [token + OFFSET for token in (eos if isinstance(eos, list) else [eos])]
        self.forced: int | None = getattr(self.generation, "forced_bos_token_id", None)
        """Token that every sentence starts with, such as the target language; it has the probability 1."""
        self._ids = torch.arange(-OFFSET, self.tokens, device=self.device).clamp(min=0)
        self._ids[SPECIAL_TOKENS.bos], self._ids[SPECIAL_TOKENS.eos] = self.start_token_id, self._eos[0] - OFFSET
        self._unknown: list[int] = []

    def has_unknown(self, token: int | None) -> None:
        """Make a token of the hub the special token <unk>."""
        if token is not None and token + OFFSET not in self._eos:
            self._unknown, self._ids[SPECIAL_TOKENS.unk] = [token + OFFSET], token

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        """Part of the network that generates."""
        return self.network

    @property
    def eos_token_id(self) -> int | list[int]:
        """Tokens of the hub that end a sentence."""
        eos: int | list[int] = self.generation.eos_token_id
        return eos

    @property
    def start_token_id(self) -> int:
        """Token of the hub before the first token of a sentence."""
        start = getattr(self.generation, "decoder_start_token_id", None)
        return int(self.generation.bos_token_id if start is None else start)

    @abstractmethod
    def encode(self, inputs: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        """Compute the memory of inputs, by the names of the arguments of the network: pixel_values, or input_ids and
        attention_mask.
        """

    def start(self, memory: Any) -> Cache | None:  # noqa: ANN401
        """Return the state before the first token."""
        return None

    @abstractmethod
    def decode(self, ids: Tensor, memory: Any, state: Cache | None) -> Step:  # noqa: ANN401
        """Compute the logits after tokens of the hub (R, 1)."""

    def step(self, tokens: Tensor, memory: Any, state: Cache | None) -> tuple[Tensor, Cache]:  # noqa: ANN401
        """Compute the logits (R, `OFFSET` + V) after tokens (R,), and the next state."""
        output = self.decode(self._ids[tokens][:, None], memory, state)
        logits = pad(output.logits[:, -1], (OFFSET, 0), value=-math.inf)
        for special, columns in ((SPECIAL_TOKENS.eos, self._eos), (SPECIAL_TOKENS.unk, self._unknown)):
            if columns:
                logits[:, special] = logits[:, columns].logsumexp(1)
                logits[:, columns] = -math.inf
        if state is None and self.forced is not None:
            logits.fill_(-math.inf)[:, self.forced + OFFSET] = 0
        return logits, tensors_of(output.cache)

    def inputs_of(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return the pixels, or the padded source sentences, of requests."""
        if requests[0].source_tokens is None:
            pixels = [torch.from_numpy((request.features or {})["maps"]) for request in requests]
            return {"pixel_values": torch.stack(pixels).to(self.device)}
        sources = [torch.tensor(request.source_tokens) for request in requests]
        tokens = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=-1).to(self.device)
        mask = tokens >= 0
        padding = self.config.pad_token_id or 0
        return {"input_ids": self._ids[tokens.clamp(min=0)].where(mask, padding), "attention_mask": mask.long()}

    @property
    def banned(self) -> list[int]:
        """Tokens that `generation_config` excludes, such as the padding of Marian."""
        words = [word[0] for word in self.generation.bad_words_ids or () if len(word) == 1]
        return [token + OFFSET for token in (*words, *(self.generation.suppress_tokens or ()))]

    @property
    def decoding(self) -> DecodingSettings:
        """Decoding settings of `generation_config`; settings that this program does not have are logged."""
        settings = self.generation
        values = {name: getattr(settings, name, None) for name in NEUTRAL}
        ignored = [f"{name} {value}" for name, value in values.items() if value not in (None, NEUTRAL[name])]
        if ignored:
            logger.warning("generation_config.json: without effect: %s", ", ".join(ignored))
        limits = settings.max_new_tokens or (settings.max_length or 20) - 1, settings.min_new_tokens
        least = max(0, (settings.min_length or 0) - 1) if limits[1] is None else limits[1]
        sample = None
        if settings.do_sample:
            top_p = None if settings.top_p in (None, 1.0) else settings.top_p
            temperature = 1.0 if settings.temperature is None else settings.temperature
            top_k = 50 if settings.top_k is None else settings.top_k
            sample = {"temperature": temperature, "top_k": top_k or None, "top_p": top_p}
        penalty = 1.0 if settings.length_penalty is None else settings.length_penalty
        return DecodingSettings.parse(
            {
                "beam_size": settings.num_beams or 1,
                "length_penalty": max(0.0, penalty),
                "stop": "full" if settings.early_stopping is True else "improve",
                "max_length": limits[0],
                "min_length": min(least, limits[0]),
                "sample": sample,
            },
            where="generation_config.json",
        )


class EncoderDecoder(HubNetwork):
    """A network whose decoder attends to an encoder; its cache has the keys and values of both."""

    @abstractmethod
    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Step:  # noqa: ANN401
        """Run the decoder on tokens of the hub (R, 1), the states of the encoder (R, S, H) and their mask (R, S)."""

    def decode(self, ids: Tensor, memory: Encoded, state: Cache | None) -> Step:
        """Compute the logits after tokens of the hub (R, 1)."""
        rows, (hidden, mask) = len(ids), memory
        # After the first step, the cache has the keys and values of the encoder: only the shape of its states is read.
        hidden = repeat_rows(hidden, rows) if state is None else hidden[:1].expand(rows, -1, -1)
        return self.attend(ids, hidden, None if mask is None else repeat_rows(mask, rows), cache_of(state))


class HubModels(TorchModels):
    """The model port of `limner.generation` for a network of the hub."""

    def __init__(self, network: HubNetwork, precision: str) -> None:
        super().__init__([network], precision, network.device)  # type: ignore[list-item]  # it needs no `forward`
        self.network, self._banned = network, torch.tensor(network.banned, dtype=torch.long).numpy()

    @torch.no_grad()
    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """Encode the images or source sentences of requests."""
        with self.autocast():
            return [self.network.encode(self.network.inputs_of(requests))]

    def step(self, tokens: Any, memory: list[Any], state: list[Any]) -> tuple[TorchNextTokens, list[Any]]:  # noqa: ANN401
        """Compute the log-probabilities after the last tokens (N, K), and the next state."""
        next_tokens, state = super().step(tokens, memory, state)
        if len(self._banned):
            next_tokens.exclude(self._banned)
        return next_tokens, state


def tensors_of(cache: Any) -> Cache:  # noqa: ANN401
    """Return the tensors of a cache of transformers."""
    crossed = getattr(cache, "cross_attention_cache", None)
    layers = cache.layers if crossed is None else cache.self_attention_cache.layers
    cross: Sequence[Any] = [None] * len(layers) if crossed is None else crossed.layers
    return tuple(
        (own.keys, own.values) + (() if other is None else (other.keys, other.values))
        for own, other in zip(layers, cross, strict=True)
    )


def cache_of(state: Cache | None) -> Any:  # noqa: ANN401
    """Return a cache of transformers with the tensors of a state, which are not copied; None at the start."""
    if state is None:
        return None
    from transformers import EncoderDecoderCache

    own = _dynamic([layer[:2] for layer in state])
    return own if len(state[0]) == 2 else EncoderDecoderCache(own, _dynamic([layer[2:] for layer in state]))


def _dynamic(layers: Sequence[tuple[Tensor, ...]]) -> Any:  # noqa: ANN401
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache
