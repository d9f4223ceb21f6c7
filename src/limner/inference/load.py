"""Loading trained models for inference."""

from __future__ import annotations

from pathlib import Path

from limner.inference.captioner import Captioner
from limner.inference.new_images import load_backbone_of
from limner.inference.translator import Translator
from limner.runs.trained_model import load_trained_model


def load(
    *runs: Path | str, backbone: str | None = None, device: str = "cpu", encode_images: bool = True
) -> Captioner | Translator:
    """Load a trained model, or several as an ensemble.

    Arguments and errors are those of `Captioner.load`.

    Returns:
        A `Translator` for translation models, a `Captioner` for all others.
    """
    models = [load_trained_model(run, device) for run in runs]
    encoder = load_backbone_of(models[0], backbone, device) if encode_images else None
    return Captioner(models, encoder) if models[0].source is None else Translator(models, encoder)
