"""Retrieval of regions by a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limner.data.collection import Collection
from limner.data.examples import Example, ImageFeatures, collate
from limner.errors import CollectionError
from limner.features.region_store import RegionStore
from limner.inference.collection_features import open_features
from limner.inference.region_captioner import describe_regions, locate_regions, require_detector
from limner.inference.scorer import require_words
from limner.progress import Progress
from limner.retrieval.all_pairs import MEMORY_BUDGET
from limner.retrieval.prefix_tree import tree_log_probs
from limner.runs.trained_model import TrainedModel

REGIONS_PER_IMAGE = 100
"""Number of detected regions of an image that are searched, Johnson et al. (2016), section 4.3."""


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
    require_words(model, [sentence])
    features = open_features(model, collection)
    assert isinstance(features, RegionStore), "a dense captioner reads features of regions"
    items = [item for item in collection.items(split) if item.image and features.covers(item)]
    if not items:
        raise CollectionError(
            f"{collection.path}: no image with features to search; name another split, or run 'limner features'"
        )
    query = [model.tokenizer.encode(sentence)]
    best: list[tuple[RetrievedRegion, Tensor]] = []  # with the code of the region
    located = locate_regions(model, items, features, count=REGIONS_PER_IMAGE, min_confidence=min_confidence)
    for done, one in enumerate(located, 1):
        codes, path = one.detected.codes, str(collection.image_path(one.item))
        scores = region_log_probs(model, codes, query)[0].tolist() if len(codes) else []
        regions = zip(one.boxes.tolist(), scores, one.detected.scores.tolist(), codes, strict=True)
        best += [
            (RetrievedRegion(one.item.id, path, (left, top, width, height), sentence, score, confidence, ""), code)
            for (left, top, width, height), score, confidence, code in regions
        ]
        best = sorted(best, key=lambda pair: -pair[0].score)[:count]
        if on_progress is not None:
            on_progress(done, len(items))
    if not best:
        return []
    texts = describe_regions(model, torch.stack([code for _, code in best]), model.recipe.decoding)
    return [one._replace(description=text.text) for (one, _), text in zip(best, texts, strict=True)]


@torch.inference_mode()
def region_log_probs(
    model: TrainedModel, codes: Tensor, sentences: Sequence[Sequence[int]], budget: int = MEMORY_BUDGET
) -> Tensor:
    """Compute log P(sentence | region) of S sentences and R regions, (S, R).

    Args:
        model: dense captioner.
        codes: codes of the regions, (R, D), as `detect_regions` returns them.
        sentences: token ids of each sentence.
        budget: working memory in bytes.
    """
    if not len(codes):
        return codes.new_zeros(len(sentences), 0)
    batch = collate([Example("", sentence) for sentence in sentences]).to(codes.device)
    present = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
    return tree_log_probs(model.model, ImageFeatures(present, pooled=codes), batch, budget)
