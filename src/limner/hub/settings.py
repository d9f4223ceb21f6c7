"""Settings of models of the hub, which are chosen when a model is loaded."""

from __future__ import annotations

from typing import Literal

from limner.settings import Settings


class HubSettings(Settings):
    """Settings of a model of the hub."""

    prompt: str | None = None
    """Request to a model that is prompted; None for the request of a caption in `lang`."""
    lang: str = "en"
    """Language of the captions, and of the default prompt."""
    keep_preamble: bool = False
    """Whether a caption keeps a beginning such as 'The image shows', which is otherwise removed."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the weights, of which a 16-bit type takes half the memory."""
