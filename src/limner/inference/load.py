"""Loading trained models for inference."""

from __future__ import annotations

from pathlib import Path

from limner.inference.base import load_models
from limner.inference.captioner import Captioner
from limner.inference.classifier import Classifier
from limner.inference.translator import Translator
from limner.text.labels import LABEL_LANGUAGES


def load(
    *runs: Path | str, backbone: str | None = None, device: str = "cpu", encode_images: bool = True
) -> Captioner | Classifier | Translator:
    """Load a trained model, or several as an ensemble.

    Arguments and errors are those of `Captioner.load`.

    Returns:
        A `Classifier` for models of labels, a `Translator` for translation models, a `Captioner` for all others.
    """
    models, encoder = load_models(runs, backbone, device, encode_images)
    if models[0].recipe.data.lang in LABEL_LANGUAGES:
        return Classifier(models, encoder)
    return Captioner(models, encoder) if models[0].source is None else Translator(models, encoder)
