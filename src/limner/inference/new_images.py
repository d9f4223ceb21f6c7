"""Features of images, videos and audio files that belong to no collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from limner.data.examples import Item, StoredFeatures
from limner.features.encoders.base import AnyBackbone, Backbone, EncoderInput, encode
from limner.features.encoders.clips import ImageOfClipBackbone
from limner.features.encoders.load import load_backbone_for
from limner.features.spec import require_compatible
from limner.media.image import ImageInput, image_name
from limner.media.modality import IMAGE, modality_of
from limner.runs.trained_model import TrainedModel
from limner.runtime.generators import load_backbone_graph
from limner.runtime.manifest import is_exported

NEW_SPLIT = "new"
"""Split of items that belong to no collection."""


class BackboneFeatures:
    """Features of new images, videos or audio files, computed by a backbone when a batch needs them.

    A `FeatureSource`: an item is read from its file, unless its image is held in memory.
    """

    def __init__(self, backbone: Backbone, images: Iterable[ImageInput | None] = ()) -> None:
        """Initialise the source.

        Args:
            backbone: network that computed the features the model was trained on.
            images: images of the items made by `new_item`; needed only for images in memory.
        """
        self.backbone = backbone
        self._in_memory = {image_name(image): image for image in images if not isinstance(image, Path | str | None)}

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Compute the features of each item's image or audio file; an image that several items share is read once.

        Raises:
            MediaError: an image or audio file cannot be read.
        """
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
    """Check that the images of a model without features can be read, as the backbone does for other models.

    Raises:
        MediaError: an image cannot be read.
    """
    if not model.config.features:
        for path in dict.fromkeys(image for image in images if isinstance(image, Path | str)):
            modality_of(path).open(path)


def load_backbone_of(model: TrainedModel, backbone: AnyBackbone = None, device: str = "cpu") -> Backbone | None:
    """Load the backbone that computed the features a model was trained on; None for a model without features.

    The backbone of a model that was trained on images reads videos as well, see `ImageOfClipBackbone`. On a CPU, the
    graph of the backbone is used where the run directory contains it, as for the built-in models.

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
