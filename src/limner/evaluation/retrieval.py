"""Evaluation of image-text retrieval in both directions."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item, StoredFeatures
from limner.errors import counted
from limner.metrics.base import Score
from limner.metrics.ranks import (
    Ranks,
    RetrievalRanks,
    chance_area,
    chance_curve,
    match_area,
    match_curve,
    owner_ranks,
    rank_all,
    retrieval_curves,
    retrieval_scores,
    shortlist_ranks,
)
from limner.models.protocols import PairRanker
from limner.models.two_tower import TwoTower
from limner.process import all_threads
from limner.progress import Progress
from limner.retrieval.all_pairs import MEMORY_BUDGET, pair_arithmetic, pair_log_probs
from limner.retrieval.marginal import NormalisedScores, normalised_log_probs
from limner.retrieval.shortlist import fill_pair_scores, nearest_images, require_shortlist
from limner.runs.records import (
    ImageToTextExample,
    RecallCurves,
    Retrieval,
    RetrievedImage,
    RetrievedSentence,
    TextToImageExample,
)
from limner.runs.trained_model import TrainedModel

SHOWN_QUERIES = 12
"""Number of queries of each direction in the report."""
SHOWN_RESULTS = 5
"""Number of results of each of these queries."""
MEASURED_SENTENCES, MEASURED_IMAGES = 80, 2048
"""Size of the block from which the time of retrieval is estimated."""
MANY_PAIRS = 1_000_000
"""Number of pairs from which it is estimated."""

logger = logging.getLogger(__name__)


class RetrievalSettings(NamedTuple):
    """Settings of the evaluation of retrieval."""

    shortlist: int | None = None
    """k_r, the size of the shortlist of Kiros et al. (2014); None leaves their protocol out."""
    budget: int = MEMORY_BUDGET
    """Working memory in bytes."""
    seed: int = 1
    """Seed of the queries in the report."""
    exact: bool = False
    """Whether all pairs are scored in float32 by whole softmaxes."""


class RetrievalEvaluation(NamedTuple):
    """Scores of retrieval, and its record for the report."""

    scores: tuple[Score, ...]
    shown: Retrieval | None


def evaluate_retrieval(
    model: TrainedModel,
    examples: Examples,
    collection: Collection,
    others: Sequence[Item],
    settings: RetrievalSettings,
    *,
    mean: StoredFeatures | None = None,
    on_progress: Progress | None = None,
) -> RetrievalEvaluation:
    """Retrieve the sentences of a split by its images, and its images by its sentences.

    Args:
        model: trained model.
        examples: sentences and images of the split; items without an image are left out.
        collection: collection of the split.
        others: items of the images of the marginal P(w), see `normalised_log_probs`.
        settings: shortlist, memory and seed.
        mean: mean features of the training split, which the protocol with a shortlist needs.
        on_progress: called with the number of pairs done and their total.

    Raises:
        SettingsError: the shortlist is longer than the number of images.
    """
    candidates = _with_images(examples)
    if candidates is None:
        return RetrievalEvaluation((), None)
    assert candidates.features is not None, "retrieval needs features"
    require_shortlist(settings.shortlist, candidates.items)
    if isinstance(model.model, TwoTower):
        others, mean = [], None
    pairs = normalised_log_probs(
        model,
        candidates.targets,
        candidates.items,
        candidates.features,
        others,
        mean=mean if settings.shortlist else None,
        budget=settings.budget,
        exact=settings.exact,
        on_progress=on_progress,
    )
    ranks = rank_all(pairs.normalised.numpy(), candidates.owners)
    precision = f"|{pair_arithmetic(model, exact=settings.exact).signature}"
    marginal = "|score:cosine" if isinstance(model.model, TwoTower) else f"|marginal:{len(others) or 'own'}"
    scores = tuple(
        score._replace(
            signature=score.signature + precision + (marginal if score.name.startswith("image_to_text") else "")
        )
        for score in retrieval_scores(ranks, candidates.owners)
    )
    shown = _record(pairs.normalised, candidates, collection, ranks, settings.seed)
    if settings.shortlist:
        matches = _evaluate_shortlists(model, candidates, pairs, settings, precision)
        scores += matches.scores
        curves = {"match_curves": matches.curves, "chance_curves": matches.chance}
        shown = shown.model_copy(update={"shortlist": settings.shortlist, **curves})
    return RetrievalEvaluation(scores, shown)


class RetrievalCost(NamedTuple):
    """What the retrieval of a split costs, from the time that a part of it takes."""

    sentences: int
    images: int
    seconds: float
    threads: int

    def __str__(self) -> str:
        minutes = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"
        return (
            f"retrieval: {self.sentences:,} sentences with {self.images:,} images are "
            f"{self.sentences * self.images:,} pairs, about {minutes} on {counted(self.threads, 'thread')}"
        )


@torch.inference_mode()
def retrieval_cost(
    model: TrainedModel, examples: Examples, others: Sequence[Item], exact: bool
) -> RetrievalCost | None:
    """Measure a block of `MEASURED_SENTENCES` and `MEASURED_IMAGES`, and estimate `evaluate_retrieval` from it.

    Returns:
        The cost; None for fewer than `MANY_PAIRS`, and where an item has no image.
    """
    count, images = len(examples.targets), [*examples.items, *others]
    if count * len(images) < MANY_PAIRS or any(item.media_path is None for item in images):
        return None
    targets = [examples.targets[row] for row in range(0, count, max(1, count // MEASURED_SENTENCES))]
    bf16, tail = pair_arithmetic(model, exact=exact)
    with all_threads():
        reports, threads = [(0, time.perf_counter())], torch.get_num_threads()
        pair_log_probs(
            model.model,
            targets,
            images[:MEASURED_IMAGES],
            examples.features,
            bf16=bf16,
            tail=tail,
            on_progress=lambda done, total: reports.append((done, time.perf_counter())),
        )
    # The first part takes longer, as what all parts need is computed with it.
    done, ended = reports[-1]
    before, began = reports[1] if reports[1][0] < done else reports[0]
    images_share = min(1, MEASURED_IMAGES / len(images))
    share = _prefixes(targets) / _prefixes(examples.targets) * images_share * (done - before) / done
    return RetrievalCost(count, len(images), (ended - began) / share, threads)


def _prefixes(targets: Sequence[Sequence[int]]) -> int:
    """Return the number of distinct prefixes of sentences, to which the time of retrieval is proportional."""
    return len({tuple(target[:length]) for target in targets for length in range(len(target) + 1)})


def _with_images(examples: Examples) -> Examples | None:
    """Return the examples of items with an image; None if there are none."""
    items = [item for item in examples.items if item.media_path is not None]
    if len(items) == len(examples.items):
        return examples
    logger.warning(
        "retrieval leaves out %s without an image or audio file", counted(len(examples.items) - len(items), "item")
    )
    return Examples(items, examples.target, examples.features) if items else None


class ShortlistEvaluation(NamedTuple):
    """Scores and curves of Kiros et al. (2014), Figure 2."""

    scores: tuple[Score, ...]
    curves: RecallCurves
    chance: RecallCurves
    """Expected curves of a random order."""


def _evaluate_shortlists(
    model: TrainedModel, examples: Examples, pairs: NormalisedScores, settings: RetrievalSettings, precision: str
) -> ShortlistEvaluation:
    """Rank images by perplexity, and sentences by its ratio to the perplexity given the mean image.

    Kiros et al. (2014), section 6. The logarithm of the ratio is (log P(w|mean) - log P(w|I)) / N; for one sentence it
    orders the images as the perplexity does. A `PairRanker` ranks by its own score.
    """
    assert examples.features is not None and settings.shortlist is not None
    nearest = nearest_images(model, examples.items, examples.features, settings.shortlist, budget=settings.budget)
    scores = pairs.normalised.numpy()  # modified in place, since it may be stored in a file; it is not used afterwards
    if isinstance(model.model, PairRanker):
        fill_pair_scores(model, model.model, examples, examples.features, scores)
        signature = "score:the model's own"
    else:
        assert pairs.mean is not None, "the protocol with a shortlist needs mean features"
        lengths = torch.tensor([len(target) + 1 for target in examples.targets])
        offset = (pairs.marginal - pairs.mean).unsqueeze(1).numpy()
        signature = "score:perplexity ratio to the mean image" + precision
        scores += offset
        scores /= lengths.unsqueeze(1).numpy()
    return match_scores(scores, examples, nearest, signature)


class _Queries(NamedTuple):
    """Outcome of the Q queries of one direction."""

    ranks: Ranks  # (Q,): rank of the first relevant candidate
    candidates: Ranks  # (Q,): number of candidates
    relevant: Ranks  # (Q,): number of relevant candidates
    description: str  # candidates, for the signature


def match_scores(
    scores: NDArray[np.floating], examples: Examples, nearest: Tensor, signature: str
) -> ShortlistEvaluation:
    """Evaluate text-to-image retrieval among all images, and image-to-text retrieval within shortlists.

    The match of an image is the first of its own sentences. These are always candidates, because the nearest image of
    an image is itself.

    Args:
        scores: scores of all pairs, (S, I); they rank the images of a sentence and the sentences of an image.
        examples: S sentences of I items.
        nearest: result of `nearest_images`, (I, k_r).
        signature: settings of the scores.

    Returns:
        `text_to_image_match_area`, `image_to_text_match_area` and the curves of both.
    """
    owners = np.asarray(examples.owners, dtype=np.int64)
    sentences, images = scores.shape
    own_sentences = np.bincount(owners, minlength=images)
    listed = own_sentences[nearest.numpy()].sum(axis=1)
    directions = {
        "text_to_image": _Queries(
            ranks=owner_ranks(scores, owners),
            candidates=np.full(sentences, images),
            relevant=np.ones(sentences, dtype=np.int64),
            description=f"candidates:{images}",
        ),
        "image_to_text": _Queries(
            ranks=shortlist_ranks(scores, owners, nearest.numpy()),
            candidates=listed,
            relevant=own_sentences,
            description=f"shortlist:{nearest.shape[1]}|candidates:{_range(listed)}",
        ),
    }
    areas = tuple(
        Score(
            f"{direction}_match_area",
            match_area(queries.ranks, queries.candidates),
            f"queries:{len(queries.ranks)}|{queries.description}|"
            f"chance:{chance_area(queries.relevant, queries.candidates):.1f}|ties:worst|scale:0-100|{signature}",
        )
        for direction, queries in directions.items()
    )
    return ShortlistEvaluation(
        areas,
        RecallCurves(**{name: match_curve(queries.ranks, queries.candidates) for name, queries in directions.items()}),
        RecallCurves(
            **{name: chance_curve(queries.relevant, queries.candidates) for name, queries in directions.items()}
        ),
    )


def _range(counts: Ranks) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}-{high}"


def _record(scores: Tensor, examples: Examples, collection: Collection, ranks: RetrievalRanks, seed: int) -> Retrieval:
    """Return the curves of retrieval, and random queries of both directions with their first results."""
    random = np.random.default_rng(seed)
    items, owners = examples.items, examples.owners
    images = random.permutation(len(items))[:SHOWN_QUERIES].tolist()
    sentences = random.permutation(len(examples))[:SHOWN_QUERIES].tolist()
    shown_images = {*images, *_first(scores[sentences]).flatten().tolist()}
    paths = {row: collection.absolute_image_path(items[row]) for row in shown_images}
    return Retrieval(
        image_to_text=tuple(
            ImageToTextExample(
                id=items[row].id,
                image=paths[row],
                rank=int(ranks.image_to_text[row]),
                top=tuple(
                    RetrievedSentence(text=examples.text(result), right=owners[result] == row)
                    for result in _first(scores[:, row]).tolist()
                ),
            )
            for row in images
        ),
        text_to_image=tuple(
            TextToImageExample(
                text=examples.text(row),
                rank=int(ranks.text_to_image[row]),
                image_id=items[owners[row]].id,
                top=tuple(
                    RetrievedImage(id=items[result].id, image=paths[result], right=result == owners[row])
                    for result in _first(scores[row]).tolist()
                ),
            )
            for row in sentences
        ),
        curves=RecallCurves(**retrieval_curves(ranks, owners)),
    )


def _first(scores: Tensor) -> Tensor:
    """Return the positions of the highest scores of the last dimension, best first."""
    return scores.topk(min(SHOWN_RESULTS, scores.shape[-1])).indices
