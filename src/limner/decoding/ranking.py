"""Rules of decoding that need no tensors: ranks and ends of hypotheses, banned tokens, prefixes.

This module does not import torch: exported models decode by the same rules.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from limner.decoding.next_tokens import Floats, Tokens
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
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
        f"must_include of example '{id_}': every sentence with these words has probability zero under the model; give "
        "other words"
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
        """Return the `n_best` hypotheses of every example.

        Raises:
            SettingsError: no sentence of an example satisfies its constraints with a probability above zero.
        """
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
