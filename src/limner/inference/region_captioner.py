"""Detection and description of the regions of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.dataset import FeatureSource
from limner.data.examples import Example, ImageFeatures, Item, collate, collate_features
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.decoding.torch_models import beam_search
from limner.errors import RunError
from limner.features.encoders.base import Backbone
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.region_store import RegionStore, pixel_box
from limner.inference.base import load_models
from limner.inference.new_images import BackboneFeatures, new_item
from limner.media.image import ImageInput, open_image
from limner.models.dense_captioner import DenseCaptioner, DetectedRegions
from limner.models.protocols import device_of
from limner.runs.trained_model import TrainedModel

IMAGES_PER_BATCH = 8
"""Number of images whose regions are detected together."""
REGIONS_PER_BATCH = 512
"""Number of regions that are described together."""


class RegionCaption(NamedTuple):
    """A detected region of an image with its description."""

    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels of the image."""
    text: str
    score: float
    """Confidence that the box is a region, 0 to 1."""
    log_prob: float
    """Natural logarithm of the probability of the description given the region."""


class LocatedRegions(NamedTuple):
    """An image of a collection with its detected regions, by descending confidence."""

    item: Item
    detected: DetectedRegions
    boxes: NDArray[np.float64]  # (R, 4): left, top, width and height in pixels


class RegionText(NamedTuple):
    """Description of a region."""

    text: str
    """Running text."""
    tokens: str
    """Tokens joined by spaces, as scored by metrics."""
    log_prob: float
    """Natural logarithm of its probability given the region."""


class RegionCaptioner:
    """A dense captioner: it detects the regions of images and describes each of them."""

    def __init__(self, model: TrainedModel, backbone: Backbone | None = None) -> None:
        """Create a captioner of regions.

        Args:
            model: dense captioner.
            backbone: computes the features of new images.

        Raises:
            RunError: the model does not detect regions.
        """
        require_detector(model)
        self.model, self.backbone = model, backbone

    @classmethod
    def load(cls, run: Path | str, *, backbone: str | None = None, device: str = "cpu") -> Self:
        """Load a trained model; arguments and errors are those of `Captioner.load`."""
        (model,), encoder = load_models([run], backbone, device)
        return cls(model, encoder)

    def describe(
        self,
        images: Sequence[ImageInput],
        *,
        count: int | None = None,
        min_confidence: float = 0.0,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[RegionCaption]]:
        """Detect and describe the regions of images.

        Args:
            images: paths, encoded bytes, PIL images or arrays (H, W, 3).
            count: largest number of regions of an image; None for all.
            min_confidence: regions of a lower confidence are left out.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5.

        Returns:
            Regions of each image by descending confidence.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed.
        """
        assert self.backbone is not None, "new images need a backbone"
        settings = change_decoding(self.model.recipe.decoding, decoding)
        preprocessing = Preprocessing.parse(self.backbone.specs[0].preprocessing, self.backbone.specs[0].name)
        source, results = BackboneFeatures(self.backbone, images), []
        items = [new_item(image) for image in images]
        found = detect_regions(self.model, items, source, count=count, min_confidence=min_confidence)
        for image, regions in zip(images, found, strict=True):
            encoded = encoded_box(open_image(image).size, preprocessing)
            texts = describe_regions(self.model, regions.codes, settings)
            results.append(
                [
                    RegionCaption(pixel_box(box, encoded), one.text, score, one.log_prob)
                    for box, score, one in zip(regions.boxes.tolist(), regions.scores.tolist(), texts, strict=True)
                ]
            )
        return results


def require_detector(model: TrainedModel) -> DenseCaptioner:
    """Return the model as a detector of regions.

    Raises:
        RunError: it does not detect regions.
    """
    if not isinstance(model.model, DenseCaptioner):
        raise RunError(
            f"expected a model that detects regions, got '{model.recipe.model.name}'; train one with a recipe such as "
            "'johnson2016/scenes'"
        )
    return model.model


def detect_regions(
    model: TrainedModel,
    items: Sequence[Item],
    features: FeatureSource,
    *,
    count: int | None = None,
    min_confidence: float = 0.0,
) -> Iterator[DetectedRegions]:
    """Detect the regions of the image of each item.

    Args:
        model: dense captioner.
        items: items of whole images.
        features: features of the images.
        count: largest number of regions of an image; None for all.
        min_confidence: regions of a lower confidence are left out.
    """
    detector, device = require_detector(model), device_of(model.model)
    for begin in range(0, len(items), IMAGES_PER_BATCH):
        batch = features.take(items[begin : begin + IMAGES_PER_BATCH])
        for one in detector.detect(collate_features(batch).to(device), count=count):
            kept = one.scores >= min_confidence
            yield DetectedRegions(one.boxes[kept], one.scores[kept], one.codes[kept])


def locate_regions(
    model: TrainedModel,
    items: Sequence[Item],
    features: RegionStore,
    *,
    count: int | None = None,
    min_confidence: float = 0.0,
) -> Iterator[LocatedRegions]:
    """Detect the regions of images of a collection; arguments are those of `detect_regions`."""
    found = detect_regions(model, items, features, count=count, min_confidence=min_confidence)
    for item, detected in zip(items, found, strict=True):
        encoded = features.encoded_part(item)
        boxes = np.array([pixel_box(box, encoded) for box in detected.boxes.tolist()], dtype=np.float64)
        yield LocatedRegions(item, detected, boxes.reshape(-1, 4))


def describe_regions(model: TrainedModel, codes: Tensor, settings: DecodingSettings) -> list[RegionText]:
    """Generate a description of each region from its code.

    Args:
        model: dense captioner.
        codes: codes of the regions, (R, D), as `detect_regions` returns them.
        settings: decoding settings.
    """
    texts: list[RegionText] = []
    for part in torch.split(codes, REGIONS_PER_BATCH) if len(codes) else ():
        present = torch.ones(len(part), dtype=torch.bool, device=part.device)
        batch = collate([Example(str(number)) for number in range(len(part))]).to(part.device)
        batch = replace(batch, image=ImageFeatures(present, pooled=part))
        for hypotheses in beam_search([model.model], batch, settings):
            best, tokenizer = hypotheses[0], model.tokenizer
            text = tokenizer.decode(best.tokens, detokenise=True)
            texts.append(RegionText(text, tokenizer.decode(best.tokens), best.log_prob))
    return texts
