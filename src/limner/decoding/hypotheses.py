"""Hypotheses of a beam: those that continue, and the ranked lists of complete ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from limner.decoding.ranking import HypothesisLists
from limner.decoding.selection import Choice
from limner.models.protocols import Memory, State


class Beam(NamedTuple):
    """Incomplete hypotheses of the N examples that are still decoded, K of each."""

    live: list[int]  # positions of the N examples in the batch
    token: Tensor  # (N, K): last token, the input of the next step
    total: Tensor  # (N, K): log-probability
    tokens: Tensor  # (N, K, max_length): all tokens so far
    totals: Tensor  # (N, K, max_length): log-probability up to each of them
    memories: list[Memory]  # of each model, for the N examples
    states: list[State]  # of each model, for the N * K hypotheses

    def advance(self, choice: Choice, keep: list[int], states: list[State], length: int) -> Beam:
        """Append the chosen tokens to the hypotheses they continue.

        Args:
            choice: continuations selected for the N examples.
            keep: indices of the examples that are decoded further.
            states: states of the models after this step.
            length: number of tokens before this step.
        """
        live, memories, tokens, totals = self.live, self.memories, self.tokens, self.totals
        token, total = choice.token, choice.total
        if choice.parent is not None or len(keep) < len(live):
            rows = _parent_rows(choice, keep, self.total.shape[1])
            states = select(states, rows)
            tokens, totals = (one.flatten(0, 1)[rows].view(len(keep), -1, one.shape[2]) for one in (tokens, totals))
        if len(keep) < len(live):
            live = [live[n] for n in keep]
            memories = select(memories, torch.tensor(keep, device=token.device))
            token, total = token[keep], total[keep]
        tokens[:, :, length], totals[:, :, length] = token, total
        return Beam(live, token, total, tokens, totals, memories, states)


def _parent_rows(choice: Choice, keep: list[int], width: int) -> Tensor:
    """Return the rows (N' * K,) of the previous beam of `width` hypotheses that the kept examples continue."""
    kept = torch.tensor(keep, device=choice.token.device)
    parent = torch.arange(width, device=kept.device) if choice.parent is None else choice.parent[kept]
    return (kept[:, None] * width + parent).flatten()


def select(tree: Any, rows: Tensor) -> Any:  # noqa: ANN401
    """Select rows of every tensor in the nested tuples and lists of memories or states."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)
    assert isinstance(tree, tuple | list), f"a memory or state holds a {type(tree).__name__}"
    parts = [select(part, rows) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


class RankedHypotheses(HypothesisLists):
    """Complete hypotheses of every example, best first, of beams of tensors."""

    def add(self, choice: Choice, beam: Beam, length: int) -> list[int]:
        """Add the hypotheses of a beam that are complete after `length` tokens.

        Returns:
            Indices of the beam's examples that are decoded further.
        """
        ends = choice.ends.nonzero()
        if len(ends):
            n, k = ends.T
            row = k if choice.end_parent is None else choice.end_parent[n, k]
            examples = [beam.live[index] for index in n.tolist()]
            self._insert(examples, choice.end_total[n, k], beam, (n, row), length, ended=True)
        best = choice.total.amax(dim=1).tolist()
        stuck = [n for n, example in enumerate(beam.live) if self.is_stuck(example, best[n])]
        if stuck:
            rows = torch.tensor(stuck), beam.total[stuck].argmax(dim=1)
            self._insert([beam.live[n] for n in stuck], beam.total[rows], beam, rows, length, ended=False)
        return [n for n, example in enumerate(beam.live) if not self.is_done(example, best[n])]

    def add_unfinished(self, beam: Beam) -> None:
        """Add all hypotheses of a beam at `max_length` as cut off."""
        examples = torch.arange(len(beam.live))
        for k in range(beam.total.shape[1]):
            rows = examples, torch.full_like(examples, k)
            self._insert(beam.live, beam.total[:, k], beam, rows, beam.tokens.shape[2], ended=False)

    def _insert(
        self,
        examples: list[int],
        log_probs: Tensor,
        beam: Beam,
        rows: tuple[Tensor, Tensor],
        length: int,
        *,
        ended: bool,
    ) -> None:
        """Add hypotheses `rows` (indices in N and in K) of a beam of `length` tokens, one of each of some examples."""
        tokens, totals = (one[rows][:, :length].tolist() for one in (beam.tokens, beam.totals))
        self.insert(examples, log_probs.tolist(), tokens, totals, ended=ended)
