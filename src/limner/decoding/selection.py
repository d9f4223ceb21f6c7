"""Selection of continuations of hypotheses: the most probable continuations, or random continuations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.decoding.next_tokens import Floats, NextTokens, Tokens
from limner.decoding.ranking import HypothesisLists
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.decoding.search import Beam


class Choice(NamedTuple):
    """Continuations of the N examples of a beam: K incomplete hypotheses, and complete hypotheses."""

    token: Tokens  # (N, K): next token
    total: Floats  # (N, K): log-probability; -inf where there is no continuation
    parent: Tokens  # (N, K): index of the hypothesis that each continues
    ends: NDArray[np.bool_]  # (N, K): true where a hypothesis is complete
    end_total: Floats  # (N, K): log-probabilities of complete hypotheses
    end_parent: Tokens  # (N, K): index of the hypothesis that each completes


@dataclass(frozen=True)
class BestContinuations:
    """Selection of the most probable continuations of each example (`divide`)."""

    settings: DecodingSettings
    results: HypothesisLists
    """Complete hypotheses of the search."""

    def __call__(self, next_tokens: NextTokens, beam: Beam) -> Choice:
        """Select continuations; the log-probabilities are modified."""
        next_tokens.add(beam.total)
        if self.settings.beam_size == 1:
            best = next_tokens.best(1)
            return continue_each(best.token[:, 0], best.total[:, 0])
        best = next_tokens.best(2 * self.settings.beam_size)
        complete = self.results.counts(beam.live) if self.settings.stop == "shrink" else ()
        return divide(best.total[:, 0], best.parent[:, 0], best.token[:, 0], self.settings, complete)


def continue_each(token: Tokens, total: Floats) -> Choice:
    """Continue every hypothesis by one token (N, K), or complete it where that is the end-of-sentence token."""
    ends = token == SPECIAL_TOKENS.eos
    parent = np.arange(token.shape[1])[None].repeat(len(token), 0)
    following = np.where(ends, total.dtype.type(-math.inf), total) if ends.any() else total
    return Choice(token, following, parent, ends, total, parent)


def divide(total: Floats, parent: Tokens, token: Tokens, settings: DecodingSettings, complete: Sequence[int]) -> Choice:
    """Divide the 2K best continuations of N examples, best first, into complete and incomplete hypotheses.

    With `settings.stop` full, hypotheses that end within the first K are complete, and the K best others continue. With
    shrink, only the first K - C count, where C hypotheses of the example are complete already.
    """
    none = total.dtype.type(-math.inf)
    if settings.stop == "shrink":
        left = settings.beam_size - np.array(complete)[:, None]
        total = np.where(np.arange(total.shape[1]) < left, total, none)
    ends = token == SPECIAL_TOKENS.eos
    following = np.where(ends, none, total)
    order = np.argsort(-following, axis=1, kind="stable")[:, : settings.beam_size]
    rows = np.arange(len(total))[:, None]
    first = slice(settings.beam_size)
    return Choice(
        token=token[rows, order],
        total=following[rows, order],
        parent=parent[rows, order],
        ends=ends[:, first],
        end_total=total[:, first],
        end_parent=parent[:, first],
    )


class Sampler:
    """Selection that draws the continuation of every hypothesis.

    The temperature divides the log-probabilities of the allowed tokens; of the `top_k` most probable tokens, the
    smallest set with a total probability of `top_p` is kept.

    The uniform random numbers depend on the seed and the id of the example only.
    """

    def __init__(self, sample: SampleSettings, settings: DecodingSettings, ids: Sequence[str]) -> None:
        shape = (settings.max_length, settings.beam_size)
        draws = [np.random.default_rng([sample.seed, *id_.encode()]).random(shape) for id_ in ids]
        self.draws = np.stack(draws)  # (B, max_length, K)
        self.sample = sample

    def __call__(self, next_tokens: NextTokens, beam: Beam) -> Choice:
        """Draw continuations."""
        greedy = int(self.sample.greedy_first)
        uniform = self.draws[beam.live, beam.length]
        token = next_tokens.draw(self.sample, uniform[:, greedy:])
        if greedy:
            token = np.concatenate([next_tokens.best(1, groups=uniform.shape[1]).token[:, 0], token], 1)
        total = beam.total + next_tokens.gather(token[:, :, None])[:, :, 0]
        return continue_each(token, total)


class SampleRecorder:
    """Trace of a search that keeps the samples of each example in the order of the rows of the beam."""

    def __init__(self, count: int, samples: int) -> None:
        self._tokens: list[list[list[int]]] = [[[] for _ in range(samples)] for _ in range(count)]
        self._log_probs = [[0.0] * samples for _ in range(count)]
        self._ended = [[False] * samples for _ in range(count)]

    def __call__(self, beam: Beam, choice: Choice | None) -> None:
        """Append the tokens of one step; see `limner.decoding.search.Trace`."""
        if choice is None:
            return
        steps = choice.token.tolist(), choice.ends.tolist(), choice.end_total.tolist()
        for example, tokens, ends, totals in zip(beam.live, *steps, strict=True):
            for row, (token, end, total) in enumerate(zip(tokens, ends, totals, strict=True)):
                if self._ended[example][row] or total == -math.inf:
                    continue
                self._log_probs[example][row], self._ended[example][row] = total, end
                if not end:
                    self._tokens[example][row].append(token)

    def hypotheses(self) -> list[list[Sentence]]:
        """Return the sentences of each example in the order of the rows; their score is the log-probability."""
        return [
            [Sentence(tuple(ids), total, total, end) for ids, total, end in zip(*rows, strict=True)]
            for rows in zip(self._tokens, self._log_probs, self._ended, strict=True)
        ]
