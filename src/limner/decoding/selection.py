"""Rules of decoding: selection of continuations, ranks and ends of hypotheses, banned tokens, prefixes.

This module does not import torch: exported models decode by the same rules.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.decoding.next_tokens import Floats, NextTokens, Tokens
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.errors import SettingsError
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.decoding.search import Beam


def normalised_log_prob(log_prob: float, length: int, exponent: float) -> float:
    """Compute log_prob / length ** exponent; the length counts the tokens, and the end-of-sentence token if present."""
    return float(log_prob / max(1, length) ** exponent)


def must_include_error(id_: str) -> SettingsError:
    """Return the error of an example for which every sentence with its `must_include` has probability zero."""
    return SettingsError(
        f"must_include of example '{id_}': every sentence with these words has probability zero under the model and "
        "the decoding settings; give other words"
    )


class HypothesisLists:
    """Complete hypotheses of every example, best first, and whether an example needs more of them."""

    def __init__(self, count: int, settings: DecodingSettings, constrained: Collection[int] = ()) -> None:
        """Create empty lists for `count` examples; hypotheses of the examples `constrained` satisfy constraints."""
        self.settings = settings
        self.hypotheses: list[list[Sentence]] = [[] for _ in range(count)]
        self.constrained = frozenset(constrained)

    def insert(
        self,
        beam: Beam,
        n: Tokens,
        k: Tokens,
        log_probs: Floats,
        *,
        ended: bool,
    ) -> None:
        """Add the hypotheses at indices `n` and `k` of a beam with their log-probabilities, if above -inf."""
        rows = zip(n.tolist(), log_probs.tolist(), beam.tokens[n, k].tolist(), beam.totals[n, k].tolist(), strict=True)
        for row, log_prob, tokens, totals in rows:
            if log_prob > -math.inf:
                score = self.score(log_prob, len(tokens) + ended)
                hypothesis = Sentence(tuple(tokens), log_prob, score, ended, tuple(totals))
                bisect.insort(self.hypotheses[beam.live[row]], hypothesis, key=lambda ranked: -ranked.score)

    def score(self, log_prob: float, length: int) -> float:
        """Compute the score of a hypothesis; see `normalised_log_prob`."""
        return normalised_log_prob(log_prob, length, self.settings.length_penalty)

    def n_best(self, ids: Sequence[str]) -> list[list[Sentence]]:
        """Return the `n_best` hypotheses of every example; SettingsError if none satisfies its constraints."""
        if missing := [ids[example] for example in sorted(self.constrained) if not self.hypotheses[example]]:
            raise must_include_error(missing[0])
        return [hypotheses[: self.settings.n_best] for hypotheses in self.hypotheses]

    def counts(self, examples: Sequence[int]) -> list[int]:
        """Return the number of hypotheses of each of some examples."""
        return [len(self.hypotheses[example]) for example in examples]

    def is_stuck(self, example: int) -> bool:
        """Whether the best hypothesis so far counts as cut off where every next token has probability zero."""
        return example not in self.constrained and not self.hypotheses[example]

    def is_done(self, example: int, best: float, length: int) -> bool:
        """Whether no continuation of log-probability `best` or less can enter the `n_best` of an example.

        The incomplete hypotheses have `length` tokens.
        """
        hypotheses, needed = self.hypotheses[example], self.settings.n_best
        counted = hypotheses
        if example in self.constrained and self.settings.stop != "shrink":
            # The first that satisfy constraints are improbable: those count that are better than all others.
            counted = [hypothesis for hypothesis in hypotheses if hypothesis.log_prob >= best]
        if best == -math.inf:
            return True
        if len(counted) >= self.settings.beam_size:
            last = counted[self.settings.beam_size - 1].score
            if self.settings.stop != "improve" or self.score(best, length) <= last:
                return True
        # Log-probabilities only decrease, so no continuation scores above `best` at the maximum length.
        return len(hypotheses) >= needed and self.score(best, self.settings.max_length) <= hypotheses[needed - 1].score


def banned_tokens(settings: DecodingSettings) -> list[int]:
    """Return the tokens that are never generated."""
    return [SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, *([SPECIAL_TOKENS.unk] if settings.ban_unknown else [])]


def require_prefixes(
    prefixes: Sequence[Sequence[int]] | None, ids: Sequence[str], max_length: int, vocab_size: int
) -> Sequence[Sequence[int]]:
    """Check the prefixes of examples; None stands for no words.

    Raises:
        SettingsError: the number of prefixes differs from the number of examples, or a prefix is too long or has ids
            that are not in the vocabulary.
    """
    prefixes = [()] * len(ids) if prefixes is None else prefixes
    if len(prefixes) != len(ids):
        raise SettingsError(f"prefixes: expected one for each of {len(ids)} examples, got {len(prefixes)}")
    for id_, prefix in zip(ids, prefixes, strict=True):
        if len(prefix) > max_length:
            raise SettingsError(
                f"prefix of example '{id_}': expected at most {max_length} tokens, got {len(prefix)}; raise "
                "max_length, or shorten the prefix"
            )
        if not all(SPECIAL_TOKENS.unk <= token < vocab_size for token in prefix):
            expected = f"token ids from {SPECIAL_TOKENS.unk} to {vocab_size - 1}"
            raise SettingsError(f"prefix of example '{id_}': expected {expected}, got {list(prefix)[:20]}")
    return prefixes


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
