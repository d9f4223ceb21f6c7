"""Models without a prompt: BLIP, GIT, a vision transformer with a language model, and translators, such as mBART-50."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from limner.errors import RunError
from limner.hub.networks import DEFAULTS, Cache, EncoderDecoder, HubNetwork, Sequence2Sequence, cache_of, tensors_of
from limner.hub.settings import HubSettings
from limner.text.vocab import SPECIAL_TOKENS


class Blip(EncoderDecoder):
    """BLIP (Li et al., 2022): a text decoder attends to the patches; sentences start with [DEC], and end with [SEP]."""

    model_types, task, kind = ("blip",), "describe", "AutoModelForImageTextToText"

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        return self.network.text_decoder

    @property
    def ends(self) -> tuple[int, int]:
        return self.config.text_config.bos_token_id, self.config.text_config.sep_token_id

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        """Compute the states of the patches."""
        return self.network.vision_model(**inputs)[0], None


class VisionEncoderDecoder(EncoderDecoder):
    """A `VisionEncoderDecoderModel`; where the sizes of its parts differ, a projection joins them."""

    model_types, task, kind = ("vision-encoder-decoder",), "describe", "AutoModelForImageTextToText"

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        return self.network.decoder

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        """Compute the states of the patches, in the size of the decoder."""
        hidden = self.network.encoder(**inputs)[0]
        projection = getattr(self.network, "enc_to_dec_proj", None)
        return (hidden if projection is None else projection(hidden)), None


class Git(HubNetwork):
    """GIT (Wang et al., 2022): one transformer, whose first tokens are the patches of a vision transformer.

    The memory is the cache of the patches, and the state before the first token as well.
    """

    model_types, task, kind = ("git",), "describe", "AutoModelForImageTextToText"

    def encode(self, inputs: Mapping[str, Tensor]) -> Cache:
        """Compute the keys and values of the patches, which do not attend to the text."""
        first = self._ids[SPECIAL_TOKENS.bos].expand(len(inputs["pixel_values"]), 1)
        cache = tensors_of(self.network(input_ids=first, use_cache=True, **inputs).cache)
        return tuple(tuple(part[:, :, :-1] for part in layer) for layer in cache)

    def start(self, memory: Cache) -> Cache:
        """Return the cache of the patches."""
        return memory

    def decode(self, ids: Tensor, memory: Cache, state: Cache | None) -> tuple[Tensor, Cache]:
        """Run the transformer on tokens of the hub (R, 1), whose positions are counted from the patches on."""
        assert state is not None, "the cache of the patches"
        position = torch.full_like(ids, state[0][0].shape[2] - memory[0][0].shape[2])
        output = self.network(input_ids=ids, position_ids=position, cache=cache_of(state), use_cache=True)
        return output.logits, tensors_of(output.cache)


class TextTranslator(Sequence2Sequence):
    """Marian (Junczys-Dowmunt et al., 2018), M2M-100 (Fan et al., 2021) and NLLB (2022).

    A forced first token names the target language of many-to-many models.
    """

    model_types: ClassVar[tuple[str, ...]] = ("marian", "m2m_100")
    task, kind = "translate", "AutoModelForSeq2SeqLM"

    @property
    def names_language(self) -> bool:
        return bool(self.config.model_type == "m2m_100")

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the states of the source tokens."""
        return self.network.get_encoder()(**inputs)[0], inputs["attention_mask"]


class MBart50(TextTranslator):
    """mBART-50 (Tang et al., 2020), whose decoder reads the end of a sentence, then the token of the target language.

    The first mBART (Liu et al., 2020), of the same `model_type`, reads the language in place of the end.
    """

    model_types, names_language = ("mbart",), True

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        """Load a folder; RunError for an mBART that is no mBART-50."""
        super().__init__(folder, device, settings)
        start, end = self.ends
        if start != end:
            raise RunError(f"{folder}: decoder_start_token_id is {start}, expected {end}; choose an mBART-50")
