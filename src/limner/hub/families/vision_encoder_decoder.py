"""A vision transformer and a language model with cross-attention, such as ViT-GPT2, of any two architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from limner.hub.networks import Encoded, EncoderDecoder, Step


class VisionEncoderDecoder(EncoderDecoder):
    """A `VisionEncoderDecoderModel`; its two sizes may differ, then a projection joins them."""

    model_types, task, kind, uses_image = (
        ("vision-encoder-decoder",),
        "describe",
        "AutoModelForImageTextToText",
        True,
    )

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        """The language model."""
        return self.network.decoder

    def encode(self, inputs: Mapping[str, Tensor]) -> Encoded:
        """Compute the states of the patches, in the size of the decoder."""
        hidden = self.network.encoder(**inputs)[0]
        projection = getattr(self.network, "enc_to_dec_proj", None)
        return Encoded(hidden if projection is None else projection(hidden))

    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Step:  # noqa: ANN401
        """Run the language model."""
        output = self.decoder(input_ids=ids, encoder_hidden_states=hidden, cache=cache, use_cache=True)
        return Step(output.logits, output.cache)


FAMILY = VisionEncoderDecoder
