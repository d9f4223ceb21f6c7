"""Limner: language models conditioned on images, for captioning, translation, scoring and retrieval.

    import limner
    limner.load("runs/mrnn").describe(["photo.jpg"])

The names below are imported at their first use, so `import limner` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from limner.data.collection import Collection
    from limner.data.readers import import_collection
    from limner.decoding.sentence import Sentence
    from limner.decoding.settings import DecodingSettings
    from limner.errors import LimnerError
    from limner.evaluation.evaluate import evaluate
    from limner.evaluation.gates import gate_statistics
    from limner.evaluation.options import EvaluationOptions
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract
    from limner.features.kmeans import KMeansSettings, learn_filters, save_filters
    from limner.folders.index import FolderIndex, FolderMatch
    from limner.inference.back_translation import back_translate
    from limner.inference.captioner import Captioner
    from limner.inference.classifier import Classification, Classifier
    from limner.inference.explain import Explanation, explain
    from limner.inference.load import load
    from limner.inference.retrieval_results import RetrievalResult
    from limner.inference.retriever import Retriever
    from limner.inference.scorer import Scorer, SentenceScore
    from limner.inference.translator import Translator
    from limner.inference.word_vectors import nearest_words
    from limner.report import write_report
    from limner.reproduce import ReproductionSettings, find_table, reproduce_table
    from limner.runs.recipe import Recipe, load_recipe
    from limner.runs.trained_model import load_trained_model
    from limner.synthetic.reviews import ReviewSettings, generate_reviews
    from limner.synthetic.scenes import ClipSettings, SceneSettings, generate_clips, generate_scenes
    from limner.synthetic.sounds import (
        SoundSequenceSettings,
        SoundSettings,
        generate_sound_sequences,
        generate_sounds,
    )
    from limner.training.cross_validation import CrossValidation, CrossValidationSettings, cross_validate
    from limner.training.loop import train

_MODULES = {
    "Captioner": "inference.captioner",
    "ClipSettings": "synthetic.scenes",
    "Collection": "data.collection",
    "Classification": "inference.classifier",
    "Classifier": "inference.classifier",
    "CrossValidation": "training.cross_validation",
    "CrossValidationSettings": "training.cross_validation",
    "Explanation": "inference.explain",
    "FolderIndex": "folders.index",
    "FolderMatch": "folders.index",
    "RetrievalResult": "inference.retrieval_results",
    "Retriever": "inference.retriever",
    "KMeansSettings": "features.kmeans",
    "LimnerError": "errors",
    "Recipe": "runs.recipe",
    "SceneSettings": "synthetic.scenes",
    "DecodingSettings": "decoding.settings",
    "Scorer": "inference.scorer",
    "Sentence": "decoding.sentence",
    "SentenceScore": "inference.scorer",
    "SoundSettings": "synthetic.sounds",
    "Translator": "inference.translator",
    "cross_validate": "training.cross_validation",
    "back_translate": "inference.back_translation",
    "EvaluationOptions": "evaluation.options",
    "evaluate": "evaluation.evaluate",
    "explain": "inference.explain",
    "extract": "features.extract",
    "find_table": "reproduce",
    "gate_statistics": "evaluation.gates",
    "generate_clips": "synthetic.scenes",
    "generate_scenes": "synthetic.scenes",
    "generate_reviews": "synthetic.reviews",
    "generate_sound_sequences": "synthetic.sounds",
    "generate_sounds": "synthetic.sounds",
    "ReviewSettings": "synthetic.reviews",
    "SoundSequenceSettings": "synthetic.sounds",
    "import_collection": "data.readers",
    "learn_filters": "features.kmeans",
    "load": "inference.load",
    "load_backbone": "features.encoders.load",
    "load_trained_model": "runs.trained_model",
    "load_recipe": "runs.recipe",
    "nearest_words": "inference.word_vectors",
    "ReproductionSettings": "reproduce",
    "reproduce_table": "reproduce",
    "save_filters": "features.kmeans",
    "train": "training.loop",
    "write_report": "report",
}

__all__ = [
    "Captioner",
    "Classification",
    "Classifier",
    "ClipSettings",
    "Collection",
    "CrossValidation",
    "CrossValidationSettings",
    "DecodingSettings",
    "EvaluationOptions",
    "Explanation",
    "FolderIndex",
    "FolderMatch",
    "KMeansSettings",
    "LimnerError",
    "Recipe",
    "ReproductionSettings",
    "RetrievalResult",
    "Retriever",
    "ReviewSettings",
    "SceneSettings",
    "Scorer",
    "Sentence",
    "SentenceScore",
    "SoundSequenceSettings",
    "SoundSettings",
    "Translator",
    "back_translate",
    "cross_validate",
    "evaluate",
    "explain",
    "extract",
    "find_table",
    "gate_statistics",
    "generate_clips",
    "generate_reviews",
    "generate_scenes",
    "generate_sound_sequences",
    "generate_sounds",
    "import_collection",
    "learn_filters",
    "load",
    "load_backbone",
    "load_recipe",
    "load_trained_model",
    "nearest_words",
    "reproduce_table",
    "save_filters",
    "train",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata  # reads e-mail headers, whose import takes longer than the rest of this module

        return metadata.version("limner")
    if name not in _MODULES:
        raise AttributeError(f"module 'limner' has no attribute '{name}'")
    return getattr(import_module(f"limner.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
