"""Search as in Kiros et al. (2014), sections 6 and 7.4: by perplexity, and sentences within a shortlist of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.dataset import Examples, FeatureSource
from limner.data.examples import Example, ImageFeatures, Item, collate, collate_features
from limner.decoding.scoring import BUDGET, room_for
from limner.errors import SettingsError
from limner.metrics.base import Score
from limner.metrics.ranks import Ranks, chance_area, chance_curve, match_area, match_curve, owner_ranks, shortlist_ranks
from limner.models.protocols import ImageVectorModel, PairRanker, device_of
from limner.runs.records import RecallCurves
from limner.runs.trained_model import TrainedModel

IMAGES_PER_BATCH = 256


class Asked(NamedTuple):
    """What came of asking in one direction."""

    ranks: Ranks  # (Q,) of each query's match
    candidates: Ranks  # (Q,) how many each query has
    right: Ranks  # (Q,) how many of these are right
    where: str  # what the candidates are, for the signature


class Matches(NamedTuple):
    """What Figure 2 of Kiros et al. (2014) shows."""

    scores: tuple[Score, ...]
    curves: RecallCurves
    chance: RecallCurves
    """The curves of a random order."""


def require_shortlist(size: int | None, items: Sequence[Item]) -> None:
    """Refuse a shortlist of more pictures than there are, before any work is done: SettingsError.

    Where there are none at all, nothing is searched, and nothing refused.
    """
    pictures = sum(item.media_path is not None for item in items)
    if size is not None and 0 < pictures < size:
        raise SettingsError(
            f"evaluation.shortlist: {size}, and only {pictures} pictures can be searched; "
            f"take at most that many: evaluation.shortlist={pictures}"
        )


def measure_matches(ratings: NDArray[np.floating], examples: Examples, near: Tensor, signature: str) -> Matches:
    """Ask with every sentence for its picture, and with every picture for one of its sentences in its shortlist.

    A picture is matched by the first of its own sentences. They are always among the candidates, because it is the
    nearest picture to itself.

    Args:
        ratings: (S, I), higher is better; for a sentence it orders the pictures, for a picture the sentences.
        examples: the sentences, and whose they are.
        near: of `nearest_images`, (I, k_r).
        signature: of how the ratings were made.

    Returns:
        `text_to_image_match_area`, `image_to_text_match_area` and both curves.
    """
    owners = np.asarray(examples.owners, dtype=np.int64)
    sentences, pictures = ratings.shape
    right = np.bincount(owners, minlength=pictures)
    listed = right[near.numpy()].sum(axis=1)
    told = {
        "text_to_image": Asked(
            ranks=owner_ranks(ratings, owners),
            candidates=np.full(sentences, pictures),
            right=np.ones(sentences, dtype=np.int64),
            where=f"candidates:{pictures}",
        ),
        "image_to_text": Asked(
            ranks=shortlist_ranks(ratings, owners, near.numpy()),
            candidates=listed,
            right=right,
            where=f"shortlist:{near.shape[1]}|candidates:{_span(listed)}",
        ),
    }
    scores = tuple(
        Score(
            f"{direction}_match_area",
            match_area(asked.ranks, asked.candidates),
            f"queries:{len(asked.ranks)}|{asked.where}|chance:{chance_area(asked.right, asked.candidates):.1f}|"
            f"ties:worst|scale:0-100|{signature}",
        )
        for direction, asked in told.items()
    )
    return Matches(
        scores,
        RecallCurves(**{way: match_curve(asked.ranks, asked.candidates) for way, asked in told.items()}),
        RecallCurves(**{way: chance_curve(asked.right, asked.candidates) for way, asked in told.items()}),
    )


def _span(counts: Ranks) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}-{high}"


@torch.inference_mode()
def nearest_images(
    model: TrainedModel, items: Sequence[Item], pictures: FeatureSource, count: int, *, budget: int = BUDGET
) -> Tensor:
    """The nearest pictures to each of I, itself the first of them, (I, count); Euclidean distance.

    In feature space: between the vectors that an `ImageVectorModel` computes of the images; between the stored
    features, where the model is none or uses no image.

    Args:
        model: looks at the pictures.
        items: I items with a picture.
        pictures: where their features are.
        count: k_r.
        budget: bytes of working memory; the vectors of more pictures lie in a file.
    """
    device = device_of(model.model)
    vectors = _seen(model, items, pictures, budget)
    at_once = min(IMAGES_PER_BATCH, max(1, budget // (8 * len(items))))
    near = []
    for begin in range(0, len(items), at_once):
        some = torch.from_numpy(vectors[begin : begin + at_once]).to(device)
        distances = torch.empty(len(some), len(items), device=device)
        for left in range(0, len(items), IMAGES_PER_BATCH):
            others = torch.from_numpy(vectors[left : left + IMAGES_PER_BATCH]).to(device)
            distances[:, left : left + len(others)] = torch.cdist(some, others)
        row = torch.arange(len(some), device=device)
        distances[row, begin + row] = -1.0  # before others that look the same
        near.append(distances.topk(count, largest=False).indices)
    return torch.cat(near).cpu()


def _seen(model: TrainedModel, items: Sequence[Item], pictures: FeatureSource, budget: int) -> NDArray[np.float32]:
    """One vector a picture, (I, D): what the model sees of it, or what is stored of it."""
    own = model.model
    image_vector = own.image_vector if own.uses_image and isinstance(own, ImageVectorModel) else _stored
    vectors = None
    for begin in range(0, len(items), IMAGES_PER_BATCH):
        some = items[begin : begin + IMAGES_PER_BATCH]
        seen = image_vector(collate_features(pictures.take(some)).to(device_of(own))).float().cpu().numpy()
        if vectors is None:
            vectors = room_for((len(items), seen.shape[1]), budget)
        vectors[begin : begin + len(some)] = seen
    assert vectors is not None, "whoever searches has pictures"
    return vectors


def _stored(image: ImageFeatures) -> Tensor:
    forms = [form.flatten(1) for form in (image.pooled, image.grid, image.maps) if form is not None]
    return torch.cat(forms, dim=1)


@torch.inference_mode()
def own_ratings(
    model: TrainedModel, rater: PairRanker, examples: Examples, pictures: FeatureSource, into: NDArray[np.float32]
) -> None:
    """Write down what a model that is a `PairRanker` makes of every sentence with every picture.

    Args:
        model: where it is.
        rater: the same model.
        examples: the sentences, and whose they are.
        pictures: where the features are.
        into: (S, I); it may be a file, and is written some pictures at a time.
    """
    device = device_of(model.model)
    sentences = collate([Example("", target) for target in examples.targets]).to(device)
    for begin in range(0, len(examples.items), IMAGES_PER_BATCH):
        some = examples.items[begin : begin + IMAGES_PER_BATCH]
        rated = rater.pair_scores(collate_features(pictures.take(some)).to(device), sentences)
        into[:, begin : begin + len(some)] = rated.float().cpu().numpy()
