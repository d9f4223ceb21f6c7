"""Limner: language models conditioned on images, for captioning, translation, scoring and retrieval.

    import limner
    limner.load("runs/mrnn").describe(["photo.jpg"])

The names below are imported at their first use, so `import limner` does not import torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from limner.apps.photos.index import FolderIndex as FolderIndex
    from limner.apps.photos.index import FolderMatch as FolderMatch
    from limner.apps.report.page import write_report as write_report
    from limner.apps.reproduce import ReproductionSettings as ReproductionSettings
    from limner.apps.reproduce import find_table as find_table
    from limner.apps.reproduce import reproduce_table as reproduce_table
    from limner.data.collection import Collection as Collection
    from limner.data.examples import Batch as Batch
    from limner.data.readers import import_collection as import_collection
    from limner.decoding.scoring import SentenceScore as SentenceScore
    from limner.decoding.sentence import Sentence as Sentence
    from limner.decoding.settings import DecodingSettings as DecodingSettings
    from limner.errors import LimnerError as LimnerError
    from limner.evaluation.evaluate import EvaluationOptions as EvaluationOptions
    from limner.evaluation.evaluate import evaluate as evaluate
    from limner.evaluation.gates import gate_statistics as gate_statistics
    from limner.features.encoders.base import FunctionBackbone as FunctionBackbone
    from limner.features.encoders.load import load_backbone as load_backbone
    from limner.features.extract import extract as extract
    from limner.features.kmeans import KMeansSettings as KMeansSettings
    from limner.features.kmeans import learn_filters as learn_filters
    from limner.features.kmeans import save_filters as save_filters
    from limner.inference.back_translation import back_translate as back_translate
    from limner.inference.captioner import Captioner as Captioner
    from limner.inference.classifier import Classification as Classification
    from limner.inference.classifier import Classifier as Classifier
    from limner.inference.explain import Explanation as Explanation
    from limner.inference.explain import explain as explain
    from limner.inference.load import load as load
    from limner.inference.retriever import RetrievalResult as RetrievalResult
    from limner.inference.retriever import Retriever as Retriever
    from limner.inference.scorer import Scorer as Scorer
    from limner.inference.scorer import nearest_words as nearest_words
    from limner.inference.translator import Translator as Translator
    from limner.media.image import open_image as open_image
    from limner.models.protocols import ConditionalLMSettings as ConditionalLMSettings
    from limner.models.protocols import ModelInputs as ModelInputs
    from limner.models.protocols import Output as Output
    from limner.runs.pretrained import pretrained_run as pretrained_run
    from limner.runs.recipe import Recipe as Recipe
    from limner.runs.recipe import load_recipe as load_recipe
    from limner.runs.recipe import register as register
    from limner.runs.trained_model import load_trained_model as load_trained_model
    from limner.synthetic.reviews import ReviewSettings as ReviewSettings
    from limner.synthetic.scenes import ClipSettings as ClipSettings
    from limner.synthetic.scenes import SceneSettings as SceneSettings
    from limner.synthetic.sounds import SoundSequenceSettings as SoundSequenceSettings
    from limner.synthetic.sounds import SoundSettings as SoundSettings
    from limner.synthetic.storage import generate_collection as generate_collection
    from limner.text.vocab import SPECIAL_TOKENS as SPECIAL_TOKENS
    from limner.training.cross_validation import CrossValidation as CrossValidation
    from limner.training.cross_validation import CrossValidationSettings as CrossValidationSettings
    from limner.training.cross_validation import cross_validate as cross_validate
    from limner.training.loop import train as train

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before ONNX Runtime is imported, which otherwise sends events
_NAMES = {
    "apps.photos.index": "FolderIndex FolderMatch",
    "apps.report.page": "write_report",
    "apps.reproduce": "ReproductionSettings find_table reproduce_table",
    "data.collection": "Collection",
    "data.examples": "Batch",
    "data.readers": "import_collection",
    "decoding.scoring": "SentenceScore",
    "decoding.sentence": "Sentence",
    "decoding.settings": "DecodingSettings",
    "errors": "LimnerError",
    "evaluation.evaluate": "EvaluationOptions evaluate",
    "evaluation.gates": "gate_statistics",
    "features.encoders.base": "FunctionBackbone",
    "features.encoders.load": "load_backbone",
    "features.extract": "extract",
    "features.kmeans": "KMeansSettings learn_filters save_filters",
    "inference.back_translation": "back_translate",
    "inference.captioner": "Captioner",
    "inference.classifier": "Classification Classifier",
    "inference.explain": "Explanation explain",
    "inference.load": "load",
    "inference.retriever": "RetrievalResult Retriever",
    "inference.scorer": "Scorer nearest_words",
    "inference.translator": "Translator",
    "media.image": "open_image",
    "models.protocols": "ConditionalLMSettings ModelInputs Output",
    "runs.pretrained": "pretrained_run",
    "runs.recipe": "Recipe load_recipe register",
    "runs.trained_model": "load_trained_model",
    "synthetic.reviews": "ReviewSettings",
    "synthetic.scenes": "ClipSettings SceneSettings",
    "synthetic.sounds": "SoundSequenceSettings SoundSettings",
    "synthetic.storage": "generate_collection",
    "text.vocab": "SPECIAL_TOKENS",
    "training.cross_validation": "CrossValidation CrossValidationSettings cross_validate",
    "training.loop": "train",
}
"""Public names of each module."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata  # reads e-mail headers, whose import takes longer than the rest of this module

        return metadata.version("limner")
    if name not in _MODULES:
        raise AttributeError(f"module 'limner' has no attribute '{name}'")
    try:
        return getattr(import_module(f"limner.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        from limner.errors import missing_extra

        raise missing_extra(error, f"limner.{name}") from None


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
