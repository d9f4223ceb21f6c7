"""A vision transformer and a language model with cross-attention, such as ViT-GPT2, of any two architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from limner.hub.networks import EncoderDecoder


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


FAMILY = VisionEncoderDecoder
