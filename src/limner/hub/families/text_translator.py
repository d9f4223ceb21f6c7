"""Translators of text: Marian (Junczys-Dowmunt et al., 2018), M2M-100 (Fan et al., 2021) and NLLB (2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from limner.hub.networks import EncoderDecoder


class TextTranslator(EncoderDecoder):
    """A sequence-to-sequence transformer; a forced first token names the target language of many-to-many models."""

    model_types, task, kind = ("marian", "m2m_100"), "translate", "AutoModelForSeq2SeqLM"

    @property
    def names_language(self) -> bool:
        return bool(self.config.model_type == "m2m_100")

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the states of the source tokens."""
        return self.network.get_encoder()(**inputs)[0], inputs["attention_mask"]

    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Any:  # noqa: ANN401
        """Run the decoder with the states of the encoder (R, S, H) and their mask (R, S)."""
        from transformers.modeling_outputs import BaseModelOutput

        states = BaseModelOutput(last_hidden_state=hidden)
        options = {"attention_mask": mask, "cache": cache, "use_cache": True}
        return self.network(encoder_outputs=states, decoder_input_ids=ids, **options)


FAMILY = TextTranslator
