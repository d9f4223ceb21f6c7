"""BLIP (Li et al., 2022): a text decoder that attends to the patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from limner.hub.networks import Encoded, EncoderDecoder, Step


class Blip(EncoderDecoder):
    """BLIP for captioning; sentences start with the token [DEC] and end with [SEP]."""

    model_types, task, kind, uses_image = ("blip",), "describe", "AutoModelForImageTextToText", True

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        """The text decoder."""
        return self.network.text_decoder

    @property
    def eos_token_id(self) -> int:
        """The token [SEP]."""
        return int(self.config.text_config.sep_token_id)

    @property
    def start_token_id(self) -> int:
        """The token [DEC]."""
        return int(self.config.text_config.bos_token_id)

    def encode(self, inputs: Mapping[str, Tensor]) -> Encoded:
        """Compute the states of the patches."""
        return Encoded(self.network.vision_model(**inputs)[0])

    def attend(self, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any) -> Step:  # noqa: ANN401
        """Run the text decoder."""
        output = self.decoder(input_ids=ids, encoder_hidden_states=hidden, cache=cache, use_cache=True)
        return Step(output.logits, output.cache)


FAMILY = Blip
