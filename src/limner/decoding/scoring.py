"""Log-probability of given sentences: of each with its own picture, and of every one with every picture."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from limner.data.batching import prefetch
from limner.data.dataset import Examples, FeatureSource
from limner.data.examples import Batch, Example, ImageFeatures, Item, collate, collate_features
from limner.metrics import Score, perplexity
from limner.models.protocols import Model, Output, PairScorer, device_of, precise

TOKENS_PER_BATCH = 1 << 13
"""Words of a batch, padding included: it bounds the logits, however long the sentences are."""

BUDGET = 128 << 20
"""Default working memory in bytes; a tile takes half of it: small enough for the caches, large enough to be fast."""

IMAGES_READ_PER_BATCH = 1024
COLLATED_WORD_BYTES = 64
"""Memory of a word of a collated sentence, about: ids, mask and lists."""

Progress = Callable[[int, int], None]


class SentenceScores(NamedTuple):
    """Scores of the sentences of an `Examples`, in its order."""

    log_probs: Tensor  # (N,) natural logarithm of the words counted, end sign included
    words: Tensor  # (N,) how many words that is; 0 where a sentence is left out
    skip_words: int = 0

    @property
    def perplexity(self) -> Score:
        """Perplexity over all words that are counted."""
        counted = ""
        if self.skip_words:
            short = int((self.words == 0).sum())
            counted = f"from word:{self.skip_words + 1}|left out:{short} of under {self.skip_words + 3} words"
        return perplexity(float(self.log_probs.double().sum()), int(self.words.sum()), counted)


@torch.inference_mode()
def score_examples(model: Model, examples: Examples, batch_size: int = 256, *, skip_words: int = 0) -> SentenceScores:
    """Score every (picture, sentence) pair; the model is left in the mode it was in.

    Args:
        model: any.
        examples: the pairs.
        batch_size: how many at once, at most; it changes no result.
        skip_words: see `counted_words`.
    """
    training = model.training
    model.eval()
    device = device_of(model)
    log_probs, words = torch.zeros(len(examples)), torch.zeros(len(examples), dtype=torch.long)
    order = [some for rows in examples.batches_by_length(batch_size) for some in _cut(rows, examples.targets)]
    for rows, batch in zip(order, prefetch(examples.batch, order, 4), strict=True):
        mask = counted_words(batch, skip_words)
        moved = batch.to(device)
        counted = replace(moved, target_mask=mask.to(device))
        log_probs[rows] = sentence_log_probs(model(moved), counted).cpu()
        words[rows] = mask.sum(1)
    model.train(training)
    return SentenceScores(log_probs, words, skip_words)


def counted_words(batch: Batch, skip_words: int) -> Tensor:
    """Which words perplexity counts, (B, T) bool: all; or those of Kiros et al. (2014), section 7.2.

    With `skip_words` C above 0 it begins with word C + 1, where every model has as much to go by as it can use, and
    leaves out sentences of fewer than C + 3 words.
    """
    if not skip_words:
        return batch.target_mask
    long_enough = batch.target_mask.sum(1, keepdim=True) - 1 >= skip_words + 3  # the end sign is no word of it
    position = torch.arange(batch.target_mask.shape[1], device=batch.target_mask.device)
    return batch.target_mask & long_enough & (position >= skip_words)


def _cut(rows: Sequence[int], targets: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Cut a batch where its sentences, padded to the longest, have more than `TOKENS_PER_BATCH` words."""
    at_once = max(1, TOKENS_PER_BATCH // (1 + max(len(targets[row]) for row in rows)))
    for begin in range(0, len(rows), at_once):
        yield rows[begin : begin + at_once]


def sentence_log_probs(output: Output, batch: Batch) -> Tensor:
    """Natural log-probability of each sentence with its end sign: (B,)."""
    log_probs = -cross_entropy(precise(output.logits.flatten(0, 1)), batch.target_out.flatten(), reduction="none")
    return (log_probs.view(batch.target_out.shape) * batch.target_mask).sum(1)


class Tile(NamedTuple):
    """A part of the matrix of all pairs."""

    rows: list[int]  # the sentences, in no order
    columns: slice  # the pictures
    log_probs: Tensor  # (rows, columns), on the CPU


def score_tiles(
    model: Model,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    pictures: FeatureSource | None,
    *,
    budget: int = BUDGET,
    bf16: bool = False,
    progress: Progress | None = None,
) -> Iterator[Tile]:
    """Log-probability of every sentence given every picture, exactly, tile by tile.

    What a model knows of a sentence alone it works out once: sentences are cut into blocks of which this fits into
    half the budget, and all pictures pass by each block. Sentences that begin alike share a block.

    Args:
        model: any model; one that is a `PairScorer` is asked, others score pair after pair by `forward`.
        targets: S sentences as ids, without signs.
        items: I items, whose pictures they are.
        pictures: where their features are; None for a model that looks at none.
        budget: bytes of working memory; what is read of the pictures comes on top, a thousand at a time.
        bf16: whether matrix products may be made in bfloat16.
        progress: told the pairs that are done, and how many there are.
    """
    training, device = model.training, device_of(model)
    fast = model if isinstance(model, PairScorer) and model.separable else None
    half, dtype = budget // 2, torch.bfloat16 if bf16 else torch.float32
    pairs = 0

    def look() -> Iterator[ImageFeatures]:
        for begin in range(0, len(items), IMAGES_READ_PER_BATCH):
            some = items[begin : begin + IMAGES_READ_PER_BATCH]
            yield collate_features(pictures.take(some) if pictures else [None] * len(some)).to(device)

    model.eval()
    try:
        for rows in _blocks(targets, half // (fast.bytes_per_token if fast else COLLATED_WORD_BYTES)):
            sentences = collate([Example("", targets[row]) for row in rows]).to(device)
            if fast is not None:
                tiles = fast.pair_log_probs(look(), sentences, half, dtype)
            else:
                tiles = (tiled_log_probs(model, image, sentences, half, bf16) for image in look())
            begin = 0
            for tile in tiles:
                yield Tile(rows, slice(begin, begin + tile.shape[1]), tile.cpu())
                begin, pairs = begin + tile.shape[1], pairs + tile.numel()
                if progress is not None:
                    progress(pairs, len(targets) * len(items))
    finally:
        model.train(training)


def _blocks(targets: Sequence[Sequence[int]], words: int) -> Iterator[list[int]]:
    """Cut the sentences, in the order of a dictionary, into blocks of about so many words."""
    block: list[int] = []
    room = words
    for row in sorted(range(len(targets)), key=lambda row: tuple(targets[row])):
        if block and len(targets[row]) >= room:
            yield block
            block, room = [], words
        block.append(row)
        room -= len(targets[row]) + 1
    if block:
        yield block


@torch.inference_mode()
def pair_log_probs(
    model: Model,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    pictures: FeatureSource | None,
    *,
    budget: int = BUDGET,
    bf16: bool = False,
    progress: Progress | None = None,
) -> Tensor:
    """Log-probability of every sentence given every picture, exactly; arguments as of `score_tiles`.

    Returns:
        (S, I), natural logarithm, on the CPU; in a file that goes with it where it is above the budget.
    """
    matrix = room_for((len(targets), len(items)), budget)
    for tile in score_tiles(model, targets, items, pictures, budget=budget, bf16=bf16, progress=progress):
        matrix[tile.rows, tile.columns] = tile.log_probs.numpy()
    return torch.from_numpy(matrix)


def room_for(shape: tuple[int, int], budget: int) -> NDArray[np.float32]:
    """Room for a matrix: in memory within the budget, else in a file that is gone when the matrix is."""
    size = 4 * shape[0] * shape[1]
    if size <= budget:
        return np.empty(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and a crash later
        return np.memmap(file, np.float32, "w+", shape=shape)


def tiled_log_probs(model: Model, image: ImageFeatures, sentences: Batch, budget: int, bf16: bool = False) -> Tensor:
    """The general way: (sentence, picture) pairs through `forward`, as many at once as the budget allows.

    Args:
        model: any.
        image: the pictures, I of them.
        sentences: S sentences; their own pictures are not looked at.
        budget: bytes of logits, their softmax and a copy.
        bf16: whether matrix products may be made in bfloat16.

    Returns:
        (S, I), natural logarithm.
    """
    count = len(image.present)
    length = sentences.target_in.shape[1]
    rows = max(1, budget // (length * model.vocab_size * 4 * 3))  # logits, their softmax and a copy
    width = min(count, rows)
    height = max(1, rows // width)
    scores = torch.empty(len(sentences), count, device=image.present.device)
    for top in range(0, len(sentences), height):
        chosen = torch.arange(top, min(top + height, len(sentences)), device=scores.device)
        for left in range(0, count, width):
            seen = torch.arange(left, min(left + width, count), device=scores.device)
            pairs = _pairs(sentences, image, chosen, seen)
            with torch.autocast(scores.device.type, torch.bfloat16, enabled=bf16):
                found = sentence_log_probs(model(pairs), pairs)
            scores[chosen[:, None], seen] = found.view(len(chosen), len(seen)).float()
    return scores


def _pairs(sentences: Batch, image: ImageFeatures, chosen: Tensor, seen: Tensor) -> Batch:
    left = chosen.repeat_interleave(len(seen))
    length = int(sentences.target_mask[chosen].sum(1).max())
    return replace(
        sentences,
        ids=("",) * len(left),
        image=image.select(seen.repeat(len(chosen))),
        target_in=sentences.target_in[left, :length],
        target_out=sentences.target_out[left, :length],
        target_mask=sentences.target_mask[left, :length],
        source=None if sentences.source is None else sentences.source[left],
        source_mask=None if sentences.source_mask is None else sentences.source_mask[left],
    )
