"""Constrained beam search: selection of the continuations of a beam for each state of a finite-state machine.

Anderson et al. (2017), "Guided Open Vocabulary Image Captioning with Constrained Beam Search", section 3.1: a beam is
kept for every state, so that a hypothesis with a required word never competes with more probable ones without it.
Hypotheses end in accepting states only, where all constraints are satisfied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from limner.data.examples import Batch
from limner.decoding.automaton import Automaton
from limner.decoding.ranking import HypothesisLists
from limner.decoding.selection import Choice, divide, topk_by_section
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.text.vocab import SPECIAL_TOKENS

_DEAD = -1  # target of an end in a state that does not accept


class _Candidates(NamedTuple):
    """Continuations of N examples, M of each of G groups of hypotheses."""

    total: Tensor  # (N, G, M)
    parent: Tensor  # (N, G, M): index of the hypothesis in its group
    token: Tensor  # (N, G, M)
    column: Tensor  # (N, G, M): column of the transitions


class BestOfEachState:
    """Selection of the K most probable continuations into each of S states; slot s K + k of a beam is of state s.

    The continuations into each state are divided as in an unconstrained search (`divide`), and each complete hypothesis
    counts for the beams of all states. Continuations whose constraints cannot be satisfied within `max_length` are left
    out.
    """

    def __init__(
        self,
        automata: Sequence[Automaton],
        prefix: Tensor,
        shared: int,
        settings: DecodingSettings,
        batch: Batch,
        results: HypothesisLists,
    ) -> None:
        """Create the tables of a batch.

        Args:
            automata: machine of each example, over one vocabulary.
            prefix: padded tokens that the sentences start with, (B, P).
            shared: number of these tokens that the first hypothesis of each example has.
            settings: decoding settings.
            batch: the examples.
            results: lists that the search adds complete hypotheses to.

        Raises:
            SettingsError: the number of machines is not that of the examples, the settings sample, or a sentence would
                be longer than `max_length`.
        """
        prefixes = [[token for token in row if token != SPECIAL_TOKENS.pad] for row in prefix.tolist()]
        _require_feasible(automata, prefixes, settings, batch)
        device = batch.target_in.device
        named = sorted({token for one in automata for token in one.tokens})
        self.settings, self.results = settings, results
        self.beam_size, self.max_length = settings.beam_size, settings.max_length
        self.states = max(one.size for one in automata)
        self.named = torch.tensor([SPECIAL_TOKENS.eos, *named], device=device)
        others = sorted(set().union(*(one.boundaries.continues for one in automata)) - set(named))
        self.continues = torch.tensor(others, device=device, dtype=torch.long)
        self.start = torch.tensor(
            [one.after(p[:shared]) for one, p in zip(automata, prefixes, strict=True)], device=device
        )
        self.following = torch.tensor([_table(one, named, self.states) for one in automata], device=device)  # (B, S, C)
        distances = [[*one.distances, *[math.inf] * (self.states - one.size)] for one in automata]
        self.distances = torch.tensor(distances, device=device)  # (B, S)

    def __call__(self, log_probs: Tensor, total: Tensor, live: list[int], length: int) -> Choice:
        """Select continuations; arguments and result as for `selection.Select`."""
        count, width, vocab_size = log_probs.shape
        joint = log_probs.add_(total[:, :, None])
        if width < self.states * self.beam_size:  # the first step: one hypothesis
            states = self.start[live][:, None]  # (N, G)
        else:
            states = torch.arange(self.states, device=total.device).expand(count, -1)
        candidates = self._candidates(joint.view(count, states.shape[1], -1, vocab_size))
        following = self.following[live].gather(1, states[:, :, None].expand(-1, -1, self.following.shape[2]))
        target = following.gather(2, candidates.column).flatten(1)  # (N, G M)
        feasible = self.distances[live].gather(1, target.clamp(min=0)) < self.max_length - length
        ended = candidates.token.flatten(1) == SPECIAL_TOKENS.eos
        feasible = torch.where(ended, target != _DEAD, feasible)
        totals = candidates.total.flatten(1).masked_fill(~feasible, -math.inf)
        groups = torch.arange(states.shape[1], device=total.device)[:, None]
        parents = (groups * (width // states.shape[1]) + candidates.parent).flatten(1)
        return self._best(totals, parents, candidates.token.flatten(1), target, self.results.complete(live))

    def _candidates(self, joint: Tensor) -> _Candidates:
        """Return the continuations that may be among the best: all by named tokens, and the K best of each other kind.

        Args:
            joint: log-probabilities of the continued hypotheses, (N, G, W, V); modified.
        """
        count, groups, width, _ = joint.shape
        columns = torch.arange(2, 2 + len(self.named), device=joint.device).expand(count, groups, width, -1)
        parents = torch.arange(width, device=joint.device)[:, None].expand(count, groups, -1, len(self.named))
        named = [joint[..., self.named], parents, self.named.expand(count, groups, width, -1), columns]
        parts = [_Candidates(*(one.flatten(2) for one in named))]
        joint.index_fill_(-1, self.named, -math.inf)
        if len(self.continues):
            best = self._most_probable(joint[..., self.continues], 1)
            parts.append(best._replace(token=self.continues[best.token]))
            joint.index_fill_(-1, self.continues, -math.inf)
        parts.append(self._most_probable(joint, 0))
        return _Candidates(*(torch.cat(fields, 2) for fields in zip(*parts, strict=True)))

    def _most_probable(self, joint: Tensor, column: int) -> _Candidates:
        """Return the K best of the continuations (N, G, W, X) of each group."""
        count, groups, width, size = joint.shape
        best, index = topk_by_section(joint.reshape(count * groups, width * size), min(self.beam_size, width * size))
        best, index = best.view(count, groups, -1), index.view(count, groups, -1)
        return _Candidates(best, index // size, index % size, torch.full_like(index, column))

    def _best(self, totals: Tensor, parents: Tensor, tokens: Tensor, target: Tensor, complete: Sequence[int]) -> Choice:
        """Select the best of the candidates (N, M) of each target state."""
        beam_size = self.beam_size
        missing = (0, max(0, 2 * beam_size - totals.shape[1]))
        totals = pad(totals, missing, value=-math.inf)
        parents, tokens, target = (pad(one, missing) for one in (parents, tokens, target))
        states = torch.arange(self.states, device=totals.device)[:, None]
        best, index = (
            totals[:, None].masked_fill(target[:, None] != states, -math.inf).topk(2 * beam_size)
        )  # (N, S, 2K)
        parent, token = (one[:, None].expand(-1, self.states, -1).gather(2, index) for one in (parents, tokens))
        return divide(best, token, parent, self.settings, complete)


def _table(automaton: Automaton, named: Sequence[int], states: int) -> list[list[int]]:
    """Return the transitions of a machine by the columns: other words, other continuations, the end, named tokens."""
    columns = [automaton.column(token) for token in named]
    rows = [
        [row[0], row[1], state if not automaton.distances[state] else _DEAD, *(row[column] for column in columns)]
        for state, row in enumerate(automaton.transitions)
    ]
    return rows + [[_DEAD] * (3 + len(named))] * (states - len(rows))


def _require_feasible(
    automata: Sequence[Automaton], prefixes: Sequence[Sequence[int]], settings: DecodingSettings, batch: Batch
) -> None:
    """Check that the constraints of a batch can be satisfied; errors are those of `BestOfEachState`."""
    if len(automata) != len(batch):
        raise SettingsError(f"must_include: expected constraints of each of {len(batch)} examples, got {len(automata)}")
    if settings.sample is not None:
        raise SettingsError("must_include needs beam search; leave out decoding.sample (limner describe --sample)")
    for id_, one, prefix in zip(batch.ids, automata, prefixes, strict=True):
        needed = len(prefix) + one.distances[one.after(prefix)]
        if needed > settings.max_length:
            raise SettingsError(
                f"must_include of example '{id_}': expected a sentence of at least {needed:.0f} tokens, got max_length "
                f"{settings.max_length}; raise max_length (--max-length), or give fewer words"
            )
