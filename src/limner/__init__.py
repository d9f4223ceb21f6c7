"""Limner: language models that look. They describe pictures, translate with their help, score and search them.

    import limner
    limner.load("runs/mrnn").describe(["photo.jpg"])

Names are imported when they are first used, so that `import limner` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limner.attention import Explanation, explain, gate_statistics
    from limner.back_translation import back_translate
    from limner.checkpoint import load_checkpoint
    from limner.data.collection import Collection
    from limner.data.readers import import_collection
    from limner.data.scenes import SceneSettings, generate
    from limner.data.sounds import SoundSettings, generate_sounds
    from limner.errors import LimnerError
    from limner.evaluation import evaluate
    from limner.published import find_table, reproduce
    from limner.recipe import Recipe, load_recipe
    from limner.report import write_report
    from limner.search import SearchSettings
    from limner.tasks import Captioner, Description, Found, SentenceScore, load
    from limner.training.loop import train
    from limner.translation import Translation, Translator
    from limner.vision.backbones import load_backbone
    from limner.vision.features import extract
    from limner.vision.kmeans import KMeansSettings, learn_filters, save_filters

_HOMES = {
    "Captioner": "tasks",
    "Collection": "data.collection",
    "Description": "tasks",
    "Explanation": "attention",
    "Found": "tasks",
    "KMeansSettings": "vision.kmeans",
    "LimnerError": "errors",
    "Recipe": "recipe",
    "SceneSettings": "data.scenes",
    "SearchSettings": "search",
    "SentenceScore": "tasks",
    "SoundSettings": "data.sounds",
    "Translation": "translation",
    "Translator": "translation",
    "back_translate": "back_translation",
    "evaluate": "evaluation",
    "explain": "attention",
    "extract": "vision.features",
    "find_table": "published",
    "gate_statistics": "attention",
    "generate": "data.scenes",
    "generate_sounds": "data.sounds",
    "import_collection": "data.readers",
    "learn_filters": "vision.kmeans",
    "load": "tasks",
    "load_backbone": "vision.backbones",
    "load_checkpoint": "checkpoint",
    "load_recipe": "recipe",
    "reproduce": "published",
    "save_filters": "vision.kmeans",
    "train": "training.loop",
    "write_report": "report",
}

__all__ = [
    "Captioner",
    "Collection",
    "Description",
    "Explanation",
    "Found",
    "KMeansSettings",
    "LimnerError",
    "Recipe",
    "SceneSettings",
    "SearchSettings",
    "SentenceScore",
    "SoundSettings",
    "Translation",
    "Translator",
    "back_translate",
    "evaluate",
    "explain",
    "extract",
    "find_table",
    "gate_statistics",
    "generate",
    "generate_sounds",
    "import_collection",
    "learn_filters",
    "load",
    "load_backbone",
    "load_checkpoint",
    "load_recipe",
    "reproduce",
    "save_filters",
    "train",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'limner' has no attribute '{name}'")
    return getattr(import_module(f"limner.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
