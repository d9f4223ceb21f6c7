"""Captions and translations by exported models, with NumPy and ONNX Runtime alone.

    import limner.runtime
    limner.runtime.load("exported").describe(["photo.jpg"])

Nothing here imports torch, so that a process starts in a fraction of the time. `limner export` writes the folders.
"""

from __future__ import annotations

from limner.runtime.generators import (
    ExportedCaptioner,
    ExportedTranslator,
    load,
    load_captioner,
    load_translator,
)

__all__ = ["ExportedCaptioner", "ExportedTranslator", "load", "load_captioner", "load_translator"]
