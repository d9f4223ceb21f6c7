"""Evaluation of image-text retrieval in both directions, and with shortlists of Kiros et al. (2014), section 6."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.collection import Collection
from limner.data.dataset import Examples, FeatureSource
from limner.data.examples import Example, ImageFeatures, Item, StoredFeatures, collate, collate_features
from limner.errors import SettingsError, counted
from limner.metrics import ranks
from limner.metrics.base import Score
from limner.metrics.ranks import Ranks, RetrievalRanks
from limner.models.protocols import ImageVectorModel, PairRanker, device_of
from limner.models.two_tower import TwoTower
from limner.progress import Progress
from limner.retrieval.all_pairs import MEMORY_BUDGET, allocate_matrix
from limner.retrieval.marginal import NormalisedScores, normalised_log_probs
from limner.runs import evaluations
from limner.runs.evaluations import RecallCurves, Retrieval
from limner.runs.trained_model import TrainedModel

SHOWN_QUERIES = 12  # number of queries of each direction in the report
SHOWN_RESULTS = 5  # number of results of each of these queries

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
    """Whether retrieval is computed in float32 even where bfloat16 is faster."""


def evaluate_retrieval(
    model: TrainedModel,
    examples: Examples,
    collection: Collection,
    marginal_images: Sequence[Item],
    settings: RetrievalSettings,
    *,
    mean: StoredFeatures | None = None,
    on_progress: Progress | None = None,
) -> tuple[list[Score], Retrieval | None]:
    """Retrieve the sentences of a split by its images, and its images by its sentences: scores, and the record of them.

    Items without an image are left out. `marginal_images` give the marginal P(w), see `normalised_log_probs`; the
    protocol with a shortlist needs the mean features of the training split.
    """
    candidates = _with_images(examples)
    if candidates is None:
        return [], None
    assert candidates.features is not None, "retrieval needs features"
    if isinstance(model.model, TwoTower):
        marginal_images, mean = [], None
    pairs = normalised_log_probs(
        model,
        candidates.targets,
        candidates.items,
        candidates.features,
        marginal_images,
        mean=mean if settings.shortlist else None,
        budget=settings.budget,
        exact=settings.exact,
        on_progress=on_progress,
    )
    all_ranks = ranks.rank_all(pairs.normalised.numpy(), candidates.owners)
    precision = f"|{pairs.precision}"
    marginal = "|score:cosine" if isinstance(model.model, TwoTower) else f"|marginal:{len(marginal_images) or 'own'}"
    scores = [
        score._replace(
            signature=score.signature + precision + (marginal if score.name.startswith("image_to_text") else "")
        )
        for score in ranks.retrieval_scores(all_ranks, candidates.owners)
    ]
    matches = _evaluate_shortlists(model, candidates, pairs, settings, precision) if settings.shortlist else None
    shown = _record(pairs.normalised, candidates, collection, all_ranks, matches, settings.seed)
    if matches is not None:
        curves = {"match_curves": matches.curves, "chance_curves": matches.chance}
        return [*scores, *matches.scores], shown.model_copy(update={"shortlist": settings.shortlist, **curves})
    return scores, shown


def _with_images(examples: Examples) -> Examples | None:
    items = [item for item in examples.items if item.media_path is not None]
    if len(items) == len(examples.items):
        return examples
    logger.warning(
        "retrieval leaves out %s without an image or audio file", counted(len(examples.items) - len(items), "item")
    )
    return Examples(items, examples.target, examples.features) if items else None


class Shortlists(NamedTuple):
    """Retrieval within shortlists: scores and curves of Kiros et al. (2014), Figure 2."""

    scores: tuple[Score, ...]
    curves: RecallCurves
    chance: RecallCurves  # expected curves of a random order
    nearest: Tensor  # (I, k_r): shortlist of each image
    ranks: dict[str, Ranks]  # rank of the first relevant candidate of each query, by direction


def _evaluate_shortlists(
    model: TrainedModel, examples: Examples, pairs: NormalisedScores, settings: RetrievalSettings, precision: str
) -> Shortlists:
    """Rank images by perplexity, and sentences by its ratio to the perplexity given the mean image.

    Kiros et al. (2014), section 6. The logarithm of the ratio is (log P(w|mean) - log P(w|I)) / N; for one sentence it
    orders the images as the perplexity does. A `PairRanker` ranks by its own score.
    """
    assert examples.features is not None and settings.shortlist is not None
    nearest = nearest_images(model, examples.items, examples.features, settings.shortlist, budget=settings.budget)
    # Modified in place, since the scores may be stored in a file; the examples of the record follow their new order.
    scores = pairs.normalised.numpy()
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


def match_scores(scores: NDArray[np.floating], examples: Examples, nearest: Tensor, signature: str) -> Shortlists:
    """Evaluate text-to-image retrieval among all images, and image-to-text retrieval within shortlists.

    The match of an image is the first of its own sentences. These are always candidates, because the nearest image of
    an image is itself. The scores of S sentences and I images are (S, I), the result of `nearest_images` (I, k_r).
    """
    owners = np.asarray(examples.owners, dtype=np.int64)
    sentences, images = scores.shape
    own_sentences = np.bincount(owners, minlength=images)
    listed = own_sentences[nearest.numpy()].sum(axis=1)
    low, high = listed.min(), listed.max()
    first = {
        "text_to_image": ranks.owner_ranks(scores, owners),
        "image_to_text": ranks.shortlist_ranks(scores, owners, nearest.numpy()),
    }
    candidates = {"text_to_image": np.full(sentences, images), "image_to_text": listed}
    relevant = {"text_to_image": np.ones(sentences, dtype=np.int64), "image_to_text": own_sentences}
    shortlist = f"shortlist:{nearest.shape[1]}|candidates:{low if low == high else f'{low}-{high}'}"
    descriptions = {"text_to_image": f"candidates:{images}", "image_to_text": shortlist}
    areas = tuple(
        Score(
            f"{name}_match_area",
            ranks.match_area(first[name], candidates[name]),
            f"queries:{len(first[name])}|{descriptions[name]}|"
            f"chance:{ranks.chance_area(relevant[name], candidates[name]):.1f}|ties:worst|scale:0-100|{signature}",
        )
        for name in first
    )
    curves = {name: ranks.match_curve(first[name], candidates[name]) for name in first}
    chance = {name: ranks.chance_curve(relevant[name], candidates[name]) for name in first}
    return Shortlists(areas, RecallCurves(**curves), RecallCurves(**chance), nearest, first)


def _record(
    scores: Tensor,
    examples: Examples,
    collection: Collection,
    all_ranks: RetrievalRanks,
    shortlists: Shortlists | None,
    seed: int,
) -> Retrieval:
    """Return the ranks of retrieval, and random queries of both directions with their first results.

    With shortlists, whose evaluation has changed the scores, the results of an image are sentences of its shortlist.
    """

    def first_sentences(row: int) -> list[int]:
        if shortlists is None:
            return _first(scores[:, row]).tolist()
        listed = torch.isin(torch.tensor(owners), shortlists.nearest[row]).nonzero().flatten()
        return listed[_first(scores[listed, row])].tolist()

    first = {name: getattr(all_ranks, name) for name in ranks.DIRECTIONS} if shortlists is None else shortlists.ranks
    random = np.random.default_rng(seed)
    items, owners = examples.items, examples.owners
    images = random.permutation(len(items))[:SHOWN_QUERIES].tolist()
    sentences = random.permutation(len(examples))[:SHOWN_QUERIES].tolist()
    shown_images = {*images, *_first(scores[sentences]).flatten().tolist()}
    paths = {row: collection.absolute_image_path(items[row]) for row in shown_images}
    return retrieval_record(
        all_ranks,
        image_to_text=tuple(
            evaluations.ImageToTextExample(
                id=items[row].id,
                image=paths[row],
                rank=int(first["image_to_text"][row]),
                top=tuple(
                    evaluations.RetrievedSentence(text=examples.pair(result).target, right=owners[result] == row)
                    for result in first_sentences(row)
                ),
            )
            for row in images
        ),
        text_to_image=tuple(
            evaluations.TextToImageExample(
                text=examples.pair(row).target,
                rank=int(first["text_to_image"][row]),
                image_id=items[owners[row]].id,
                top=tuple(
                    evaluations.RetrievedImage(id=items[result].id, image=paths[result], right=result == owners[row])
                    for result in _first(scores[row]).tolist()
                ),
            )
            for row in sentences
        ),
    )


def retrieval_record(all_ranks: RetrievalRanks, **examples: Any) -> Retrieval:  # noqa: ANN401
    """Return the record of retrieval: ranks, and example queries of both directions."""
    return Retrieval(ranks={name: tuple(getattr(all_ranks, name).tolist()) for name in ranks.DIRECTIONS}, **examples)


def _first(scores: Tensor) -> Tensor:
    """Return the positions of the highest scores of the last dimension, best first."""
    return scores.topk(min(SHOWN_RESULTS, scores.shape[-1])).indices


IMAGES_PER_BATCH = 256


def require_shortlist(size: int | None, items: Sequence[Item]) -> None:
    """Raise SettingsError for a shortlist longer than the number of images, before any scoring."""
    images = sum(item.media_path is not None for item in items)
    if size is not None and 0 < images < size:
        raise SettingsError(
            f"evaluation.shortlist: expected at most {images}, the number of images, got {size}; "
            f"set evaluation.shortlist={images}"
        )


@torch.inference_mode()
def nearest_images(
    model: TrainedModel, items: Sequence[Item], features: FeatureSource, count: int, *, budget: int = MEMORY_BUDGET
) -> Tensor:
    """Return the nearest images of each of I images by Euclidean distance, itself first, (I, count).

    The distances are between the vectors that an `ImageVectorModel` computes, or between the stored features for all
    other models. Vectors that exceed the budget in bytes are stored in a temporary file.
    """
    device = device_of(model.model)
    vectors = _image_vectors(model, items, features, budget)
    batch_size = min(IMAGES_PER_BATCH, max(1, budget // (8 * len(items))))
    nearest = []
    for begin in range(0, len(items), batch_size):
        queries = torch.from_numpy(vectors[begin : begin + batch_size]).to(device)
        blocks = (vectors[left : left + IMAGES_PER_BATCH] for left in range(0, len(items), IMAGES_PER_BATCH))
        distances = torch.cat([torch.cdist(queries, torch.from_numpy(block).to(device)) for block in blocks], dim=1)
        row = torch.arange(len(queries), device=device)
        distances[row, begin + row] = -1.0  # the image itself comes before identical images
        nearest.append(distances.topk(count, largest=False).indices)
    return torch.cat(nearest).cpu()


def _image_vectors(
    model: TrainedModel, items: Sequence[Item], features: FeatureSource, budget: int
) -> NDArray[np.float32]:
    """Compute one vector of each image, (I, D)."""
    network = model.model
    use_model = network.uses_image and isinstance(network, ImageVectorModel)
    image_vector = network.image_vector if use_model and isinstance(network, ImageVectorModel) else _stored_vector
    vectors = None
    for begin in range(0, len(items), IMAGES_PER_BATCH):
        batch = items[begin : begin + IMAGES_PER_BATCH]
        image = collate_features(features.take(batch)).to(device_of(network))
        values = image_vector(image).float().cpu().numpy()
        if vectors is None:
            vectors = allocate_matrix((len(items), values.shape[1]), budget)
        vectors[begin : begin + len(batch)] = values
    assert vectors is not None, "shortlists need images"
    return vectors


def _stored_vector(image: ImageFeatures) -> Tensor:
    kinds = [values.flatten(1) for values in (image.pooled, image.grid, image.maps) if values is not None]
    return torch.cat(kinds, dim=1)


@torch.inference_mode()
def fill_pair_scores(
    model: TrainedModel, ranker: PairRanker, examples: Examples, features: FeatureSource, scores: NDArray[np.float32]
) -> None:
    """Fill a matrix with the scores of a `PairRanker` for every sentence and image, some images at a time."""
    device = device_of(model.model)
    sentences = collate([Example("", target) for target in examples.targets]).to(device)
    for begin in range(0, len(examples.items), IMAGES_PER_BATCH):
        batch = examples.items[begin : begin + IMAGES_PER_BATCH]
        values = ranker.pair_scores(collate_features(features.take(batch)).to(device), sentences)
        scores[:, begin : begin + len(batch)] = values.float().cpu().numpy()
