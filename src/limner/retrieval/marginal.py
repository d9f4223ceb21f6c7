"""Scores of all pairs normalised by the marginal probability of the sentence, Mao et al. (2015), eq. 7.

log P(w|I) - log P(w) is also a score of a caption without references: the pointwise mutual information of the caption w
and the image I under a captioning model, with the purpose of CLIPScore (Hessel et al., 2021). A caption that is as
probable without the image as with it scores 0.

Marginal probabilities are kept in the run directory, so that they are computed once per model and collection. A stored
file has the digests of the weights of the model, the sentences, the images and their features. A damaged file, or a
file with other digests, is replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limner.data.collection import Collection
from limner.data.dataset import FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.errors import CollectionError, RunError
from limner.features.store import FeatureStore
from limner.models.protocols import Model
from limner.models.two_tower import TwoTower
from limner.process import all_threads
from limner.progress import Progress
from limner.retrieval.all_pairs import MEMORY_BUDGET, allocate_matrix, score_tiles, uses_bf16
from limner.retrieval.index.protocol import features_digest
from limner.runs.trained_model import TrainedModel, model_fingerprint
from limner.storage.tensors import read_tensors, save_tensors

MARGINAL_IMAGES = 1000
"""Default number of images that the marginal is estimated from."""
MARGINAL_SEED = 1
"""Seed of the sample of these images, the same for all commands."""


@torch.inference_mode()
def log_marginal(
    model: Model,
    targets: Sequence[Sequence[int]],
    marginal_images: Sequence[Item],
    features: FeatureSource | None,
    *,
    budget: int = MEMORY_BUDGET,
    on_progress: Progress | None = None,
) -> Tensor:
    """Compute the logarithm of the mean of P(w|I') over images I', (S,), the denominator of eq. 7, in `budget` bytes.

    The mean instead of the sum changes no ranking.
    """
    marginal = Marginal(len(targets))
    for rows, _, log_probs in score_tiles(
        model, targets, marginal_images, features, budget=budget, on_progress=on_progress
    ):
        marginal.add(rows, log_probs)
    return marginal.log_probs()


class Marginal:
    """Running mean of P(w|I') over images, without the matrix of all pairs."""

    def __init__(self, sentences: int) -> None:
        self._total = torch.full((sentences,), -torch.inf, dtype=torch.float64)
        self._count = torch.zeros(sentences)

    def add(self, rows: Sequence[int], log_probs: Tensor) -> None:
        """Add log P(w|I') of the sentences `rows` for further images, (rows, I')."""
        if log_probs.shape[1]:
            total = torch.logsumexp(log_probs.double(), 1)
            self._total[rows] = torch.logaddexp(self._total[rows], total)
            self._count[rows] += log_probs.shape[1]

    def log_probs(self) -> Tensor:
        """Return log P(w) of each sentence, (S,)."""
        return (self._total - self._count.log()).float()


class NormalisedScores(NamedTuple):
    """Scores of every sentence with every image."""

    normalised: Tensor  # (S, I): log P(w|I) - log P(w)
    marginal: Tensor  # (S,): log P(w)
    mean: Tensor | None  # (S,): log P(w|mean image)
    precision: str  # of the products, for signatures: bf16 or fp32


MEAN_IMAGE = Item("the mean image", "", image="")
"""Item whose features are the mean features of the training images."""


class WithMeanFeatures:
    """A feature source extended by the mean features of `MEAN_IMAGE`."""

    def __init__(self, features: FeatureSource, mean: StoredFeatures) -> None:
        self.features, self.mean = features, mean

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of each item."""
        stored = iter(self.features.take([item for item in items if item is not MEAN_IMAGE]))
        return [self.mean if item is MEAN_IMAGE else next(stored) for item in items]


@torch.inference_mode()
def normalised_log_probs(
    model: TrainedModel,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    features: FeatureSource,
    marginal_images: Sequence[Item],
    *,
    mean: StoredFeatures | None = None,
    budget: int = MEMORY_BUDGET,
    exact: bool = False,
    on_progress: Progress | None = None,
) -> NormalisedScores:
    """Compute log P(w|I) - log P(w) of every sentence w and every image I.

    For an image this ranks sentences by eq. 7 of Mao et al. (2015); for a sentence it ranks images by P(w|I), because
    P(w) is the same for all images. Cosines of a `TwoTower` are comparable between sentences and are not
    normalised.

    Args:
        model: trained model.
        targets: S sentences as token ids without special tokens.
        items: I items with an image.
        features: features of the images.
        marginal_images: items of the images of the marginal P(w); if empty, `items`.
        mean: mean features of images, for log P(w|mean); None for none.
        budget: working memory in bytes; a larger matrix is stored in a temporary file.
        exact: whether to compute in float32 even where `uses_bf16` permits bfloat16.
        on_progress: called with the number of pairs done and their total.

    Raises:
        CollectionError: an item has no image.
    """
    without_image = [item.id for item in items if item.media_path is None]
    if without_image:
        raise CollectionError(
            f"item '{without_image[0]}' has no image or audio file; retrieval needs one for every item"
        )
    matrix, marginal = allocate_matrix((len(targets), len(items)), budget), Marginal(len(targets))
    scored = [*items, *marginal_images, *([MEAN_IMAGE] if mean is not None else [])]
    source = WithMeanFeatures(features, mean) if mean is not None else features
    of_mean = torch.empty(len(targets)) if mean is not None else None
    bf16 = uses_bf16(model) and not exact
    precision = "bf16" if bf16 else "fp32"
    with all_threads():
        for rows, columns, log_probs in score_tiles(
            model.model, targets, scored, source, budget=budget, bf16=bf16, on_progress=on_progress
        ):
            if of_mean is not None and columns.stop == len(scored):
                of_mean[rows], log_probs = log_probs[:, -1].float(), log_probs[:, :-1]
            of_items = log_probs[:, : max(0, len(items) - columns.start)]
            matrix[rows, columns.start : columns.start + of_items.shape[1]] = of_items.numpy()
            marginal.add(rows, log_probs[:, of_items.shape[1] :] if marginal_images else of_items)
    if isinstance(model.model, TwoTower):
        return NormalisedScores(torch.from_numpy(matrix), torch.zeros(len(targets)), of_mean, precision)
    matrix -= marginal.log_probs().numpy()[:, None]
    return NormalisedScores(torch.from_numpy(matrix), marginal.log_probs(), of_mean, precision)


def sample_items(
    collection: Collection, split: str | None, features: FeatureStore, count: int = MARGINAL_IMAGES
) -> list[Item]:
    """Draw at most `count` items with features from a split, or from all items; empty for an unknown split."""
    if split is not None and split not in collection.splits():
        return []
    items = collection.items(split).select(lambda item: item.media_path is not None and features.covers(item))
    order = np.random.default_rng(MARGINAL_SEED).permutation(len(items))[:count]
    return [items[row] for row in sorted(order)]


DIGITS = 12
"""Number of hexadecimal digits of a digest in a signature."""


def marginal_items(
    model: TrainedModel, collection: Collection, features: FeatureStore, count: int = MARGINAL_IMAGES
) -> list[Item]:
    """Draw the training images over which P(w) is the mean of P(w|I'); CollectionError if there is none."""
    split = model.recipe.data.train
    items = sample_items(collection, split, features, count)
    if not items:
        raise CollectionError(
            f"{collection.path}: expected images with features in split '{split}' to estimate log P(w), found none; "
            "compute them with 'limner features'"
        )
    return items


def log_ratio_signature(model: TrainedModel, collection: Collection, num_images: int, precision: str) -> str:
    """Return the signature of the score: digest of the model, images of the marginal and arithmetic."""
    return (
        f"score:log-ratio|model:{model_fingerprint([model])[:DIGITS]}|marginal:{num_images}:{model.recipe.data.train}|"
        f"seed:{MARGINAL_SEED}|collection:{collection.fingerprint()[:DIGITS]}|{precision}"
    )


FOLDER = "marginals"
"""Folder of the files in a run directory."""
_KEY = "origin"
_NAME = "log_marginal"

logger = logging.getLogger(__name__)

Origin = dict[str, str]
"""Digests of the inputs of a marginal."""


def marginal_path(run: Path, collection: Path, split: str | None) -> Path:
    """Return the file of the marginals of a split of a collection, or of the whole collection, in a run directory."""
    place = json.dumps([str(collection.resolve()), split])
    return run / FOLDER / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.safetensors"


def marginal_origin(
    model: TrainedModel, targets: Sequence[Sequence[int]], images: Sequence[Item], features: FeatureStore
) -> Origin:
    """Compute the digests of the inputs of a marginal of sentences over images."""
    return {
        "weights": f"{version('limner')} {model_fingerprint([model])}",
        "sentences": _digest(" ".join(map(str, target)) for target in targets),
        "images": _digest(f"{item.id} {item.media_path}" for item in images),
        "features": features_digest(features),
    }


def stored_log_marginal(path: Path, origin: Origin, sentences: int, compute: Callable[[], Tensor]) -> Tensor:
    """Read log P(w) of S sentences, (S,), from a file; or compute and store it if the origin of the file differs."""
    if path.exists():
        try:
            return _read_stored(path, origin, sentences)
        except RunError as error:
            logger.warning("%s; P(w) is computed again", error)
    marginal = compute()
    try:
        save_tensors(path, {_NAME: marginal}, {_KEY: origin})
    except RunError as error:
        logger.warning("%s; the next search computes P(w) again", error)
    return marginal


def _read_stored(path: Path, origin: Origin, sentences: int) -> Tensor:
    stored = read_tensors(path, remedy="it is replaced")
    known, marginal = stored.facts.get(_KEY), stored.tensors.get(_NAME)
    if not isinstance(known, dict) or marginal is None:
        raise RunError(f"{path}: not written by this version of Limner")
    changed = [part for part in origin if known.get(part) != origin[part]]
    if changed:
        raise RunError(f"{path}: made for other {' and '.join(changed)}")
    if marginal.shape != (sentences,):
        raise RunError(f"{path}: damaged: expected {sentences:,} values, found {marginal.numel():,}")
    return marginal


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()
