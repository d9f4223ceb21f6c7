"""Networks of transformers as a `ConditionalLM`: the cache of the library is the state of a hypothesis.

Shapes: N inputs, R hypotheses of all inputs, V tokens of the hub, S locations or source tokens, H hidden size.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from limner.bounds import Length, bounds_of
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import TorchModels, TorchNextTokens, select
from limner.errors import RunError
from limner.features.encoders.transformers import load_module, require_safe, without_output
from limner.generation.request import Request
from limner.hub.inputs import OFFSET
from limner.hub.settings import HubSettings
from limner.layers.functional import repeat_rows
from limner.process import find_device, require_memory, use_threads_for
from limner.text.vocab import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

Cache = tuple[tuple[Tensor, ...], ...]
"""Keys and values of each layer, each (R, heads, length, size)."""
State: TypeAlias = Any
"""A `Cache`, or `Attended`; None before the first token."""
READ = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id", "bad_words_ids"),
    *("suppress_tokens", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_beams", "early_stopping"),
    *("length_penalty", "do_sample", "temperature", "top_k", "top_p", "use_cache", "forced_eos_token_id"),
    "no_repeat_ngram_size",
    *("transformers_version", "_from_model_config", "output_attentions", "output_hidden_states"),
}
"""Settings of `generation_config` that are read, or whose difference is documented; all others are logged."""
DEFAULTS = HubSettings()


class HubModel(ABC):
    """A network of transformers, loaded from its folder."""

    model_types: ClassVar[tuple[str, ...]]
    """Values of `model_type` in the configurations of the family."""
    task: ClassVar[Literal["describe", "translate", "match"]]
    kind: ClassVar[str]
    """Class of transformers that loads the network."""
    is_prompted: ClassVar[bool] = False
    """Whether the network reads a prompt, and whole images."""

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        """Load a folder; ResourceError without memory, RunError for its configuration, BackboneError for its files."""
        require_safe(str(folder), folder)
        target = find_device(device)
        dtype = getattr(torch, settings.dtype)
        needed = dtype.itemsize * _parameters(self.kind, folder)
        remedy = "choose a smaller model" + (", or dtype bfloat16" if dtype.itemsize > 2 else "")
        require_memory(needed, f"{folder}: its weights", remedy)
        self.network: Any = load_module(str(folder), folder, self.kind, dtype=dtype)[0].eval().to(target)
        self.folder, self.device, self.dtype, self.settings = folder, target, dtype, settings
        self.config: Any = self.network.config
        use_threads_for(self.network.parameters())
        self.parameters = sum(parameter.numel() for parameter in self.network.parameters())
        """Number of parameters."""

    def to_device(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return inputs on the device of the network; pixels in its data type."""
        return {
            name: values.to(self.device, self.dtype if values.is_floating_point() else None)
            for name, values in inputs.items()
        }


def _parameters(kind: str, folder: Path) -> int:
    """Return the number of parameters by the configuration; no memory is allocated."""
    import transformers

    try:
        with without_output(), torch.device("meta"):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return sum(weight.numel() for weight in getattr(transformers, kind).from_config(config).parameters())
    except Exception as error:  # transformers raises almost any exception for sizes that do not fit each other
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"{folder}: its config.json cannot be used ({reason}); restore the file") from None


