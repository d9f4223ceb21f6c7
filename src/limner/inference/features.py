"""Features of new images and of collections for a trained model, and their image controls.

The controls measure how much a model uses its images (the random images of Kiros et al., 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.dataset import FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.errors import SettingsError
from limner.features.encoders.base import AnyBackbone, Backbone, EncoderInput, encode
from limner.features.encoders.clips import ImageOfClipBackbone
from limner.features.encoders.load import load_backbone_for
from limner.features.spec import require_compatible
from limner.media.image import ImageInput, image_name
from limner.media.modality import IMAGE, modality_of
from limner.runs.trained_model import TrainedModel
from limner.runtime.generators import load_backbone_graph
from limner.runtime.manifest import is_exported

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.features.store import FeatureStore

ImageControl = Literal["right", "shuffled", "mean", "zero"]
"""Features given to the model: the item's own, another item's, the mean of the training split, or zeros."""


class ControlFeatures:
    """A `FeatureSource` that replaces the features of another source. Items without an image keep None."""

    def __init__(
        self, features: FeatureSource, substitutes: Mapping[str, Item], constant: StoredFeatures | None = None
    ) -> None:
        """Use the features of `substitutes`, by item id, or `constant` for all items with an image."""
        self.features, self.substitutes, self.constant = features, substitutes, constant

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the substituted features of items."""
        if self.constant is not None:
            return [None if item.media_path is None else self.constant for item in items]
        return self.features.take([self.substitutes.get(item.id, item) for item in items])

    @classmethod
    def shuffled(cls, features: FeatureSource, items: Sequence[Item], seed: int) -> Self:
        """Permute the features of items with an image in one random cycle, none its own; SettingsError for one item."""
        with_image = [item for item in items if item.media_path is not None]
        if len(with_image) == 1:
            raise SettingsError(
                f"image control 'shuffled': expected at least two items with an image, got one ('{with_image[0].id}')"
            )
        cycle = np.random.default_rng(seed).permutation(len(with_image)).tolist()
        successors = zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)
        return cls(features, {with_image[item].id: with_image[successor] for item, successor in successors})


def mean_features(features: FeatureSource, items: Sequence[Item], batch_size: int = 1024) -> StoredFeatures:
    """Compute the mean features by kind, reading `batch_size` items at once; SettingsError for no image."""
    sums: dict[str, NDArray[np.float64]] = {}
    count = 0
    for start in range(0, len(items), batch_size):
        for by_kind in features.take(items[start : start + batch_size]):
            if by_kind is None:
                continue
            count += 1
            for kind, values in by_kind.items():
                if values is not None:
                    sums[kind] = sums.get(kind, 0) + values.astype(np.float64)
    if not count:
        raise SettingsError("image control 'mean': expected items with an image in the training split, got none")
    return {kind: (total / count).astype(np.float16) for kind, total in sums.items()}


def open_features(model: TrainedModel, collection: Collection, cache_mib: int | None = None) -> FeatureStore | None:
    """Open the features of a collection that a model was trained on; None for a model without features.

    A table of up to `cache_mib` MiB is held in memory; None stands for the size in the recipe.

    Raises:
        FeatureError: a table is missing, or was computed by another backbone or with other settings.
    """
    if not model.config.features:
        return None
    from limner.features.store import feature_store  # tables, which new images do not need

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
    """Compute the mean features of a model's training split, by kind; CollectionError without this split."""
    items = collection.items(model.recipe.data.train)
    return mean_features(features, items.select(lambda item: item.media_path is not None and features.covers(item)))


NEW_SPLIT = "new"
"""Split of items that belong to no collection."""


class BackboneFeatures:
    """Features of new images, videos or audio files, computed by a backbone when a batch needs them.

    A `FeatureSource`: an item is read from its file, unless its image is held in memory.
    """

    def __init__(self, backbone: Backbone, images: Iterable[ImageInput | None] = ()) -> None:
        """Take the backbone of the model, and the images of the items of `new_item` that are in memory."""
        self.backbone = backbone
        self._in_memory = {image_name(image): image for image in images if not isinstance(image, Path | str | None)}

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Compute the features of each item's file, which is read once; MediaError if one cannot be read."""
        names = dict.fromkeys(item.media_path for item in items if item.media_path is not None)
        by_shape: dict[tuple[int, ...], dict[str, EncoderInput]] = {}  # images, and videos by their number of frames
        for name in names:
            values = self.backbone.read(self._in_memory.get(name, Path(name)))
            by_shape.setdefault(values.shape, {})[name] = values
        by_name: dict[str, StoredFeatures] = {}
        for inputs in by_shape.values():
            features = encode(self.backbone, np.stack(list(inputs.values())), list(inputs))
            for row, name in enumerate(inputs):
                by_name[name] = {kind: stored[row] for kind, stored in features.items()}
        return [None if item.media_path is None else by_name[item.media_path] for item in items]


def new_item(image: ImageInput | None, id_: str | None = None) -> Item:
    """Create an item of no collection.

    Args:
        image: image or audio file (recognised by its suffix), an image in memory, or None for text alone.
        id_: id of the item, which with a seed determines sampled sentences; default: the name of the image.
    """
    if image is None:
        return Item(id_ or "", NEW_SPLIT)
    name = image_name(image)
    return Item(id_ or name, NEW_SPLIT).with_media(modality_of(image), name)


def require_images(model: TrainedModel, images: Iterable[ImageInput]) -> None:
    """Check that the images of a model without features can be read; MediaError if one cannot."""
    if not model.config.features:
        for path in dict.fromkeys(image for image in images if isinstance(image, Path | str)):
            modality_of(path).open(path)


def load_backbone_of(model: TrainedModel, backbone: AnyBackbone = None, device: str = "cpu") -> Backbone | None:
    """Load the backbone that computed the features a model was trained on; None for a model without features.

    The backbone of a model that was trained on images reads videos as well, see `ImageOfClipBackbone`. On a CPU, the
    graph of the backbone is used where the run directory contains it, as in the built-in models.

    Args:
        model: trained model.
        backbone: where the network is, if it has moved since the training; or the backbone.
        device: 'cpu' or 'cuda'.

    Raises:
        BackboneError: the network cannot be found or loaded.
        FeatureError: the backbone computes other features.
    """
    if not model.config.features:
        return None
    loaded: Backbone | None = None
    if not isinstance(backbone, str | None):
        for computed, spec in zip(backbone.specs, model.config.features, strict=True):
            require_compatible(computed, spec, "backbone", "give the backbone that the model was trained with")
        return backbone
    if backbone is None and device == "cpu" and model.folder is not None and is_exported(model.folder):
        loaded = load_backbone_graph(model.folder, model.config.features)
    loaded = loaded or load_backbone_for(model.config.features, backbone, device=device)
    return ImageOfClipBackbone(loaded) if loaded.modality is IMAGE else loaded
