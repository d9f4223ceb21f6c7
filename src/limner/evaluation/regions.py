"""Evaluation of dense captioning: mean average precision of detected regions, and retrieval of regions by sentences."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize

from limner.bounds import CountOrNone
from limner.data.collection import Collection
from limner.data.dataset import Examples, GenerationInput
from limner.data.examples import Item, Region, collate_features
from limner.data.languages import RegionItem, region_items
from limner.decoding.settings import DecodingSettings
from limner.errors import MissingExtraError, SettingsError
from limner.features.store import RegionStore
from limner.inference.base import require_captioning
from limner.inference.features import open_features
from limner.inference.generate import generate
from limner.inference.regions import (
    REGIONS_PER_IMAGE,
    describe_regions,
    locate_regions,
    region_log_probs,
    require_detector,
)
from limner.metrics import dense_captioning
from limner.metrics.base import MetricUnavailable, Score
from limner.metrics.ranks import median_rank, recall_at
from limner.models.dense_captioner import DetectedRegions
from limner.models.protocols import device_of
from limner.progress import Progress
from limner.retrieval.all_pairs import MEMORY_BUDGET
from limner.runs.evaluations import ImageRegions, RegionRecord
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.settings import Settings

RegionBaseline = Literal["frequent", "nearest", "caption"]
SHOWN_IMAGES, SHOWN_REGIONS = 12, 10
"""Number of images, and of detected regions of each, that are recorded for the report."""
MIN_OVERLAP = 0.5  # smallest IoU of a retrieved region with the region that the query describes
RECALLS = (1, 5, 10)  # numbers k of the best candidates for which recall is computed
CODES_PER_BATCH = 256

logger = logging.getLogger(__name__)


class RegionOptions(Settings):
    """Options of the evaluation of regions."""

    baseline: RegionBaseline | None = None
    """Sentences given to the detected boxes in place of the model's: the most `frequent` description of the training
    split, the description of the `nearest` training region (cosine of the codes), or the `caption` of the image."""
    captioner: Path | None = None
    """Run directory of the model that captions the images for the baseline `caption`."""
    retrieval_images: CountOrNone = 100
    """Number of images whose regions are searched; one description of each is a query. 0 for no retrieval."""


class _DescribedImage(NamedTuple):
    item: Item
    detected: DetectedRegions
    boxes: np.ndarray  # (N, 4): left, top, width and height in pixels
    texts: list[RegionText]


RegionText = tuple[str, str]
"""Description of a region as running text, and as tokens joined by spaces, which the metrics read."""
_Describe = Callable[[Item, DetectedRegions], list[RegionText]]


def evaluate_regions(
    model: TrainedModel,
    examples: Examples,
    collection: Collection,
    decoding: DecodingSettings,
    options: RegionOptions,
    *,
    seed: int = 1,
    on_progress: Progress | None = None,
) -> tuple[list[Score], tuple[ImageRegions, ...]]:
    """Detect and describe the regions of a split and compare them with the annotated regions.

    All images of the split count, with or without annotated regions; the collection has the training split for the
    baselines, and the seed draws the queries. The result has the scores, and some images with their regions for the
    report.
    """
    describe = _baseline(model, collection, examples, options) or _by_model(model, decoding)
    images = _detect(model, examples.images, examples, describe, on_progress)
    scores = _precision(model, images, options)
    annotated = [image for image in images if image.item.regions]
    if options.baseline is None and options.retrieval_images:
        scores += _retrieval(model, annotated[:: max(1, len(annotated) // options.retrieval_images)], options, seed)
    return scores, tuple(_shown(images, collection))


def region_precision(model: TrainedModel, examples: Examples, decoding: DecodingSettings, count: int) -> list[Score]:
    """Compute mean average precision on some images of a split, for validation during training.

    They are `count` images at regular intervals. Without METEOR on this machine the result is `localisation_map` alone.
    """
    total = len(examples.images)
    chosen = [examples.images[number * total // min(count, total)] for number in range(min(count, total))]
    images = _detect(model, chosen, examples, _by_model(model, decoding))
    return _precision(model, images, RegionOptions())


def _detect(
    model: TrainedModel,
    items: Sequence[Item],
    examples: Examples,
    describe: _Describe,
    on_progress: Progress | None = None,
) -> list[_DescribedImage]:
    images: list[_DescribedImage] = []
    for located in locate_regions(model, items, _region_features(examples)):
        images.append(_DescribedImage(*located, describe(located.item, located.detected)))
        if on_progress is not None:
            on_progress(len(images), len(items))
    return images


def _region_features(examples: Examples) -> RegionStore:
    assert isinstance(examples.features, RegionStore), "a dense captioner reads features of regions"
    return examples.features


def _by_model(model: TrainedModel, decoding: DecodingSettings) -> _Describe:
    def describe(item: Item, detected: DetectedRegions) -> list[RegionText]:
        sentences = describe_regions(model, detected, decoding)
        return [(sentence.text, sentence.tokenised(model.tokenizer)) for sentence in sentences]

    return describe


def _precision(model: TrainedModel, images: Sequence[_DescribedImage], options: RegionOptions) -> list[Score]:
    """Compute mean average precision; without METEOR on this machine, of the boxes alone."""
    words, lang = model.tokenizer.words, model.recipe.data.lang
    corpus = [
        dense_captioning.DenseCaptions(
            image.boxes,
            image.detected.scores.double().cpu().numpy(),
            [tokens for _, tokens in image.texts],
            np.array([region.box for region in image.item.regions], dtype=np.float64).reshape(-1, 4),
            [" ".join(words(region.text)) for region in image.item.regions],
        )
        for image in images
    ]
    detection = model.recipe.model_dump()["model"]["detection"]
    suffix = "|" + ",".join(f"{key}:{value}" for key, value in detection.items())
    suffix += "" if options.baseline is None else f"|baseline:{options.baseline}"
    try:
        scores = dense_captioning.dense_captioning_scores(corpus, *dense_captioning.meteor_similarity(lang))
    except (MetricUnavailable, MissingExtraError) as error:
        logger.warning("%s (left out: map)", error)
        scores = [dense_captioning.localisation_score(dense_captioning.match(corpus), len(corpus))]
    return [score._replace(signature=score.signature + suffix) for score in scores]


def _baseline(
    model: TrainedModel, collection: Collection, examples: Examples, options: RegionOptions
) -> _Describe | None:
    """Return the function that gives sentences to detected regions in place of the model; None for the model."""
    if options.baseline is None:
        return None
    if options.baseline == "caption":
        captions = _captions(model, collection, examples.images, options)
        return lambda item, detected: [(captions[item.id], captions[item.id])] * len(detected.boxes)
    features = _region_features(examples)
    items = [item for item in collection.items(model.recipe.data.train) if item.image and features.covers(item)]
    train = region_items(items, model.target.lang, features)
    texts = [" ".join(model.tokenizer.words(item.regions[0].text)) for item in train]
    if options.baseline == "frequent":
        ((text, _),) = Counter(texts).most_common(1)
        return lambda item, detected: [(text, text)] * len(detected.boxes)
    codes = _region_codes(model, features, train)

    def nearest(item: Item, detected: DetectedRegions) -> list[RegionText]:
        rows = (normalize(detected.codes, dim=1) @ codes.T).argmax(1).tolist() if len(detected.codes) else []
        return [(texts[row], texts[row]) for row in rows]

    return nearest


@torch.no_grad()
def _region_codes(model: TrainedModel, features: RegionStore, regions: Sequence[RegionItem]) -> torch.Tensor:
    """Compute the codes of annotated regions, of unit length, (N, D)."""
    detector, device, codes = require_detector(model), device_of(model.model), []
    for begin in range(0, len(regions), CODES_PER_BATCH):
        image = collate_features(features.take(regions[begin : begin + CODES_PER_BATCH])).to(device)
        codes.append(normalize(detector.region_codes(image), dim=1))
    return torch.cat(codes)


def _captions(
    model: TrainedModel, collection: Collection, items: Sequence[Item], options: RegionOptions
) -> dict[str, str]:
    """Caption whole images with another model; return the sentences in the tokens of the dense captioner."""
    if options.captioner is None:
        raise SettingsError("region baseline 'caption': expected a captioning model, got none; use --region-captioner")
    captioner = load_trained_model(options.captioner)
    require_captioning(captioner)
    inputs = [GenerationInput(item, None, ()) for item in items]
    n_best = generate([captioner], inputs, open_features(captioner, collection), captioner.recipe.decoding)
    texts = (captioner.tokenizer.decode(hypotheses[0].tokens, detokenise=True) for hypotheses in n_best)
    return {item.id: " ".join(model.tokenizer.words(text)) for item, text in zip(items, texts, strict=True)}


def _retrieval(
    model: TrainedModel, images: Sequence[_DescribedImage], options: RegionOptions, seed: int
) -> list[Score]:
    """Retrieve regions by sentences: a simplified form of Johnson et al. (2016), section 4.3.

    One description of each image, drawn at random, is a query; the paper draws four of an image and averages their
    ranks of images. The candidates are the `REGIONS_PER_IMAGE` most confident regions of all images, ranked by
    log P(sentence | region). A candidate is right if it lies in the image of the query and overlaps the described box
    by `MIN_OVERLAP`; a query whose region was not detected counts as not found, at a rank behind
    all candidates and the largest k.
    """
    images = images[: options.retrieval_images]
    random, queries = np.random.default_rng(seed), []
    for image in images:
        region: Region = image.item.regions[int(random.integers(len(image.item.regions)))]
        queries.append((model.tokenizer.encode(region.text), np.array([region.box])))
    codes = torch.cat([image.detected.codes[:REGIONS_PER_IMAGE] for image in images])
    owner = np.concatenate([[row] * len(image.boxes[:REGIONS_PER_IMAGE]) for row, image in enumerate(images)])
    boxes = np.concatenate([image.boxes[:REGIONS_PER_IMAGE] for image in images])
    log_probs = region_log_probs(model, codes, [tokens for tokens, _ in queries], MEMORY_BUDGET // 2)
    ranks = []
    for row, (_, box) in enumerate(queries):
        order = log_probs[row].argsort(descending=True, stable=True).cpu().numpy()
        right = (owner == row) & (dense_captioning.intersection_over_union(boxes, box)[:, 0] >= MIN_OVERLAP)
        right_ranks = np.flatnonzero(right[order])
        ranks.append(int(right_ranks[0]) + 1 if len(right_ranks) else max(len(order), *RECALLS) + 1)
    signature = f"queries:{len(queries)}|regions:{len(codes)}|iou:{MIN_OVERLAP}|seed:{seed}"
    scores = [Score(f"region_r{k}", recall_at(np.array(ranks), k), signature) for k in RECALLS]
    return [*scores, Score("region_median_rank", median_rank(np.array(ranks)), signature)]


def _shown(images: Sequence[_DescribedImage], collection: Collection) -> list[ImageRegions]:
    """Record some images at regular intervals for the report."""
    count = min(SHOWN_IMAGES, len(images))
    chosen = [images[number * len(images) // count] for number in range(count)]
    return [
        ImageRegions(
            id=image.item.id,
            image=collection.absolute_image_path(image.item),
            detected=tuple(
                RegionRecord(box=tuple(box), text=text, score=score)
                for box, (text, _), score in zip(
                    image.boxes.tolist()[:SHOWN_REGIONS], image.texts, image.detected.scores.tolist(), strict=False
                )
            ),
            annotated=tuple(RegionRecord(box=region.box, text=region.text) for region in image.item.regions),
        )
        for image in chosen
    ]
