"""Selection of the continuations of a beam at one step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from limner.text.vocab import SPECIAL_TOKENS

SECTION = 64
"""Number of neighbouring values whose maxima are compared first by `topk_by_section`."""


class Choice(NamedTuple):
    """Continuations selected at one step for N examples with K hypotheses each.

    A log-probability of -inf marks an entry without a hypothesis.
    """

    token: Tensor  # (N, K): next token of the hypotheses that continue
    total: Tensor  # (N, K): their log-probabilities
    parent: Tensor | None  # (N, K): index of the hypothesis that each continues; None: its own
    ends: Tensor  # (N, K) bool: true where a hypothesis is complete
    end_total: Tensor  # (N, K): log-probabilities of complete hypotheses
    end_parent: Tensor | None  # (N, K): index of the hypothesis that each completes; None: its own


Select = Callable[[Tensor, Tensor, list[int], int], Choice]
"""Selects continuations from log_probs (N, K, V), which it may modify, totals (N, K), the positions of the N examples
in the batch, and the length so far. At the first step K may be 1 instead of the beam size."""


class BestContinuations:
    """Selection of the most probable continuations of each example.

    As in Bahdanau et al. (2015) and Whisper: of the 2K best continuations, those that end within the first K are
    complete, and the K best others continue.
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size

    def __call__(self, log_probs: Tensor, total: Tensor, live: list[int], length: int) -> Choice:
        """Select continuations; arguments and result as for `Select`."""
        if self.beam_size == 1:
            best, token = log_probs.max(dim=-1)
            return continue_each(token, total + best)
        vocab_size = log_probs.shape[2]
        joint = log_probs.add_(total[:, :, None]).flatten(1)  # (N, K * V); in place, which is faster than a new tensor
        best, index = topk_by_section(joint, 2 * self.beam_size)  # (N, 2K)
        parent, token = index // vocab_size, index % vocab_size
        ends = token == SPECIAL_TOKENS.eos
        total, order = best.masked_fill(ends, -math.inf).topk(self.beam_size)
        return Choice(
            token=token.gather(1, order),
            total=total,
            parent=parent.gather(1, order),
            ends=ends[:, : self.beam_size],
            end_total=best[:, : self.beam_size],
            end_parent=parent[:, : self.beam_size],
        )


def continue_each(token: Tensor, total: Tensor) -> Choice:
    """Continue every hypothesis by one token (N, K), or complete it where that is the end-of-sentence token."""
    ends = token == SPECIAL_TOKENS.eos
    return Choice(token, total.masked_fill(ends, -math.inf), None, ends, total, None)


def topk_by_section(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute `topk` of long rows (N, M), about three times as fast as `Tensor.topk`.

    The greatest values are in the `count` sections with the greatest maxima.
    """
    length = values.shape[1]
    whole = length - length % SECTION
    if whole // SECTION <= count:
        best, index = values.topk(count)
        return best, index
    maxima = values[:, :whole].reshape(len(values), -1, SECTION).amax(2)
    within = torch.arange(SECTION, device=values.device)
    columns = (maxima.topk(count).indices[:, :, None] * SECTION + within).flatten(1)
    rest = torch.arange(whole, length, device=values.device).expand(len(values), -1)
    columns = torch.cat([columns, rest], 1)
    best, index = values.gather(1, columns).topk(count)
    return best, columns.gather(1, index)
