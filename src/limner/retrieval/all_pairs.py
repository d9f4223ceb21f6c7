"""Log-probability of every sentence given every image, tile by tile within a memory budget."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.dataset import FeatureSource
from limner.data.examples import Example, ImageFeatures, Item, collate, collate_features
from limner.layers.all_pairs import PairOptions
from limner.layers.functional import require_numbers
from limner.models.protocols import Model, device_of, evaluation_mode
from limner.models.two_tower import TwoTower
from limner.process import native_bf16, require_memory
from limner.progress import Progress
from limner.retrieval.fast import pair_scorer, tree_log_probs
from limner.runs.trained_model import TrainedModel

MEMORY_BUDGET = 128 << 20
"""Default working memory in bytes. A tile takes half of it: small enough for the caches, large enough to be fast."""

IMAGES_READ_PER_BATCH = 1024
COLLATED_TOKEN_BYTES = 64
"""Approximate memory of a token of a collated sentence: ids, mask and lists."""


class Tile(NamedTuple):
    """Part of the matrix of all pairs."""

    rows: list[int]  # positions of the sentences, in any order
    columns: slice  # positions of the images
    log_probs: Tensor  # (rows, columns), on the CPU


def score_tiles(
    model: Model,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    features: FeatureSource | None,
    *,
    budget: int = MEMORY_BUDGET,
    bf16: bool = False,
    on_progress: Progress | None = None,
) -> Iterator[Tile]:
    """Compute the exact log-probability of every sentence given every image, tile by tile.

    Sentences are cut into blocks whose precomputed states fit into half of the budget, and all images are scored with
    each block. Sentences with common prefixes share a block.

    Args:
        model: any model; its `pair_scorer` scores all pairs of a tile together, other models are read step by step. The
            scores of a `TwoTower` are its cosines.
        targets: S sentences as token ids without special tokens.
        items: I items of the images.
        features: features of the images; None for models that use none.
        budget: working memory in bytes, without the features of `IMAGES_READ_PER_BATCH` images.
        bf16: whether matrix products may be computed in bfloat16.
        on_progress: called with the number of pairs done and their total.

    Raises:
        RunError: a log-probability is NaN.
    """
    require_budget(budget)
    scorer = pair_scorer(model)
    half, pairs, total = budget // 2, 0, len(targets) * len(items)

    def on_part(done: int, _total: int) -> None:  # pairs of the next tile
        if on_progress is not None:
            on_progress(pairs + done, total)

    options = PairOptions(half, torch.bfloat16 if bf16 else torch.float32, on_part)
    with evaluation_mode([model]):
        for rows in _sentence_blocks(targets, half // (scorer.bytes_per_token if scorer else COLLATED_TOKEN_BYTES)):
            sentences = collate([Example("", targets[row]) for row in rows]).to(device_of(model))
            tiles: Iterator[Tensor]
            images = _read_images(items, features, device_of(model))
            if isinstance(model, TwoTower):
                tiles = (model.pair_scores(image, sentences) for image in images)
            elif scorer is not None:
                tiles = scorer.log_probs(images, sentences, options)
            else:
                tiles = (tree_log_probs(model, image, sentences, half, bf16, on_part) for image in images)
            begin = 0
            for tile in tiles:
                require_numbers(tile, "log-probabilities")
                yield Tile(rows, slice(begin, begin + tile.shape[1]), tile.cpu())
                begin, pairs = begin + tile.shape[1], pairs + tile.numel()
                if on_progress is not None:
                    on_progress(pairs, total)


def _read_images(
    items: Sequence[Item], features: FeatureSource | None, device: torch.device
) -> Iterator[ImageFeatures]:
    """Read the features of the images, batch by batch."""
    for begin in range(0, len(items), IMAGES_READ_PER_BATCH):
        batch = items[begin : begin + IMAGES_READ_PER_BATCH]
        yield collate_features(features.take(batch) if features is not None else [None] * len(batch)).to(device)


def require_budget(budget: int) -> None:
    """Check that a working memory is available; ResourceError if it is not."""
    require_memory(budget, "working memory of all-pairs scoring", "lower the budget (--memory)")


def _sentence_blocks(targets: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Cut the sentences, in lexicographic order, into blocks of about `tokens` tokens."""
    block: list[int] = []
    room = tokens
    for row in sorted(range(len(targets)), key=lambda row: tuple(targets[row])):
        if block and len(targets[row]) >= room:
            yield block
            block, room = [], tokens
        block.append(row)
        room -= len(targets[row]) + 1
    if block:
        yield block


@torch.inference_mode()
def pair_log_probs(
    model: Model,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    features: FeatureSource | None,
    *,
    budget: int = MEMORY_BUDGET,
    bf16: bool = False,
    on_progress: Progress | None = None,
) -> Tensor:
    """Compute the exact log-probability of every sentence given every image; see `score_tiles` for arguments.

    Returns:
        Natural logarithms, (S, I), on the CPU; in a temporary file if they exceed the budget.
    """
    matrix = allocate_matrix((len(targets), len(items)), budget)
    for tile in score_tiles(model, targets, items, features, budget=budget, bf16=bf16, on_progress=on_progress):
        matrix[tile.rows, tile.columns] = tile.log_probs.numpy()
    return torch.from_numpy(matrix)


def uses_bf16(model: TrainedModel) -> bool:
    """Whether all pairs may be scored in bfloat16: if the device has native support and recipe and model permit it."""
    scorer = pair_scorer(model.model)
    if isinstance(model.model, TwoTower) or (scorer is not None and scorer.in_float32):
        return False
    return native_bf16(device_of(model.model)) and model.recipe.training.precision != "fp32"


def allocate_matrix(shape: tuple[int, int], budget: int) -> NDArray[np.float32]:
    """Allocate a matrix in memory, or above the budget in a temporary file that is deleted with the matrix."""
    size = 4 * shape[0] * shape[1]
    if size <= budget:
        return np.empty(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)  # reports a full disk now, which would crash the process later
        return np.memmap(file, np.float32, "w+", shape=shape)
