"""Search as in Kiros et al. (2014), sections 6 and 7.4: by perplexity, and sentences within a shortlist of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.checkpoint import Checkpoint
from limner.data.batching import Examples, PictureSource
from limner.data.examples import Batch, Example, Item, Visual, collate, collate_visual
from limner.errors import SettingsError
from limner.metrics.base import Score
from limner.metrics.ranks import Ranks, chance_area, match_area, match_curve, owner_ranks, shortlist_ranks
from limner.models.protocols import device_of
from limner.records import RecallCurves

PICTURES_AT_ONCE = 256


@runtime_checkable
class Looker(Protocol):
    """A model that can tell what it sees of each picture as one vector, a convnet's output, say."""

    def look(self, visual: Visual) -> Tensor:
        """What the model sees of each picture, (B, D)."""
        ...


@runtime_checkable
class PairRater(Protocol):
    """A model that rates a sentence for a picture by something else than its probability."""

    def pair_scores(self, visual: Visual, sentences: Batch) -> Tensor:
        """How well each of S sentences fits each of I pictures, (S, I); higher is better."""
        ...


class Matches(NamedTuple):
    """What Figure 2 of Kiros et al. (2014) shows."""

    scores: tuple[Score, ...]
    curves: RecallCurves


def require_shortlist(size: int | None, items: Sequence[Item]) -> None:
    """Refuse a shortlist of more pictures than there are, before any work is done: SettingsError.

    Where there are none at all, nothing is searched, and nothing refused.
    """
    pictures = sum(item.medium is not None for item in items)
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
        near: of `nearest_pictures`, (I, k_r).
        signature: of how the ratings were made.

    Returns:
        `text_to_image_match_area`, `image_to_text_match_area` and both curves.
    """
    owners = np.asarray(examples.owners, dtype=np.int64)
    sentences, pictures = ratings.shape
    found = owner_ranks(ratings, owners), np.full(sentences, pictures)
    right = np.bincount(owners, minlength=pictures)
    listed = shortlist_ranks(ratings, owners, near.numpy()), right[near.numpy()].sum(axis=1)
    told = {
        "text_to_image": (*found, np.ones(sentences, dtype=np.int64), f"candidates:{pictures}"),
        "image_to_text": (*listed, right, f"shortlist:{near.shape[1]}|candidates:{_span(listed[1])}"),
    }
    scores = tuple(
        Score(
            f"{direction}_match_area",
            match_area(ranks, candidates),
            f"queries:{len(ranks)}|{where}|chance:{chance_area(answers, candidates):.1f}|ties:worst|scale:0-100|"
            f"{signature}",
        )
        for direction, (ranks, candidates, answers, where) in told.items()
    )
    curves = {direction: match_curve(ranks, candidates) for direction, (ranks, candidates, _, _) in told.items()}
    return Matches(scores, RecallCurves(**curves))


def _span(counts: Ranks) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}-{high}"


@torch.inference_mode()
def nearest_pictures(model: Checkpoint, items: Sequence[Item], pictures: PictureSource, count: int) -> Tensor:
    """The nearest pictures to each of I, itself the first of them, (I, count); Euclidean distance.

    In feature space: between what a model that is a `Looker` sees of the pictures, otherwise between what is stored.
    """
    device = device_of(model.model)
    seen = []
    for begin in range(0, len(items), PICTURES_AT_ONCE):
        visual = collate_visual(pictures.take(items[begin : begin + PICTURES_AT_ONCE])).to(device)
        seen.append(model.model.look(visual) if isinstance(model.model, Looker) else _stored(visual))
    vectors = torch.cat(seen).float()
    near = []
    for begin in range(0, len(items), PICTURES_AT_ONCE):
        distances = torch.cdist(vectors[begin : begin + PICTURES_AT_ONCE], vectors)
        own = torch.arange(begin, begin + len(distances), device=device)
        distances[torch.arange(len(own), device=device), own] = -1.0  # before others that look the same
        near.append(distances.topk(count, largest=False).indices)
    return torch.cat(near).cpu()


def _stored(visual: Visual) -> Tensor:
    forms = [form.flatten(1) for form in (visual.vector, visual.grid, visual.maps) if form is not None]
    return torch.cat(forms, dim=1)


@torch.inference_mode()
def own_ratings(
    model: Checkpoint, rater: PairRater, examples: Examples, pictures: PictureSource
) -> NDArray[np.float32]:
    """What a model that is a `PairRater` makes of every sentence with every picture, (S, I)."""
    device = device_of(model.model)
    sentences = collate([Example("", target) for target in examples.targets]).to(device)
    parts = []
    for begin in range(0, len(examples.items), PICTURES_AT_ONCE):
        some = examples.items[begin : begin + PICTURES_AT_ONCE]
        parts.append(rater.pair_scores(collate_visual(pictures.take(some)).to(device), sentences).float().cpu())
    ratings: NDArray[np.float32] = torch.cat(parts, dim=1).numpy()
    return ratings
