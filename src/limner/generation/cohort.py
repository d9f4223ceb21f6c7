"""Requests that are decoded by one search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from limner.decoding.automaton import Automaton
from limner.decoding.next_tokens import Floats
from limner.decoding.ranking import must_include_error, normalised_log_prob
from limner.decoding.search import Search, score_tokens
from limner.decoding.sentence import Sentence
from limner.decoding.trees import signature
from limner.generation.request import Request
from limner.text.vocab import SPECIAL_TOKENS


class Cohort:
    """Requests of one generator and the same settings that start together."""

    def __init__(self, requests: Sequence[Request]) -> None:
        """Encode the requests, and start their search.

        Raises:
            SettingsError: the prefix or the words of a request do not fit its settings.
            ResourceError: there is not enough memory.
        """
        first = requests[0]
        self.requests = list(requests)
        self.model = first.generator.model(first.decoding)
        self.memory = self.model.encode(requests)
        constraints = None
        if any(request.constraint is not None for request in requests):
            constraints = [request.constraint or Automaton.build(()) for request in requests]
        rules, settings = first.generator.rules, first.decoding
        if rules is not None and any(rules.chooses(request) for request in requests):
            settings = settings.model_copy(update={"n_best": settings.beam_size})
        self.search = Search(
            self.model,
            self.memory,
            [request.id for request in requests],
            settings,
            [request.prefix for request in requests],
            constraints,
            first.trace,
            bonus_of(requests, self.model.vocab_size),
        )
        self._finished: set[int] = set()
        self._decided = [0] * len(requests)

    @property
    def rows(self) -> int:
        """Number of hypotheses that are continued."""
        return 0 if self.search.beam is None else self.search.beam.total.size

    @property
    def live(self) -> int:
        """Number of requests that are not finished."""
        return 0 if self.search.beam is None else len(self.search.beam.live)

    @property
    def key(self) -> object:
        """Key that is equal for cohorts whose steps can be computed together."""
        beam, generator = self.search.beam, self.requests[0].generator
        assert beam is not None, "a search that is done"
        precision, width = self.search.settings.precision, beam.total.shape[1]
        return id(generator), precision, width, signature(beam.memory), signature(beam.state)

    def finish(self, row: int, requests: Sequence[Request]) -> None:
        """Apply the rules to the hypotheses of a row whose search is done, and deliver the sentences to its request.

        Raises:
            SettingsError: all sentences with the words that the request must include have probability zero.
        """
        (request,) = requests
        hypotheses, rules = self.search.without_bonus(row), request.generator.rules
        if not hypotheses:
            raise must_include_error(request.id)
        has_rules = rules is not None and request.evidence is not None
        kept = hypotheses if has_rules else hypotheses[: request.decoding.n_best]
        tokenizer = request.generator.tokenizer
        sentences = [sentence._replace(copied=request.copied).decoded(tokenizer) for sentence in kept]
        if rules is not None and has_rules:
            sentences = self._scored(row, rules.finish(request, sentences), request.exponent)
        request.finished(sentences)

    def _scored(self, row: int, sentences: Sequence[Sentence], exponent: float) -> list[Sentence]:
        """Return sentences of a request with the log-probabilities of sentences that the rules have made or changed."""
        changed = [place for place, sentence in enumerate(sentences) if sentence.text and not sentence.totals]
        if not changed:
            return list(sentences)
        encode, eos, scored = self.requests[row].generator.tokenizer.encode, SPECIAL_TOKENS.eos, list(sentences)
        tokens = [(*(sentences[place].tokens or encode(sentences[place].text)), eos) for place in changed]
        padded = np.array([*zip_longest(*tokens, fillvalue=eos)]).T  # (K, T)
        memory = self.model.select(self.memory, np.full(len(changed), row))
        log_probs, _ = score_tokens(self.model, memory, padded)
        for place, ids, totals in zip(changed, tokens, log_probs.cumsum(1, dtype=np.float64).tolist(), strict=True):
            sentence, log_prob = sentences[place], totals[len(ids) - 1]
            if sentence.tokens:
                scored[place] = sentence._replace(log_prob=log_prob, totals=tuple(totals[: len(ids) - 1]))
            else:
                score = normalised_log_prob(log_prob, len(ids), exponent)
                scored[place] = sentence._replace(log_prob=log_prob, score=score)
        return scored

    def completed(self) -> list[int]:
        """Return the requests whose search was completed since the last call, by their row."""
        live = set() if self.search.beam is None else set(self.search.beam.live)
        rows = set(range(len(self.requests))) - live - self._finished
        self._finished |= rows
        return [row for row in sorted(rows) if not self.requests[row].is_done]

    def stream(self) -> None:
        """Deliver the tokens that all hypotheses of a streaming request, the best complete one included, begin with."""
        beam = self.search.beam
        for place, row in enumerate(() if beam is None else beam.live):
            request = self.requests[row]
            if beam is None or not request.streams or request.is_done:
                continue
            alive = beam.total[place] > -math.inf
            tokens = beam.tokens[place, alive]
            differs = (tokens != tokens[:1]).any(0)
            agreed = tokens[0, : int(differs.argmax()) if differs.any() else None].tolist()
            if complete := self.search.results.hypotheses[row]:
                agreed = common_prefix(agreed, complete[0].tokens)
            if len(agreed) > self._decided[row]:
                self._decided[row] = len(agreed)
                request.decided(agreed, beam.totals[place, alive][0, : len(agreed)].tolist())


def bonus_of(requests: Sequence[Request], vocab_size: int) -> Floats | None:
    """Return the bonus of each token by the rules of each request, (B, V); None for no bonus."""
    rules = requests[0].generator.rules
    if rules is None:
        return None
    rows = [rules.bonus(request) if request.evidence is not None else None for request in requests]
    if all(row is None for row in rows):
        return None
    stacked: Floats = np.stack([np.zeros(vocab_size, np.float32) if row is None else row for row in rows])
    return stacked


def common_prefix(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the tokens that both sequences begin with."""
    length = 0
    for token, other in zip(first, second, strict=False):
        if token != other:
            break
        length += 1
    return list(first[:length])
