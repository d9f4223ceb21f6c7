"""Stored features of a collection for a trained model, and their image controls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limner.data.collection import Collection
from limner.data.dataset import FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.errors import SettingsError
from limner.features.sources import ControlFeatures, FeatureStore, ImageControl, mean_features
from limner.features.store import require_same
from limner.runs.trained_model import TrainedModel


def open_features(model: TrainedModel, collection: Collection, cache_mib: int | None = None) -> FeatureStore | None:
    """The collection's features for a model; FeatureError where another backbone made them.

    Args:
        model: it tells which.
        collection: where they are.
        cache_mib: tables of up to this size are held in memory; none for what the recipe says.
    """
    if not model.config.features:
        return None
    names = [spec.name for spec in model.config.features]
    pictures = FeatureStore.open(collection, names, model.recipe.features.cache_mib if cache_mib is None else cache_mib)
    for table, spec in zip(pictures.tables, model.config.features, strict=True):
        require_same(table.spec, spec, f"{collection.path}/features/{spec.name}")
    return pictures


def control_features(
    model: TrainedModel,
    collection: Collection,
    pictures: FeatureStore | None,
    control: ImageControl,
    items: Sequence[Item],
    seed: int,
) -> FeatureSource | None:
    """The pictures that a model is shown of a split.

    Args:
        model: it tells which split it was trained on, and whether it looks at pictures.
        collection: where that split is.
        pictures: the right ones; None where the model has no features.
        control: 'right' for these; 'shuffled' for another item's, by the seed; 'mean' for the mean of the training
            split's features and 'zero' for zeros, the same for every item that has a picture.
        items: the items of the split.
        seed: of the shuffling.

    Raises:
        SettingsError: there is a control, and the model looks at no pictures.
        CollectionError: the mean is asked for, and the collection has no training split.
    """
    if control == "right":
        return pictures
    if pictures is None or not model.model.uses_image:
        raise SettingsError(f"pictures: '{control}', but this model looks at no pictures; evaluate it with 'right'")
    if control == "shuffled":
        return ControlFeatures.shuffled(pictures, items, seed)
    if control == "mean":
        return ControlFeatures(pictures, {}, mean_training_features(model, collection, pictures))
    nothing = {form: np.zeros(shape, dtype=np.float16) for form, shape in pictures.forms.items()}
    return ControlFeatures(pictures, {}, nothing)


def mean_training_features(model: TrainedModel, collection: Collection, pictures: FeatureStore) -> StoredFeatures:
    """The mean picture of the split a model was trained on, by form.

    Raises:
        CollectionError: the collection has no such split.
    """
    items = collection.items(model.recipe.data.train)
    return mean_features(pictures, [item for item in items if item.media_path is not None and pictures.covers(item)])
