"""Stored features of a collection for a trained model, and their image controls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from limner.data.dataset import FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.errors import SettingsError
from limner.features.controls import ControlFeatures, ImageControl, mean_features
from limner.features.spec import require_compatible
from limner.features.store import FeatureStore, feature_store
from limner.runs.trained_model import TrainedModel

if TYPE_CHECKING:
    from limner.data.collection import Collection


def open_features(model: TrainedModel, collection: Collection, cache_mib: int | None = None) -> FeatureStore | None:
    """Open the features of a collection that a model was trained on; None for a model without features.

    A table of up to `cache_mib` MiB is held in memory; None stands for the size in the recipe.

    Raises:
        FeatureError: a table is missing, or was computed by another backbone or with other settings.
    """
    if not model.config.features:
        return None
    names = [spec.name for spec in model.config.features]
    size = model.recipe.features.cache_mib if cache_mib is None else cache_mib
    features = feature_store(model.recipe.model.describes_regions).open(collection, names, size)
    for table, spec in zip(features.tables, model.config.features, strict=True):
        require_compatible(table.spec, spec, f"{collection.path}/features/{spec.name}")
    return features


def control_features(
    model: TrainedModel,
    collection: Collection,
    features: FeatureStore | None,
    control: ImageControl,
    items: Sequence[Item],
    seed: int,
) -> FeatureSource | None:
    """Return the features that a model receives under an image control.

    Args:
        model: trained model; its recipe names the training split.
        collection: collection with the training split.
        features: features of the collection; None for a model without features.
        control: 'right' for the features of each item, 'shuffled' for the features of another item of the split, 'mean'
            for the mean features of the training split, 'zero' for zeros; items without an image never receive
            features.
        items: items of the split.
        seed: seed of the shuffling.

    Raises:
        SettingsError: a control other than 'right' for a model that uses no images.
        CollectionError: control 'mean', and the collection has no training split.
    """
    if control == "right":
        return features
    if features is None or not model.model.uses_image:
        raise SettingsError(f"image control '{control}': this model uses no images; expected image control 'right'")
    if control == "shuffled":
        return ControlFeatures.shuffled(features, items, seed)
    if control == "mean":
        return ControlFeatures(features, {}, mean_training_features(model, collection, features))
    zeros = {kind: np.zeros(shape, dtype=np.float16) for kind, shape in features.shapes.items()}
    return ControlFeatures(features, {}, zeros)


def mean_training_features(model: TrainedModel, collection: Collection, features: FeatureStore) -> StoredFeatures:
    """Compute the mean features of the split a model was trained on, by kind.

    Raises:
        CollectionError: the collection has no such split.
    """
    items = collection.items(model.recipe.data.train)
    return mean_features(features, items.select(lambda item: item.media_path is not None and features.covers(item)))
