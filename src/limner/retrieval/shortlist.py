"""Shortlists of the nearest images, Kiros et al. (2014), sections 6 and 7.4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.dataset import Examples, FeatureSource
from limner.data.examples import Example, ImageFeatures, Item, collate, collate_features
from limner.errors import SettingsError
from limner.models.protocols import ImageVectorModel, PairRanker, device_of
from limner.retrieval.all_pairs import MEMORY_BUDGET, allocate_matrix
from limner.runs.trained_model import TrainedModel

IMAGES_PER_BATCH = 256


def require_shortlist(size: int | None, items: Sequence[Item]) -> None:
    """Check the size of a shortlist before any scoring; items without any image are not searched.

    Raises:
        SettingsError: the shortlist is longer than the number of images.
    """
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

    The distances are between the vectors that an `ImageVectorModel` computes, or between the stored features for
    other models and for those that use no image.

    Args:
        model: trained model.
        items: I items with an image.
        features: features of the images.
        count: k_r, the size of the shortlist.
        budget: working memory in bytes; vectors that exceed it are stored in a temporary file.
    """
    device = device_of(model.model)
    vectors = _image_vectors(model, items, features, budget)
    batch_size = min(IMAGES_PER_BATCH, max(1, budget // (8 * len(items))))
    nearest = []
    for begin in range(0, len(items), batch_size):
        queries = torch.from_numpy(vectors[begin : begin + batch_size]).to(device)
        distances = torch.empty(len(queries), len(items), device=device)
        for left in range(0, len(items), IMAGES_PER_BATCH):
            others = torch.from_numpy(vectors[left : left + IMAGES_PER_BATCH]).to(device)
            distances[:, left : left + len(others)] = torch.cdist(queries, others)
        row = torch.arange(len(queries), device=device)
        distances[row, begin + row] = -1.0  # the image itself comes before identical ones
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
    """Fill a matrix with the scores of a `PairRanker` for every sentence and image, some images at a time.

    Args:
        model: trained model.
        ranker: its network.
        examples: S sentences of I items.
        features: features of the images.
        scores: matrix to fill, (S, I); it may be stored in a file.
    """
    device = device_of(model.model)
    sentences = collate([Example("", target) for target in examples.targets]).to(device)
    for begin in range(0, len(examples.items), IMAGES_PER_BATCH):
        batch = examples.items[begin : begin + IMAGES_PER_BATCH]
        values = ranker.pair_scores(collate_features(features.take(batch)).to(device), sentences)
        scores[:, begin : begin + len(batch)] = values.float().cpu().numpy()
