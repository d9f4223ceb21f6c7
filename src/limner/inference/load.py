"""Loading trained models for inference."""

from __future__ import annotations

from pathlib import Path

from limner.inference.base import load_models
from limner.inference.captioner import Captioner
from limner.inference.classifier import Classifier
from limner.inference.translator import Translator
from limner.runs.pretrained import choose_runs
from limner.text.labels import LABEL_LANGUAGES


def load(
    *runs: Path | str,
    lang: str | None = None,
    backbone: str | None = None,
    device: str = "cpu",
    encode_images: bool = True,
) -> Captioner | Classifier | Translator:
    """Load a trained model, or several as an ensemble; without arguments, the built-in captioner.

    Args:
        runs: run directories; none for the built-in captioner.
        lang: language of the built-in captioner, 'en' by default; only without `runs`.
        backbone: as for `Captioner.load`.
        device: as for `Captioner.load`.
        encode_images: as for `Captioner.load`.

    Returns:
        A `Classifier` for models of labels, a `Translator` for translation models, a `Captioner` for all others.

    Raises:
        SettingsError: there is no built-in captioner of the language, or `lang` is given with `runs`.
        RunError: as for `Captioner.load`.
        BackboneError: as for `Captioner.load`.
    """
    runs = choose_runs(runs, lang)
    models, encoder = load_models(runs, backbone, device, encode_images)
    if models[0].recipe.data.lang in LABEL_LANGUAGES:
        return Classifier(models, encoder)
    return Captioner(models, encoder) if models[0].source is None else Translator(models, encoder)
