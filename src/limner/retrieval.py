"""Search by probability: the score of every sentence with every picture, and rankings made from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from limner.data.batching import PictureSource
from limner.data.examples import Batch, Example, Item, Visual, collate, collate_visual
from limner.models.protocols import Model, PairScorer
from limner.training.objectives import sentence_log_probs

BUDGET = 64 << 20
"""Default working memory of a tile, in bytes: small enough for the caches, large enough for fast products."""

PICTURES_AT_ONCE = 1024


@torch.inference_mode()
def pair_log_probs(
    model: Model,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    pictures: PictureSource | None,
    *,
    budget: int = BUDGET,
    bf16: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Log-probability of every sentence given every picture, exactly.

    Args:
        model: any model; one that is a `PairScorer` is asked, others score tile after tile by `forward`.
        targets: S sentences as ids, without signs.
        items: I items, whose pictures they are.
        pictures: where their features are; None for a model that looks at none.
        budget: bytes of working memory; what is read of the pictures comes on top, a thousand at a time.
        bf16: whether matrix products may be made in bfloat16.
        progress: told the pictures that are done, and how many there are.

    Returns:
        (S, I), natural logarithm, on the CPU.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    sentences = collate([Example("", target) for target in targets]).to(device)
    dtype = torch.bfloat16 if bf16 else torch.float32
    columns = []
    for begin in range(0, len(items), PICTURES_AT_ONCE):
        some = items[begin : begin + PICTURES_AT_ONCE]
        visual = collate_visual(pictures.take(some) if pictures else [None] * len(some)).to(device)
        if isinstance(model, PairScorer) and model.separable:
            columns.append(model.pair_log_probs(visual, sentences, budget, dtype).cpu())
        else:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                columns.append(tiled_log_probs(model, visual, sentences, budget).cpu())
        if progress is not None:
            progress(begin + len(some), len(items))
    model.train(training)
    return torch.cat(columns, 1)


def tiled_log_probs(model: Model, visual: Visual, sentences: Batch, budget: int) -> Tensor:
    """The general way: (sentence, picture) pairs through `forward`, as many at once as the budget allows.

    Arguments and result as those of `PairScorer.pair_log_probs`.
    """
    count = len(visual.present)
    length = sentences.target_in.shape[1]
    rows = max(1, budget // (length * model.vocab_size * 4 * 3))  # logits, their softmax and a copy
    width = min(count, rows)
    height = max(1, rows // width)
    scores = torch.empty(len(sentences), count, device=visual.present.device)
    for top in range(0, len(sentences), height):
        chosen = torch.arange(top, min(top + height, len(sentences)), device=scores.device)
        for left in range(0, count, width):
            seen = torch.arange(left, min(left + width, count), device=scores.device)
            pairs = _pairs(sentences, visual, chosen, seen)
            found = sentence_log_probs(model(pairs), pairs)
            scores[chosen[:, None], seen] = found.view(len(chosen), len(seen)).float()
    return scores


def _pairs(sentences: Batch, visual: Visual, chosen: Tensor, seen: Tensor) -> Batch:
    left = chosen.repeat_interleave(len(seen))
    length = int(sentences.target_mask[chosen].sum(1).max())
    return replace(
        sentences,
        ids=("",) * len(left),
        visual=visual.select(seen.repeat(len(chosen))),
        target_in=sentences.target_in[left, :length],
        target_out=sentences.target_out[left, :length],
        target_mask=sentences.target_mask[left, :length],
    )


def log_marginal(scores: Tensor) -> Tensor:
    """Log of the mean of P(w|I') over sampled pictures: (S, I') to (S,).

    The denominator of Mao et al. (2015), eq. 7; their sum instead of the mean changes no ranking.
    """
    return torch.logsumexp(scores.double(), 1).float() - float(np.log(scores.shape[1]))
