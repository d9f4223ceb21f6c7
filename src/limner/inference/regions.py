"""Detection, description and retrieval of the regions of images, by a dense captioner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.collection import Collection
from limner.data.dataset import FeatureSource
from limner.data.examples import Example, ImageFeatures, Item, StoredFeatures, collate, collate_features
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.decoding.torch_models import beam_search
from limner.errors import CollectionError, RunError, SettingsError
from limner.features.encoders.base import Backbone
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.spec import FeatureSpec
from limner.features.store import RegionStore, pixel_box
from limner.inference.base import load_models
from limner.inference.features import BackboneFeatures, new_item, open_features
from limner.media.image import ImageInput, open_image
from limner.models.dense_captioner import DenseCaptioner, DenseCaptionerSettings, DetectedRegions
from limner.models.protocols import ConditionalLMSettings, device_of
from limner.progress import Progress
from limner.retrieval.all_pairs import MEMORY_BUDGET
from limner.retrieval.fast import tree_log_probs
from limner.runs.concepts import Concepts, Vector, largest_of_words, pooled_vector
from limner.runs.pretrained import pretrained_languages, pretrained_run
from limner.runs.trained_model import TrainedModel
from limner.text.queries import require_words

IMAGES_PER_BATCH = 8
"""Number of images whose regions are detected together."""
REGIONS_PER_BATCH = 512
"""Number of regions that are described together."""
REGIONS_PER_IMAGE = 100
"""Number of detected regions of an image that are searched, Johnson et al. (2016), section 4.3."""


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


class RetrievedRegion(NamedTuple):
    """A region retrieved for a sentence."""

    id: str
    """Id of the item."""
    image: str
    """Path of the image file."""
    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels."""
    text: str
    """The query."""
    score: float
    """log P(sentence | region)."""
    confidence: float
    """Confidence that the box is a region, 0 to 1."""
    description: str
    """Description of the region by the model."""


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
        """Load a trained model and its backbone; see `Captioner.load`."""
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
        source, items = BackboneFeatures(self.backbone, images), [new_item(image) for image in images]
        captions = []
        detected = detect_regions(self.model, items, source, count=count, min_confidence=min_confidence)
        for image, regions in zip(images, detected, strict=True):
            encoded = encoded_box(open_image(image).size, preprocessing)
            boxes = [pixel_box(box, encoded) for box in regions.boxes.tolist()]
            texts = describe_regions(self.model, regions, settings)
            captions.append(
                [
                    RegionCaption(box, description.text, score, description.log_prob)
                    for box, score, description in zip(boxes, regions.scores.tolist(), texts, strict=True)
                ]
            )
        return captions


def require_detector(model: TrainedModel) -> DenseCaptioner:
    """Return the model as a detector of regions; RunError if it detects none."""
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
    """Detect the regions of the images of items: at most `count` of each, of a confidence from `min_confidence` on."""
    detector, device, bonus_of = require_detector(model), device_of(model.model), _word_bonus(model)
    for begin in range(0, len(items), IMAGES_PER_BATCH):
        batch = features.take(items[begin : begin + IMAGES_PER_BATCH])
        detected = detector.detect(collate_features(batch).to(device), count=count)
        for stored, (boxes, scores, codes, _) in zip(batch, detected, strict=True):
            kept = scores >= min_confidence
            yield DetectedRegions(boxes[kept], scores[kept], codes[kept], bonus_of(stored))


def _word_bonus(model: TrainedModel) -> Callable[[StoredFeatures | None], Vector | None]:
    """Return the function from the features of an image to `DetectedRegions.bonus`; errors as `require_concepts`."""
    settings = require_detector(model).settings
    concepts = require_concepts(settings, model.config.features, model.recipe.data.lang)
    if concepts is None:
        return lambda stored: None
    weight, words = settings.detection.concept_weight, concepts.columns_of(model.tokenizer.spellings)

    def bonus_of(stored: StoredFeatures | None) -> Vector | None:
        if stored is None:
            return None
        return weight * largest_of_words(
            words, concepts.log_ratios(concepts.of_vectors(pooled_vector(stored)[None])[0])
        )

    return bonus_of


def require_concepts(settings: ConditionalLMSettings, specs: Iterable[FeatureSpec], lang: str) -> Concepts | None:
    """Return the concepts that a dense captioner of some features and a language reads; None without a weight.

    SettingsError without a built-in captioner of the language, or without the pooled features that its concepts need.
    """
    if not isinstance(settings, DenseCaptionerSettings) or not settings.detection.concept_weight:
        return None
    concepts = Concepts.load(pretrained_run(lang)) if lang in pretrained_languages() else None
    if concepts is None or not concepts.reads(spec for spec in specs if spec.kind == "pooled"):
        raise SettingsError(
            f"model.detection.concept_weight: concepts need a built-in captioner of the language '{lang}' and a table "
            "of pooled features of its backbone (efficientnet-lite2) in features.tables; add it, or set the weight to 0"
        )
    return concepts


