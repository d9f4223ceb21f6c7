"""Translators of text: Marian (Junczys-Dowmunt et al., 2018), M2M-100 (Fan et al., 2021) and NLLB (2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from limner.hub.networks import Encoded, EncoderDecoder, Step


class TextTranslator(EncoderDecoder):
    """A sequence-to-sequence transformer; a forced first token names the target language of many-to-many models."""

    model_types, task, kind, uses_image = ("marian", "m2m_100"), "translate", "AutoModelForSeq2SeqLM", False

    def encode(self, inputs: Mapping[str, Tensor]) -> Encoded:
        """Compute the states of the source tokens."""
        return Encoded(self.network.get_encoder()(**inputs)[0], inputs["attention_mask"])

    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Step:  # noqa: ANN401
        """Run the decoder."""
        from transformers.modeling_outputs import BaseModelOutput

        states = BaseModelOutput(last_hidden_state=hidden)
        output = self.network(
            encoder_outputs=states, attention_mask=mask, decoder_input_ids=ids, cache=cache, use_cache=True
        )
        return Step(output.logits, output.cache)


FAMILY = TextTranslator
