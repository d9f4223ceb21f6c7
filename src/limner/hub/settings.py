"""Settings of models of the hub, which are chosen when a model is loaded."""

from __future__ import annotations

import hashlib
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

    @property
    def changed(self) -> list[str]:
        """Settings that differ from the defaults, such as `lang:de`; a prompt by 8 digits of its SHA-256."""
        values = self.model_dump(exclude_defaults=True)
        if "prompt" in values:
            values["prompt"] = hashlib.sha256(values["prompt"].encode()).hexdigest()[:8]
        return [key if value is True else f"{key}:{value}" for key, value in values.items()]
