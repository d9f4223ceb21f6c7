"""The engine: encodes, decodes and finishes requests, in batches where possible.

    requests ── encode ── start ── step … step ── Request.finished(sentences)
                features   model    model and search, rules

A local call (`run`) goes this way batch by batch. The service calls the same methods as requests arrive: new requests
join between two steps (`start`), tokens are streamed (`Request.decided`), and an error reaches only the request that
causes it. The engine has no threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np

from limner.data.batching import batches_by_length, prefetch
from limner.decoding.automaton import Automaton
from limner.decoding.next_tokens import NextTokens, Tokens
from limner.decoding.search import Memory, Search, State, score_tokens
from limner.decoding.selection import must_include_error, normalised_log_prob
from limner.decoding.sentence import Sentence
from limner.decoding.trees import signature, split
from limner.errors import MediaError
from limner.generation.request import Features, Request
from limner.progress import Progress
from limner.text.vocab import SPECIAL_TOKENS


class Cohort:
    """Requests of one generator and the same settings that start together."""

    def __init__(self, requests: Sequence[Request]) -> None:
        """Encode the requests, and start their search; SettingsError or ResourceError if that is impossible."""
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
        rows = [rules.bonus(request) if rules and request.evidence is not None else None for request in requests]
        no_bonus = np.zeros(self.model.vocab_size, np.float32)
        has_bonus = any(row is not None for row in rows)
        self.search = Search(
            self.model,
            self.memory,
            [request.id for request in requests],
            settings,
            [request.prefix for request in requests],
            constraints,
            first.trace,
            np.stack([no_bonus if row is None else row for row in rows]) if has_bonus else None,
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
        """Apply the rules to the hypotheses of a row, and deliver them; SettingsError if all have probability zero."""
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


def common_prefix(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the tokens that both sequences begin with."""
    length = 0
    for token, other in zip(first, second, strict=False):
        if token != other:
            break
        length += 1
    return list(first[:length])


def request_batches(requests: Sequence[Request], batch_size: int) -> list[list[Request]]:
    """Group requests of similar length of their source sentences into batches of bounded memory."""
    lengths = [len(request.source_tokens or ()) for request in requests]
    return [[requests[row] for row in rows] for rows in batches_by_length(lengths, batch_size)]


CONSTRAINED_BEAMS = 128
"""Maximum number of beams of the constrained requests in one search, one for each state of a constraint."""
BATCHES_AHEAD = 2
"""Number of batches whose features are read while another batch is decoded."""