def locate_regions(
    model: TrainedModel,
    items: Sequence[Item],
    features: RegionStore,
    *,
    count: int | None = None,
    min_confidence: float = 0.0,
) -> Iterator[LocatedRegions]:
    """Detect the regions of images of a collection as `detect_regions` does, with their boxes in pixels."""
    regions = detect_regions(model, items, features, count=count, min_confidence=min_confidence)
    for item, detected in zip(items, regions, strict=True):
        encoded = features.encoded_part(item)
        boxes = np.array([pixel_box(box, encoded) for box in detected.boxes.tolist()], dtype=np.float64)
        yield LocatedRegions(item, detected, boxes.reshape(-1, 4))


def describe_regions(model: TrainedModel, regions: DetectedRegions, settings: DecodingSettings) -> list[Sentence]:
    """Generate the description of each region of an image; its log-probability excludes the bonus of its words."""
    sentences: list[Sentence] = []
    for codes in torch.split(regions.codes, REGIONS_PER_BATCH) if len(regions.codes) else ():
        present = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        batch = collate([Example(str(number)) for number in range(len(codes))]).to(codes.device)
        batch = replace(batch, image=ImageFeatures(present, pooled=codes))
        bonus = None if regions.bonus is None else np.tile(regions.bonus, (len(codes), 1))
        for best, *_ in beam_search([model.model], batch, settings, bonus=bonus):
            if regions.bonus is not None:
                best = best._replace(log_prob=best.log_prob - float(regions.bonus[[*{*best.tokens}]].sum()))
            sentences.append(best.decoded(model.tokenizer))
    return sentences


@torch.inference_mode()
def retrieve_regions(
    model: TrainedModel,
    sentence: str,
    collection: Collection,
    *,
    split: str | None = None,
    count: int = 5,
    min_confidence: float = 0.0,
    on_progress: Progress | None = None,
) -> list[RetrievedRegion]:
    """Rank the detected regions of a collection for a sentence by log P(sentence | region).

    Args:
        model: dense captioner.
        sentence: query.
        collection: images to search and their features; images without features are left out.
        split: split to search; None for all.
        count: number of results.
        min_confidence: regions of a lower confidence are left out.
        on_progress: called with the number of images searched and their total.

    Raises:
        RunError: the model does not detect regions.
        SettingsError: the sentence has no words.
        CollectionError: there is no image with features to search.
    """
    require_detector(model)
    require_words(model.tokenizer, [sentence])
    features = open_features(model, collection)
    assert isinstance(features, RegionStore), "a dense captioner reads features of regions"
    items = [item for item in collection.items(split) if item.image and features.covers(item)]
    if not items:
        raise CollectionError(
            f"{collection.path}: no image with features to search; name another split, or run 'limner features'"
        )
    query = [model.tokenizer.encode(sentence)]
    best: list[tuple[RetrievedRegion, DetectedRegions]] = []  # and its detection, as a batch of one region
    located = locate_regions(model, items, features, count=REGIONS_PER_IMAGE, min_confidence=min_confidence)
    for done, (item, detected, boxes) in enumerate(located, 1):
        path = str(collection.image_path(item))
        scores = region_log_probs(model, detected.codes, query)[0].tolist()
        for row, ((left, top, width, height), score) in enumerate(zip(boxes.tolist(), scores, strict=True)):
            rows = slice(row, row + 1)
            region = DetectedRegions(detected.boxes[rows], detected.scores[rows], detected.codes[rows], detected.bonus)
            location = (item.id, path, (left, top, width, height))
            best.append((RetrievedRegion(*location, sentence, score, float(detected.scores[row]), ""), region))
        best = sorted(best, key=lambda entry: -entry[0].score)[:count]
        if on_progress is not None:
            on_progress(done, len(items))
    texts = [describe_regions(model, region, model.recipe.decoding)[0].text for _, region in best]
    return [region._replace(description=text) for (region, _), text in zip(best, texts, strict=True)]


@torch.inference_mode()
def region_log_probs(
    model: TrainedModel, codes: Tensor, sentences: Sequence[Sequence[int]], budget: int = MEMORY_BUDGET
) -> Tensor:
    """Compute log P(sentence | region) of S sentences, as token ids, and R regions by their codes (R, D), (S, R)."""
    if not len(codes):
        return codes.new_zeros(len(sentences), 0)
    batch = collate([Example("", sentence) for sentence in sentences]).to(codes.device)
    present = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
    return tree_log_probs(model.model, ImageFeatures(present, pooled=codes), batch, budget)
