"""Search by probability: the score of every sentence with every picture, and rankings made from it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limner.data.collection import Collection
from limner.data.dataset import Examples, FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.decoding.scoring import BUDGET, Progress, room_for, score_tiles
from limner.device import native_bf16
from limner.errors import CollectionError
from limner.features.sources import FeatureStore
from limner.metrics.base import Score
from limner.metrics.ranks import RetrievalRanks, rank_all, retrieval_curves, retrieval_scores
from limner.models.protocols import Model, PairRanker, device_of
from limner.retrieval.shortlist import (
    Matches,
    measure_matches,
    nearest_images,
    own_ratings,
    require_shortlist,
)
from limner.runs.records import ImageQuery, RecallCurves, Retrieval, RetrievedImage, RetrievedSentence, SentenceQuery
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer

MARGINAL_IMAGES = 1000
SHOWN_QUERIES = 12
SHOWN_FOUND = 5

logger = logging.getLogger(__name__)


@torch.inference_mode()
def log_marginal(
    model: Model,
    targets: Sequence[Sequence[int]],
    others: Sequence[Item],
    pictures: FeatureSource | None,
    *,
    budget: int = BUDGET,
) -> Tensor:
    """Log of the mean of P(w|I') over some pictures, (S,): the denominator of Mao et al. (2015), eq. 7.

    Their sum instead of the mean changes no ranking.
    """
    marginal = Marginal(len(targets))
    for rows, _, found in score_tiles(model, targets, others, pictures, budget=budget):
        marginal.add(rows, found)
    return marginal.log_probs()


class Marginal:
    """Sums up the mean of P(w|I') while the pictures pass by, so that no (S, I') matrix is kept."""

    def __init__(self, sentences: int) -> None:
        self._total = torch.full((sentences,), -torch.inf, dtype=torch.float64)
        self._count = torch.zeros(sentences)

    def add(self, rows: Sequence[int], log_probs: Tensor) -> None:
        """Take in log P(w|I') of some sentences with some pictures, (rows, I')."""
        if log_probs.shape[1]:
            more = torch.logsumexp(log_probs.double(), 1)
            self._total[rows] = torch.logaddexp(self._total[rows], more)
            self._count[rows] += log_probs.shape[1]

    def log_probs(self) -> Tensor:
        """Log P(w) of each sentence, (S,)."""
        return (self._total - self._count.log()).float()


class AllPairs(NamedTuple):
    """Every sentence with every picture."""

    normalised: Tensor  # (S, I): log P(w|I) - log P(w)
    marginal: Tensor  # (S,): log P(w)
    mean: Tensor | None  # (S,): log P(w|mean picture)


class WithMeanFeatures:
    """Pictures, and one more: the mean of them all."""

    def __init__(self, pictures: FeatureSource, mean: StoredFeatures) -> None:
        self.pictures, self.mean = pictures, mean

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """What is seen of each item's picture, of `MEAN` the mean."""
        seen = iter(self.pictures.take([item for item in items if item is not MEAN]))
        return [self.mean if item is MEAN else next(seen) for item in items]


MEAN = Item("the mean picture", "", image="")


@torch.inference_mode()
def all_pairs(
    model: TrainedModel,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    pictures: FeatureSource,
    others: Sequence[Item],
    *,
    mean: StoredFeatures | None = None,
    budget: int = BUDGET,
    progress: Progress | None = None,
) -> AllPairs:
    """Score every sentence with every picture: log P(w|I) - log P(w).

    For a given picture this ranks sentences by eq. 7 of Mao et al. (2015); for a given sentence it ranks pictures
    by P(w|I), since P(w) is the same for all of them.

    Args:
        model: gives the probabilities.
        targets: S sentences as ids, without signs.
        items: I items with a picture.
        pictures: where the features are.
        others: the pictures of the marginal P(w); none for the items' own.
        mean: one more picture, which log P(w|mean) is given for.
        budget: bytes of working memory; a larger matrix lies in a file.
        progress: told the pairs that are done, and how many there are.

    Raises:
        CollectionError: an item has no picture.
    """
    missing = [item.id for item in items if item.media_path is None]
    if missing:
        raise CollectionError(
            f"item '{missing[0]}' has no picture and no sound; search needs one for every item of the split"
        )
    matrix, marginal = room_for((len(targets), len(items)), budget), Marginal(len(targets))
    shown = [*items, *others, *([MEAN] if mean is not None else [])]
    source = WithMeanFeatures(pictures, mean) if mean is not None else pictures
    of_mean = torch.empty(len(targets)) if mean is not None else None
    for rows, columns, found in score_tiles(
        model.model, targets, shown, source, budget=budget, bf16=in_bf16(model), progress=progress
    ):
        if of_mean is not None and columns.stop == len(shown):
            of_mean[rows], found = found[:, -1].float(), found[:, :-1]
        own = found[:, : max(0, len(items) - columns.start)]
        matrix[rows, columns.start : columns.start + own.shape[1]] = own.numpy()
        marginal.add(rows, found[:, own.shape[1] :] if others else own)
    matrix -= marginal.log_probs().numpy()[:, None]
    return AllPairs(torch.from_numpy(matrix), marginal.log_probs(), of_mean)


def in_bf16(model: TrainedModel) -> bool:
    """Whether all pairs are scored in bfloat16: where the hardware does so by itself and the recipe allows it."""
    if getattr(model.model, "exact_pairs", False):
        return False
    return native_bf16(device_of(model.model)) and model.recipe.training.precision != "fp32"


def sampled_items(collection: Collection, split: str, pictures: FeatureStore, count: int, seed: int) -> list[Item]:
    """Up to `count` items of a split that have a picture, drawn by the seed; none if there is no such split."""
    if split not in collection.splits():
        return []
    items = [item for item in collection.items(split) if item.media_path is not None and pictures.covers(item)]
    order = np.random.default_rng(seed).permutation(len(items))[:count]
    return [items[row] for row in sorted(order)]


class RetrievalEvaluation(NamedTuple):
    """Search measured both ways."""

    scores: tuple[Score, ...]
    shown: Retrieval | None
    """Examples and curves for the report."""


def evaluate_retrieval(
    model: TrainedModel,
    examples: Examples,
    collection: Collection,
    others: Sequence[Item],
    *,
    shortlist: int | None = None,
    mean: StoredFeatures | None = None,
    budget: int,
    seed: int,
    progress: Progress | None = None,
) -> RetrievalEvaluation:
    """Search the sentences of a split by its pictures, and its pictures by its sentences.

    Args:
        model: gives the probabilities.
        examples: of the split; items without a picture are left out.
        collection: where they are from.
        others: the pictures of the marginal P(w), see `all_pairs`.
        shortlist: k_r of Kiros et al. (2014), whose search is measured as well; none leaves that out.
        mean: the mean picture of the training split, which that search compares with.
        budget: bytes of working memory.
        seed: of the examples shown.
        progress: told the pictures that are done, and how many there are.
    """
    searched = _with_pictures(examples, model.tokenizer)
    if searched is None:
        return RetrievalEvaluation((), None)
    assert searched.features is not None, "whoever searches has asked for pictures"
    require_shortlist(shortlist, searched.items)
    pairs = all_pairs(
        model, searched.targets, searched.items, searched.features, others,
        mean=mean if shortlist else None, budget=budget, progress=progress,
    )  # fmt: skip
    matrix = pairs.normalised
    ranks = rank_all(matrix.numpy(), searched.owners)
    arithmetic = "|bf16" if in_bf16(model) else "|fp32"
    normalised = f"|marginal:{len(others) or 'own'}"
    scores = tuple(
        score._replace(
            signature=score.signature + arithmetic + (normalised if score.name.startswith("image_to_text") else "")
        )
        for score in retrieval_scores(ranks, searched.owners)
    )
    curves = RecallCurves(**retrieval_curves(ranks, searched.owners))
    shown = _shown(matrix, searched, collection, ranks, curves, seed)
    if shortlist:
        matches = _matches(model, searched, pairs, shortlist, arithmetic, budget)
        scores += matches.scores
        found = {"match_curves": matches.curves, "chance_curves": matches.chance}
        shown = shown.model_copy(update={"shortlist": shortlist, **found})
    return RetrievalEvaluation(scores, shown)


def _matches(
    model: TrainedModel, searched: Examples, pairs: AllPairs, shortlist: int, arithmetic: str, budget: int
) -> Matches:
    """Kiros et al. (2014), section 6: pictures by perplexity, sentences by its ratio to that with the mean picture.

    The logarithm of the ratio is (log P(w|mean) - log P(w|I)) / N; for one sentence it orders the pictures as the
    perplexity does.
    """
    assert searched.features is not None
    near = nearest_images(model, searched.items, searched.features, shortlist, budget=budget)
    ratings = pairs.normalised.numpy()  # changed in place: it may be a file, and nobody reads it after this
    if isinstance(model.model, PairRanker):
        own_ratings(model, model.model, searched, searched.features, ratings)
        how = "score:the model's own"
    else:
        assert pairs.mean is not None, "whoever asks for a shortlist gives the mean picture"
        words = torch.tensor([len(target) + 1 for target in searched.targets])
        offset = (pairs.marginal - pairs.mean).unsqueeze(1).numpy()
        how = "score:perplexity ratio to the mean picture" + arithmetic
        ratings += offset
        ratings /= words.unsqueeze(1).numpy()
    return measure_matches(ratings, searched, near, how)


def _with_pictures(examples: Examples, tokenizer: Tokenizer) -> Examples | None:
    """Those about items that have a picture; the others cannot be searched."""
    items = [item for item in examples.items if item.media_path is not None]
    if len(items) == len(examples.items):
        return examples
    absent = len(examples.items) - len(items)
    logger.warning("search is measured without the %d items that have no picture", absent)
    if not items:
        return None
    return Examples(items, examples.target, examples.features)


def _shown(
    matrix: Tensor,
    examples: Examples,
    collection: Collection,
    ranks: RetrievalRanks,
    curves: RecallCurves,
    seed: int,
) -> Retrieval:
    """Some queries both ways with what is found first, drawn by the seed."""
    random = np.random.default_rng(seed)
    items, owners = examples.items, examples.owners
    asked = random.permutation(len(items))[:SHOWN_QUERIES].tolist()
    said = random.permutation(len(examples))[:SHOWN_QUERIES].tolist()
    image = {
        row: collection.absolute_image_path(items[row]) for row in {*asked, *_first(matrix[said]).flatten().tolist()}
    }
    return Retrieval(
        image_to_text=tuple(
            ImageQuery(
                id=items[row].id,
                image=image[row],
                rank=int(ranks.image_to_text[row]),
                top=tuple(
                    RetrievedSentence(text=examples.texts[found], right=owners[found] == row)
                    for found in _first(matrix[:, row]).tolist()
                ),
            )
            for row in asked
        ),
        text_to_image=tuple(
            SentenceQuery(
                text=examples.texts[row],
                rank=int(ranks.text_to_image[row]),
                image_id=items[owners[row]].id,
                top=tuple(
                    RetrievedImage(id=items[found].id, image=image[found], right=found == owners[row])
                    for found in _first(matrix[row]).tolist()
                ),
            )
            for row in said
        ),
        curves=curves,
    )


def _first(scores: Tensor) -> Tensor:
    """Where the highest scores of the last dimension are, the best first."""
    return scores.topk(min(SHOWN_FOUND, scores.shape[-1])).indices