class Engine:
    """Requests that are generated at the same time."""

    def __init__(self, features: Features | None = None, isolated: tuple[type[Exception], ...] = (MediaError,)) -> None:
        """Start without requests.

        Args:
            features: features of the images of requests; None where requests have their features.
            isolated: types of the errors that are delivered to the request that causes them (`Request.failed`) instead
                of being raised; the other requests of its batch are then computed one by one.
        """
        self.features, self.isolated = features, isolated
        self.live: list[Cohort] = []
        self._memories: dict[object, tuple[list[Memory], Memory]] = {}

    def run(
        self, batches: Sequence[Sequence[Request]], *, ahead: bool = False, on_progress: Progress | None = None
    ) -> Iterator[Sequence[Request]]:
        """Generate the sentences of batches of requests, each of one generator and the same settings.

        Args:
            batches: requests that are computed together.
            ahead: whether a thread encodes the next batches meanwhile.
            on_progress: called with the number of requests done and their total.

        Yields:
            Each batch when it is finished.
        """
        done, total = 0, sum(map(len, batches))
        for batch in prefetch(self.encode, batches, BATCHES_AHEAD) if ahead else map(self.encode, batches):
            self.start(batch)
            while self.live:
                self.step()
            done += len(batch)
            if on_progress is not None:
                on_progress(done, total)
            yield batch

    def encode(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Compute the image features of requests, and the rules' results on the features; return the requests."""
        self._call_isolated(self._encode, requests)
        return requests

    def _encode(self, requests: Sequence[Request]) -> None:
        if self.features is not None:
            for request, features in zip(requests, self.features(requests), strict=True):
                request.features = features
        for request in requests:
            if (rules := request.generator.rules) is not None:
                rules.prepare(request)

    def start(self, requests: Sequence[Request]) -> None:
        """Start the searches of requests whose images are encoded: one for each generator, settings and kind."""
        groups: dict[object, list[Request]] = {}
        for request in requests:
            if not request.is_done:
                kind = request.features is None, request.states > 1  # all or none with features or constraints
                groups.setdefault((id(request.generator), request.decoding, *kind), []).append(request)
        for group in groups.values():
            size = max(1, CONSTRAINED_BEAMS // max(request.states for request in group))
            unconstrained = all(request.states == 1 for request in group)
            for first in range(0, len(group), len(group) if unconstrained else size):
                part = group if unconstrained else group[first : first + size]
                self._call_isolated(lambda members: self.live.append(Cohort(members)), part)

    def step(self) -> None:
        """Continue all live searches by one token, and deliver decided tokens and complete sentences."""
        groups: dict[object, list[Cohort]] = {}
        for cohort in self.live:
            cohort.search.left |= {row for row, request in enumerate(cohort.requests) if request.is_done}
            if cohort.search.beam is not None:
                groups.setdefault(cohort.key if len(self.live) > 1 else None, []).append(cohort)
        self._memories = {key: joined for key, joined in self._memories.items() if key in groups}
        for key, cohorts in groups.items():
            try:
                self._advance(cohorts, *cohorts[0].model.step(*self._step_inputs(key, cohorts)))
            except self.isolated:
                for cohort in cohorts:
                    self._step_alone(cohort)
        for cohort in self.live:
            for row in cohort.completed():
                self._call_isolated(partial(cohort.finish, row), [cohort.requests[row]])
            if any(request.streams for request in cohort.requests):
                cohort.stream()
        self.live = [cohort for cohort in self.live if cohort.search.beam is not None]

    def _step_inputs(self, key: object, cohorts: Sequence[Cohort]) -> tuple[Tokens, Memory, State]:
        """Return the last tokens, the memory and the state of the beams of cohorts, in one batch."""
        beams = [cohort.search.beam for cohort in cohorts if cohort.search.beam is not None]
        if len(beams) == 1:
            return beams[0].last, beams[0].memory, beams[0].state
        state = cohorts[0].model.concatenate([beam.state for beam in beams])
        return np.concatenate([beam.last for beam in beams]), self._joint_memory(key, cohorts), state

    def _advance(self, cohorts: Sequence[Cohort], next_tokens: NextTokens, state: State) -> None:
        """Continue the searches of cohorts, whose rows follow each other in the result of a step."""
        beams = [cohort.search.beam for cohort in cohorts if cohort.search.beam is not None]
        if len(beams) == 1:
            return cohorts[0].search.advance(next_tokens, state)
        states = split(state, [beam.total.size for beam in beams])
        parts = next_tokens.split([len(beam.live) for beam in beams])
        for cohort, *step in zip(cohorts, parts, states, strict=True):
            cohort.search.advance(*step)

    def _step_alone(self, cohort: Cohort) -> None:
        """Compute the next step of one cohort; its requests fail if the step fails."""
        try:
            if cohort.search.beam is not None:
                self._advance([cohort], *cohort.model.step(*self._step_inputs(None, [cohort])))
        except self.isolated as error:
            cohort.search.beam = None
            for request in cohort.requests:
                if not request.is_done:
                    request.failed(error)

    def _joint_memory(self, key: object, cohorts: Sequence[Cohort]) -> Memory:
        """Concatenate the memories of cohorts, which change only when a request joins or leaves."""
        parts = [cohort.search.beam.memory for cohort in cohorts if cohort.search.beam is not None]
        before, joined = self._memories.get(key, ([], None))
        if len(before) != len(parts) or any(old is not new for old, new in zip(before, parts, strict=True)):
            joined = cohorts[0].model.concatenate(parts)
            self._memories[key] = parts, joined
        return joined

    def _call_isolated(self, work: Callable[[Sequence[Request]], None], requests: Sequence[Request]) -> None:
        """Do some work for requests at once, or one by one where it fails."""
        requests = [request for request in requests if not request.is_done]
        try:
            if requests:
                work(requests)
        except self.isolated as error:
            if len(requests) == 1:
                requests[0].failed(error)
            for request in requests if len(requests) > 1 else ():
                self._call_isolated(work, [request])
