"""Captions and translations by exported models, with NumPy and ONNX Runtime alone.

    import limner.runtime
    limner.runtime.load("exported").describe(["photo.jpg"])

Nothing here imports torch, so that a process starts in a fraction of the time. `limner export` writes the folders;
`python -m limner.runtime` is the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limner.runtime.generators import (
        ExportedCaptioner,
        ExportedTranslator,
        load,
        load_captioner,
        load_translator,
    )

__all__ = ["ExportedCaptioner", "ExportedTranslator", "load", "load_captioner", "load_translator"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'limner.runtime' has no attribute '{name}'")
    from limner.runtime import generators  # the command sets the environment before

    return getattr(generators, name)
