"""The command that usually follows another one, which is printed in its last line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.features.spec import FeatureSpec
    from limner.media.modality import Modality

SMALL_COLLECTION = 1000
"""Number of training items below which the recipe for small collections is suggested."""


def after_generate(kind: str, generated: Collection) -> str:
    """Return the command after `limner generate`: features of the files, or a training on texts."""
    if kind == "reviews":
        return _train("lecture/reviews", generated.path)
    from limner.media.modality import IMAGE

    modality = generated.items()[0].modality or IMAGE
    backbone = modality.default_backbone
    if kind == "sound-sequences":
        backbone = f"{backbone}:{max(len(item.frame_labels) for item in generated.items())}"
    return features_command(generated.path, backbone, modality)


def after_import(collection: Collection) -> str:
    """Return the command after `limner import`: features of the files, or the list of recipes for texts."""
    from limner.data.collection import MEDIA_COLUMNS
    from limner.media.modality import IMAGE

    modality = next((item.modality for item in collection.iter_items(columns=MEDIA_COLUMNS) if item.modality), None)
    if modality is None:
        return "limner recipes"
    backbone = "efficientnet-lite2" if modality is IMAGE else modality.default_backbone
    return features_command(collection.path, backbone, modality)


def after_features(collection: Collection, tables: Sequence[FeatureSpec]) -> str:
    """Return the command after `limner features`: a training of a captioner that reads the first table.

    Features of videos and audio files, and collections without a training split, have the list of recipes instead.
    """
    from limner.media.modality import IMAGE
    from limner.runs.recipe import load_recipe

    (table, *_), training = tables, collection.splits().get("train", 0)
    if table.modality != IMAGE.name or table.frames is not None or not training:
        return "limner recipes"
    recipe = "scenes/mrnn" if table.backbone.startswith("pixels") else "mao2015/flickr8k"
    if training < SMALL_COLLECTION:
        recipe = "own/photos"
    reads = load_recipe(recipe, []).features.tables == (table.name,)
    changes = [] if reads else [f"features.tables=[{table.name}]"]
    return _train(recipe, collection.path, *changes)


def after_train(run: Path, collection: Collection, test: str, validation: str) -> str:
    """Return the command after `limner train`: an evaluation on the test split, or on the other one without it."""
    command = ["limner", "evaluate", "--model", str(run), "--collection", str(collection.path)]
    if test not in collection.splits():
        command += ["--split", validation]
    return shlex.join(command)


def after_evaluate(run: Path) -> str:
    """Return the command after `limner evaluate`."""
    return shlex.join(["limner", "report", "--model", str(run)])


def features_command(collection: Path, backbone: str, modality: Modality | None = None) -> str:
    """Return the command that computes features with a backbone; of videos, the table that their recipes read."""
    frames = ["--frames", "16"] if modality is not None and modality.name == "video" else []
    return shlex.join(["limner", "features", str(collection), "--backbone", backbone, *frames])


def _train(recipe: str, collection: Path, *changes: str) -> str:
    run = Path("runs") / recipe.rpartition("/")[2]
    return shlex.join(["limner", "train", recipe, *changes, "--collection", str(collection), "--out", str(run)])
