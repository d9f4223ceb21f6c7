"""Finite-state machine of the words that a sentence must include.

Anderson et al. (2017), "Guided Open Vocabulary Image Captioning with Constrained Beam Search",
section 3.1: constraints are a conjunction of disjunctions. Each constraint is a set of alternatives, words or phrases,
at least one of which must occur. An alternative is a sequence of tokens, so that phrases and subwords work alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from limner.errors import SettingsError

MAX_STATES = 64
"""Maximum number of states; enough for six words of a word vocabulary, or for four phrases of two words."""

Constraint = Sequence[Sequence[int]]
"""Alternatives as token ids; the constraint is satisfied by a sentence with at least one of them."""


class WordBoundaries(NamedTuple):
    """Tokens of a vocabulary that are parts of words; both sets are empty where every token is a word."""

    continues: frozenset[int] = frozenset()
    """Tokens that continue the word before them: subwords within a word, joiners of compounds."""
    joins: frozenset[int] = frozenset()
    """Tokens of `continues` that the next word continues as well: joiners of compounds."""


class _Progress(NamedTuple):
    """Progress of a sentence through its constraints: a state of the machine."""

    open: frozenset[int]
    """Numbers of the constraints that are not satisfied."""
    begun: frozenset[tuple[int, tuple[int, ...]]]
    """Constraints with an alternative that the sentence has begun, and its remaining tokens; none remain where only the
    next token decides whether the last word is complete."""
    is_joined: bool
    """Whether the next word is a part of the word before."""


@dataclass(frozen=True)
class Automaton:
    """Deterministic finite-state machine over tokens; state 0 is the state of the empty sentence."""

    boundaries: WordBoundaries
    """Tokens that are parts of words."""
    tokens: tuple[int, ...]
    """Tokens of the alternatives, the last columns of `transitions`."""
    transitions: tuple[tuple[int, ...], ...]
    """Next state of each state: after any other token that starts a word, any other token that continues a word, and
    each of `tokens`."""
    distances: tuple[float, ...]
    """Minimum number of tokens from each state until all constraints are satisfied."""

    @classmethod
    def build(cls, constraints: Sequence[Constraint], boundaries: WordBoundaries | None = None) -> Automaton:
        """Compile constraints; without boundaries, every token is a word; SettingsError beyond `MAX_STATES` states."""
        boundaries = boundaries or WordBoundaries()
        alternatives = [sorted({tuple(alternative) for alternative in constraint}) for constraint in constraints]
        assert all(map(all, alternatives)) and all(alternatives), "an alternative without tokens"
        used = {token for constraint in alternatives for alternative in constraint for token in alternative}
        tokens = (*sorted(used | boundaries.joins),) if constraints else ()
        start = _Progress(frozenset(range(len(alternatives))), frozenset(), is_joined=False)
        numbers, transitions = {start: 0}, list[tuple[int, ...]]()
        pending = [start]
        for state in pending:
            following = [
                _advance(state, alternatives, boundaries, token, continues)
                for token, continues in ((None, False), (None, True), *((t, t in boundaries.continues) for t in tokens))
            ]
            for successor in following:
                if successor not in numbers:
                    numbers[successor] = len(numbers)
                    pending.append(successor)
            if len(numbers) > MAX_STATES:
                raise SettingsError(
                    f"must_include: {len(constraints)} constraints with {len(used)} different tokens need more than "
                    f"{MAX_STATES} states of the search; give fewer or shorter words"
                )
            transitions.append(tuple(numbers[successor] for successor in following))
        accepting = [state.open <= {number for number, rest in state.begun if not rest} for state in numbers]
        return cls(boundaries, tokens, tuple(transitions), _distances(transitions, accepting))

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.transitions)

    def after(self, tokens: Sequence[int], state: int = 0) -> int:
        """Return the state after tokens."""
        for token in tokens:
            state = self.transitions[state][self.column(token)]
        return state

    def column(self, token: int) -> int:
        """Return the column of `transitions` of a token."""
        if token in self.tokens:
            return 2 + self.tokens.index(token)
        return int(token in self.boundaries.continues)

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether a sentence satisfies all constraints."""
        return not self.distances[self.after(tokens)]


def _advance(
    state: _Progress, alternatives: Sequence[Constraint], boundaries: WordBoundaries, token: int | None, continues: bool
) -> _Progress:
    """Return the state after a token; None stands for any token outside the alternatives."""
    still_open = state.open
    if not continues:
        still_open -= {number for number, rest in state.begun if not rest}
    begun = {(number, rest[1:]) for number, rest in state.begun if rest[:1] == (token,)}
    if not state.is_joined:
        begun |= {
            (n, tuple(alternative[1:]))
            for n in still_open
            for alternative in alternatives[n]
            if alternative[0] == token
        }
    if not boundaries.continues:  # a token is a whole word, whatever follows
        still_open -= {number for number, rest in begun if not rest}
    is_joined = token in boundaries.joins or (state.is_joined and continues)
    kept = frozenset((number, rest) for number, rest in begun if number in still_open)
    return _Progress(still_open, kept, is_joined and bool(still_open))


def _distances(transitions: Sequence[Sequence[int]], accepting: Sequence[bool]) -> tuple[float, ...]:
    """Compute the number of transitions from each state to the nearest accepting one."""
    distances = [0.0 if accepts else math.inf for accepts in accepting]
    for _ in transitions:  # a shortest path visits no state twice
        distances = [
            min(distance, 1 + min(distances[successor] for successor in row))
            for distance, row in zip(distances, transitions, strict=True)
        ]
    return tuple(distances)
