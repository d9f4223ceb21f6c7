"""The engine: encodes, decodes and finishes requests, in batches where possible.

    requests ── encode ── start ── step … step ── Request.finished(sentences)
                features   model    model and search, rules

A local call (`run`) goes this way batch by batch. The service calls the same methods as requests arrive: new requests
join between two steps (`start`), tokens are streamed (`Request.decided`), and an error reaches only the request that
causes it. The engine has no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from limner.data.batching import prefetch
from limner.decoding.next_tokens import NextTokens, Tokens
from limner.decoding.search import Memory, State
from limner.decoding.trees import split
from limner.errors import MediaError
from limner.generation.cohort import Cohort
from limner.generation.request import Features, Request
from limner.progress import Progress

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
        """Take the features of the images of requests, and what the rules compute of them; return the requests."""
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
        """Start the searches of requests whose images are encoded."""
        for group in groups_of(requests):
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


def groups_of(requests: Iterable[Request]) -> list[list[Request]]:
    """Group requests of equal generator and settings, all or none with features and all or none with constraints."""
    groups: dict[object, list[Request]] = {}
    for request in requests:
        if not request.is_done:
            kind = request.features is None, request.states > 1
            groups.setdefault((id(request.generator), request.decoding, *kind), []).append(request)
    return list(groups.values())
