"""Selection of the continuations of a beam at one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limner.decoding.ranking import HypothesisLists
from limner.decoding.settings import DecodingSettings
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
    """Selection of the most probable continuations of each example (`divide`)."""

    def __init__(self, settings: DecodingSettings, results: HypothesisLists) -> None:
        """Select for a search with these settings, which adds its complete hypotheses to `results`."""
        self.settings, self.results = settings, results

    def __call__(self, log_probs: Tensor, total: Tensor, live: list[int], length: int) -> Choice:
        """Select continuations; arguments and result as for `Select`."""
        if self.settings.beam_size == 1:
            best, token = log_probs.max(dim=-1)
            return continue_each(token, total + best)
        vocab_size = log_probs.shape[2]
        joint = log_probs.add_(total[:, :, None]).flatten(1)  # (N, K * V); in place, which is faster than a new tensor
        best, index = topk_by_section(joint, 2 * self.settings.beam_size)  # (N, 2K)
        return divide(best, index % vocab_size, index // vocab_size, self.settings, self.results.complete(live))


def divide(best: Tensor, token: Tensor, parent: Tensor, settings: DecodingSettings, complete: Sequence[int]) -> Choice:
    """Divide the 2K best continuations of each example into those that are complete and those that continue.

    With `settings.stop` full, those that end within the first K are complete, and the K best others continue. With
    shrink, all but the first K - C are left out, where C hypotheses of the example are complete.

    Args:
        best: log-probabilities, best first, (N, 2K), or (N, S, 2K) of S beams.
        token: their next tokens.
        parent: indices of the hypotheses that they continue.
        settings: decoding settings.
        complete: number C of complete hypotheses of each of the N examples.
    """
    beam_size = settings.beam_size
    if settings.stop == "shrink":
        left = torch.tensor([beam_size - count for count in complete], device=best.device)
        rank = torch.arange(best.shape[-1], device=best.device)
        best = best.masked_fill(rank >= left.view(-1, *[1] * (best.dim() - 1)), -math.inf)
    ends = token == SPECIAL_TOKENS.eos
    total, order = best.masked_fill(ends, -math.inf).topk(beam_size)
    chosen = (token.gather(-1, order), total, parent.gather(-1, order))
    completed = (part[..., :beam_size] for part in (ends, best, parent))
    return Choice(*(part.flatten(1) for part in (*chosen, *completed)))


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
