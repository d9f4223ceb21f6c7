"""BLIP (Li et al., 2022): a text decoder that attends to the patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from limner.hub.networks import EncoderDecoder


class Blip(EncoderDecoder):
    """BLIP for captioning; sentences start with the token [DEC] and end with [SEP]."""

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


FAMILY = Blip