class HubNetwork(HubModel):
    """A network that generates sentences: the methods of `ConditionalLM` that generation needs."""

    lead = ""
    """Space between a prompt and the first word of a sentence."""
    default_length: ClassVar[int] = 19
    """Maximum length of sentences where `generation_config` has none."""

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        super().__init__(folder, device, settings)
        self.generation: Any = self.network.generation_config
        self.tokens = int(self.decoder.get_output_embeddings().weight.shape[0])
        self.vocab_size = OFFSET + self.tokens
        self.forced: int | None = self.generation.forced_bos_token_id
        """Token of the hub that every sentence starts with, such as the target language; it has the probability 1."""
        start, end = self.ends
        if start is None or end is None:
            raise RunError(f"{folder}: generation_config.json names no first or last token; add bos and eos_token_id")
        ends = end if isinstance(end, list) else [end]
        self._special = {SPECIAL_TOKENS.eos: [token + OFFSET for token in ends]}
        self._ids = torch.arange(-OFFSET, self.tokens, device=self.device).clamp(min=0)
        self._ids[SPECIAL_TOKENS.bos], self._ids[SPECIAL_TOKENS.eos] = start, ends[0]

    def set_unknown(self, token: int | None) -> None:
        """Make a token of the hub the special token <unk>, unless it ends sentences."""
        if token is not None and token + OFFSET not in self._special[SPECIAL_TOKENS.eos]:
            self._special[SPECIAL_TOKENS.unk], self._ids[SPECIAL_TOKENS.unk] = [token + OFFSET], token

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        """Part of the network that generates."""
        return self.network

    @property
    def ends(self) -> tuple[int | None, int | list[int] | None]:
        """Token of the hub before the first token of a sentence, and the token or tokens that end it."""
        start = self.generation.decoder_start_token_id
        return self.generation.bos_token_id if start is None else start, self.generation.eos_token_id

    @abstractmethod
    def encode(self, inputs: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        """Compute the memory of `pixel_values`, or of `input_ids` and their `attention_mask`."""

    @property
    def positions(self) -> int:
        """Maximum number of tokens of a source sentence, and of a sentence with its end."""
        longest = int(bounds_of(Length).high)
        limit = getattr(self.decoder.config.get_text_config(decoder=True), "max_position_embeddings", None) or longest
        for name, module in self.decoder.named_modules():  # of RoBERTa, positions begin after the id of the padding
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                limit = module.num_embeddings - module.padding_idx - 1
        return min(longest, limit)

    @property
    def names_language(self) -> bool:
        """Whether the first token of a sentence names its language."""
        return False

    def start(self, memory: Any) -> State:  # noqa: ANN401
        """Return the state before the first token."""
        return None

    @abstractmethod
    def decode(self, ids: Tensor, memory: Any, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
        """Run the decoder on tokens of the hub (R, 1); return the logits (R, 1, V) and the next state."""

    def step(self, tokens: Tensor, memory: Any, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
        """Compute the logits (R, `OFFSET` + V) after tokens (R,), and the next state."""
        logits, after = self.decode(self._ids[tokens][:, None], memory, state)
        logits = pad(logits[:, -1].float(), (OFFSET, 0), value=-math.inf)
        for special, columns in self._special.items():
            logits[:, special] = logits[:, columns].logsumexp(1)
            logits[:, columns] = -math.inf
        if state is None and self.forced is not None:
            logits.fill_(-math.inf)[:, self.forced + OFFSET] = 0
        return logits, after

    def inputs_of(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return the pixels, or the padded source sentences, of requests."""
        if requests[0].source_tokens is None:
            pixels = [torch.from_numpy((request.features or {})["maps"]) for request in requests]
            return self.to_device({"pixel_values": torch.stack(pixels)})
        sources = [torch.tensor(request.source_tokens) for request in requests]
        tokens = pad_sequence(sources, batch_first=True, padding_value=-1).to(self.device)
        mask, padding = tokens >= 0, self.config.pad_token_id or 0
        return {"input_ids": self._ids[tokens.clamp(min=0)].where(mask, padding), "attention_mask": mask.long()}

    @property
    def banned(self) -> list[int]:
        """Tokens that `generation_config` excludes, such as the padding of Marian."""
        words = [word[0] for word in self.generation.bad_words_ids or () if len(word) == 1]
        return [token + OFFSET for token in (*words, *(self.generation.suppress_tokens or ()))]

    def default_decoding(self) -> DecodingSettings:
        """Return the settings of `generation_config`, and log settings that Limner does not have."""
        settings = self.generation
        values = {name: value for name, value in settings.to_diff_dict().items() if name not in READ}
        if (settings.length_penalty or 0.0) < 0:
            values["length_penalty"] = settings.length_penalty
        if ignored := [f"{name} {value}" for name, value in values.items() if value is not None]:
            logger.warning("%s: generation_config: without effect: %s", self.folder, ", ".join(ignored))
        # A maximum length of the library has the start.
        longest = settings.max_new_tokens or (settings.max_length or self.default_length + 1) - 1
        if longest < 1:
            raise RunError(f"{self.folder}: generation_config.json has max_length 1, without a token; raise it")
        longest = min(longest, self.positions)
        least = max(0, (settings.min_length or 0) - 1) if settings.min_new_tokens is None else settings.min_new_tokens
        top_k = 50 if settings.top_k is None else settings.top_k
        sample = {"temperature": settings.temperature or 1.0, "top_k": top_k or None, "top_p": settings.top_p}
        penalty = 1.0 if settings.length_penalty is None else settings.length_penalty
        stop = "full" if settings.early_stopping is True else "improve"
        decoding = {"beam_size": settings.num_beams or 1, "length_penalty": max(0.0, penalty), "stop": stop}
        decoding |= {"max_length": longest, "min_length": min(least, longest)}
        decoding |= {"no_repeat_ngram_size": settings.no_repeat_ngram_size or 0}
        decoding |= {"sample": sample if settings.do_sample else None}
        return DecodingSettings.parse(decoding, where=f"{self.folder}: generation_config")


class Attended(NamedTuple):
    """State of a decoder that attends to an encoder."""

    cache: Cache
    """Keys and values of the tokens so far."""
    crossed: Cache
    """Keys and values of the states of the encoder, which are equal for all hypotheses of an input."""
    owner: Tensor
    """Number of the input of each hypothesis, (R,)."""

    def select(self, rows: Tensor) -> Attended:
        """Select hypotheses; `crossed`, most of the memory, is copied only where an input has left."""
        owner = self.owner[rows]
        crossed = self.crossed if torch.equal(owner, self.owner) else select(self.crossed, rows)
        return Attended(select(self.cache, rows), crossed, owner)


class EncoderDecoder(HubNetwork):
    """A network whose decoder attends to an encoder; the memory is its states (N, S, H), and their mask (N, S)."""

    def decode(self, ids: Tensor, memory: tuple[Tensor, Tensor | None], state: State) -> tuple[Tensor, State]:
        """Run the decoder on tokens of the hub (R, 1)."""
        from transformers import EncoderDecoderCache

        rows, (hidden, mask) = len(ids), memory
        owner = repeat_rows(torch.arange(len(hidden), device=ids.device), rows) if state is None else state.owner
        # After the first step the cache has the keys and values of the encoder: only the shape of its states is read.
        hidden = repeat_rows(hidden, rows) if state is None else hidden[:1].expand(rows, -1, -1)
        cache = None if state is None else EncoderDecoderCache(cache_of(state.cache), cache_of(state.crossed))
        output = self.attend(ids, hidden, None if mask is None else repeat_rows(mask, rows), cache)
        parts = output.cache.self_attention_cache, output.cache.cross_attention_cache
        return output.logits, Attended(tensors_of(parts[0]), tensors_of(parts[1]), owner)

    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Any:  # noqa: ANN401
        """Run the decoder with the states of the encoder (R, S, H)."""
        return self.decoder(input_ids=ids, encoder_hidden_states=hidden, cache=cache, use_cache=True)


class Sequence2Sequence(EncoderDecoder):
    """An encoder and a decoder of tokens in one network of transformers."""

    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Any:  # noqa: ANN401
        """Run the decoder with the states of the encoder (R, S, H) and their mask (R, S)."""
        from transformers.modeling_outputs import BaseModelOutput

        states = BaseModelOutput(last_hidden_state=hidden)
        options = {"attention_mask": mask, "cache": cache, "use_cache": True}
        return self.decoder(encoder_outputs=states, decoder_input_ids=ids, **options)


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

    def select(self, tree: Any, rows: Any) -> Any:  # noqa: ANN401
        """Select rows of a memory or a state."""
        if isinstance(tree[0], Attended):
            return [tree[0].select(torch.from_numpy(rows).to(self.device))]
        return super().select(tree, rows)


def tensors_of(cache: Any) -> Cache:  # noqa: ANN401
    """Return the tensors of a cache of transformers."""
    return tuple((layer.keys, layer.values) for layer in cache.layers)


def cache_of(state: Cache | None) -> Any:  # noqa: ANN401
    """Return a cache of transformers with the tensors of a state, which are not copied; None at the start."""
    if state is None:
        return None
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    for keys, values in state:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache
