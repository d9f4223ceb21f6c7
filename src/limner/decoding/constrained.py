"""Constrained beam search: selection of the continuations of a beam for each state of a finite-state machine.

Anderson et al. (2017), "Guided Open Vocabulary Image Captioning with Constrained Beam Search", section 3.1: a beam is
kept for every state, so that a hypothesis with a required word never competes with more probable hypotheses without it.
Hypotheses end in accepting states only, where all constraints are satisfied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from limner.decoding.automaton import Automaton
from limner.decoding.next_tokens import NextTokens
from limner.decoding.selection import Choice, HypothesisLists, divide
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.decoding.search import Beam

_DEAD = -1  # target of an end in a state that does not accept


class BestOfEachState:
    """Selection of the K most probable continuations into each of S states; slot s K + k of a beam belongs to state s.

    The continuations into each state are divided as in an unconstrained search (`divide`), and each complete hypothesis
    counts for the beams of all states. Continuations whose constraints cannot be satisfied within `max_length` are left
    out.
    """

    def __init__(
        self,
        machines: Sequence[Automaton],
        prefixes: Sequence[Sequence[int]],
        shared: int,
        settings: DecodingSettings,
        ids: Sequence[str],
        results: HypothesisLists,
    ) -> None:
        """Create the tables of a batch, whose first hypotheses have `shared` tokens of their prefixes.

        Raises:
            SettingsError: the number of machines is not the number of examples, the settings sample, or a sentence
                would be longer than `max_length`.
        """
        _require_feasible(machines, prefixes, settings, ids)
        named = sorted({token for machine in machines for token in machine.tokens})
        self.settings, self.results = settings, results
        self.beam_size, self.max_length = settings.beam_size, settings.max_length
        self.states = max(machine.size for machine in machines)
        self.named = np.array([SPECIAL_TOKENS.eos, *named], np.int64)
        continuing = sorted(set().union(*(machine.boundaries.continues for machine in machines)) - set(named))
        self.continues = np.array(continuing, np.int64)
        starts = zip(machines, prefixes, strict=True)
        self.start = np.array([machine.after(prefix[:shared]) for machine, prefix in starts])
        self.following = np.array([_transition_table(machine, named, self.states) for machine in machines])  # (B, S, C)
        distances = [[*machine.distances, *[math.inf] * (self.states - machine.size)] for machine in machines]
        self.distances = np.array(distances)  # (B, S)

    def __call__(self, next_tokens: NextTokens, beam: Beam) -> Choice:
        """Select continuations; the log-probabilities are modified."""
        count, width = beam.total.shape
        next_tokens.add(beam.total)
        if width < self.states * self.beam_size:  # the first step: one hypothesis
            states = self.start[beam.live][:, None]  # (N, G)
        else:
            states = np.tile(np.arange(self.states), (count, 1))
        groups = states.shape[1]
        total, parent, token, column = self._candidates(next_tokens, groups)  # (N, G, M)
        following = self.following[beam.live]
        target = following[np.arange(count)[:, None, None], states[:, :, None], column].reshape(count, -1)
        total, token = total.reshape(count, -1), token.reshape(count, -1)
        distance = np.take_along_axis(self.distances[beam.live], target.clip(min=0), 1)
        feasible = np.where(token == SPECIAL_TOKENS.eos, target != _DEAD, distance < self.max_length - beam.length)
        total = np.where(feasible, total, np.asarray(-math.inf, total.dtype))
        parent = (np.arange(groups)[:, None] * (width // groups) + parent).reshape(count, -1)
        return self._best(total, parent, token, target, self.results.counts(beam.live))

    def _candidates(self, next_tokens: NextTokens, groups: int) -> list[NDArray[Any]]:
        """Return the candidates for the best continuations: all by `named` tokens, and the K best of other kinds of
        token.

        Returns:
            Log-probability, index of the hypothesis in its group, token, and column of the transitions, each (N, G, M).
        """
        count, width, _ = next_tokens.shape
        shape = (count, groups, -1)
        named = np.tile(self.named, (count, width, 1))
        parents = np.broadcast_to(np.arange(width)[:, None] % (width // groups), named.shape)
        columns = np.broadcast_to(np.arange(2, 2 + len(self.named)), named.shape)
        parts = [[values.reshape(shape) for values in (next_tokens.gather(named), parents, named, columns)]]
        next_tokens.exclude(self.named)
        for column, among in ((1, self.continues), (0, None)):
            if among is None or len(among):
                best = next_tokens.best(self.beam_size, groups, among)
                parts.append([*best, np.full_like(best.token, column)])
                if among is not None:
                    next_tokens.exclude(among)
        return [np.concatenate(values, 2) for values in zip(*parts, strict=True)]

    def _best(
        self,
        total: NDArray[Any],
        parent: NDArray[Any],
        token: NDArray[Any],
        target: NDArray[Any],
        complete: Sequence[int],
    ) -> Choice:
        """Return the best of the candidates (N, M) of each target state."""
        count = len(total)
        missing = max(0, 2 * self.beam_size - total.shape[1])
        total = np.pad(total, ((0, 0), (0, missing)), constant_values=-math.inf)
        parent, token, target = (np.pad(values, ((0, 0), (0, missing))) for values in (parent, token, target))
        of_state = target[:, None] == np.arange(self.states)[:, None]
        of_states = np.where(of_state, total[:, None], np.asarray(-math.inf, total.dtype))  # (N, S, M)
        of_states = of_states.reshape(count * self.states, -1)
        order = np.argsort(-of_states, axis=1, kind="stable")[:, : 2 * self.beam_size]
        rows = np.arange(count).repeat(self.states)[:, None]
        best = np.take_along_axis(of_states, order, 1)
        counts = [number for number in complete for _ in range(self.states)]
        chosen = divide(best, parent[rows, order], token[rows, order], self.settings, counts)
        parts: list[Any] = [values.reshape(count, -1) for values in chosen]
        return Choice(*parts)


def _transition_table(machine: Automaton, named: Sequence[int], states: int) -> list[list[int]]:
    """Return the transitions of a machine, with columns for other words, other continuations, the end, named tokens."""
    columns = [machine.column(token) for token in named]
    rows = [
        [row[0], row[1], state if not machine.distances[state] else _DEAD, *(row[column] for column in columns)]
        for state, row in enumerate(machine.transitions)
    ]
    return rows + [[_DEAD] * (3 + len(named))] * (states - len(rows))


def _require_feasible(
    machines: Sequence[Automaton], prefixes: Sequence[Sequence[int]], settings: DecodingSettings, ids: Sequence[str]
) -> None:
    """Check that the constraints of a batch can be satisfied; SettingsError if not."""
    if len(machines) != len(ids):
        raise SettingsError(f"must_include: expected constraints of each of {len(ids)} examples, got {len(machines)}")
    if settings.sample is not None:
        raise SettingsError("must_include needs beam search; leave out decoding.sample")
    for id_, machine, prefix in zip(ids, machines, prefixes, strict=True):
        needed = len(prefix) + machine.distances[machine.after(prefix)]
        if needed > settings.max_length:
            raise SettingsError(
                f"must_include of example '{id_}': expected a sentence of at least {needed:.0f} tokens, got max_length "
                f"{settings.max_length}; raise max_length (--max-length), or give fewer words"
            )
