"""Loading trained models for inference."""

from __future__ import annotations

from pathlib import Path

from limner.inference.base import load_models
from limner.inference.captioner import Captioner
from limner.inference.translator import Translator


def load(
    *runs: Path | str, backbone: str | None = None, device: str = "cpu", encode_images: bool = True
) -> Captioner | Translator:
    """Load a trained model, or several as an ensemble.

    Arguments and errors are those of `Captioner.load`.

    Returns:
        A `Translator` for translation models, a `Captioner` for all others.
    """
    models, encoder = load_models(runs, backbone, device, encode_images)
    return Captioner(models, encoder) if models[0].source is None else Translator(models, encoder)
