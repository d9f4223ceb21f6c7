"""Searches of several requests whose steps are computed together; new ones join between steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limner.data.examples import collate
from limner.decoding.ranking import Hypothesis
from limner.decoding.search import Search
from limner.decoding.torch_models import TorchModels, TorchNextTokens
from limner.models.protocols import Memory, State, device_of
from limner.server.jobs import Job


class Decided(NamedTuple):
    """Beginning of the best sentence that no further step can change."""

    tokens: list[int]
    totals: list[float]
    """Log-probability up to each token."""


class Cohort:
    """Requests that joined at the same time with the same model and settings: one search."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """Encode the requests.

        Raises:
            LimnerError: the words of a request cannot be included.
        """
        self.jobs = list(jobs)
        first, models = jobs[0], jobs[0].request.generator.models
        batch = collate([job.example() for job in jobs]).to(device_of(models[0].model))
        self.models = TorchModels([one.model for one in models], first.decoding.precision, batch.target_in.device)
        self._memories = self.models.encode(batch)
        self.search = Search(
            self.models,
            self._memories,
            batch.ids,
            first.decoding,
            [job.prefix for job in jobs],
            [job.constraint for job in jobs],
        )
        self.emitted = [0] * len(jobs)
        self.finished: set[int] = set()

    def memories_of(self, job: Job) -> list[Memory]:
        """Return the memory of each model of a request, one row."""
        memories: list[Memory] = self.models.select(self._memories, np.array([self.jobs.index(job)]))
        return memories

    @property
    def rows(self) -> int:
        """Number of hypotheses that are continued."""
        return 0 if self.search.beam is None else self.search.beam.total.size

    @property
    def examples(self) -> int:
        """Number of requests that are not finished."""
        return 0 if self.search.beam is None else len(self.search.beam.live)

    def drop_cancelled(self) -> None:
        """Leave out cancelled requests; their rows leave with the next step."""
        self.search.left |= {number for number, job in enumerate(self.jobs) if job.cancelled}

    def newly_finished(self) -> list[tuple[Job, list[Hypothesis]]]:
        """Return requests that finished since the last call, with their sentences."""
        live = set() if self.search.beam is None else set(self.search.beam.live)
        done = set(range(len(self.jobs))) - live - self.finished
        self.finished |= done
        chosen = sorted(number for number in done if not self.jobs[number].cancelled)
        n_best = self.search.settings.n_best
        return [(self.jobs[number], self.search.results.hypotheses[number][:n_best]) for number in chosen]

    def decided(self, number: int) -> Decided:
        """Return what all hypotheses of a live request agree on, the best complete one included."""
        beam = self.search.beam
        assert beam is not None
        row = beam.live.index(number)
        alive = beam.total[row] > -math.inf
        tokens = beam.tokens[row, alive]
        differs = (tokens != tokens[:1]).any(0)
        ids = tokens[0, : int(differs.argmax()) if differs.any() else None].tolist()
        if complete := self.search.results.hypotheses[number]:
            ids = common_prefix(ids, complete[0].tokens)
        return Decided(ids, beam.totals[row, alive][0, : len(ids)].tolist())


def common_prefix(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the tokens that both sequences begin with."""
    same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return list(one[: min(len(one), len(other)) if same is None else same])


class _Joined(NamedTuple):
    parts: list[list[Memory]]
    memories: list[Memory]


class JointSteps:
    """Computes the next step of all cohorts, those of one model and shape in one batch."""

    def __init__(self) -> None:
        self._joined: dict[Any, _Joined] = {}

    def advance(self, cohorts: Sequence[Cohort]) -> list[tuple[Cohort, Exception]]:
        """Continue every cohort by one token; return those that failed, with the error."""
        groups: dict[Any, list[Cohort]] = {}
        for cohort in cohorts:
            if cohort.search.beam is not None:
                groups.setdefault(_key(cohort), []).append(cohort)
        self._joined = {key: joined for key, joined in self._joined.items() if key in groups}
        failed: list[tuple[Cohort, Exception]] = []
        for key, group in groups.items():
            try:
                self._step(key, group)
            except Exception as error:  # the error of one cohort must not reach the others
                if len(group) == 1:
                    failed.append((group[0], error))
                else:
                    failed += self._one_by_one(group)
        return failed

    def _one_by_one(self, group: Sequence[Cohort]) -> list[tuple[Cohort, Exception]]:
        failed = []
        for cohort in group:
            if cohort.search.beam is None:
                continue
            try:
                self._step(None, [cohort])
            except Exception as error:
                failed.append((cohort, error))
        return failed

    def _step(self, key: Any, group: Sequence[Cohort]) -> None:  # noqa: ANN401
        beams = [cohort.search.beam for cohort in group if cohort.search.beam is not None]
        memory = self._memories(key, [beam.memory for beam in beams])
        states = [concatenate(list(parts)) for parts in zip(*(beam.state for beam in beams), strict=True)]
        next_tokens, after = group[0].models.step(np.concatenate([beam.last for beam in beams]), memory, states)
        values = torch.split(next_tokens.values, [len(beam.live) for beam in beams])
        parts = zip(*(split(state, [beam.total.size for beam in beams]) for state in after), strict=True)
        for cohort, part, state in zip(group, values, parts, strict=True):
            cohort.search.advance(TorchNextTokens(part), list(state))

    def _memories(self, key: Any, parts: list[list[Memory]]) -> list[Memory]:  # noqa: ANN401
        """Concatenate memories, which change only when a request joins or leaves."""
        if len(parts) == 1:
            return parts[0]
        joined = self._joined.get(key)
        if joined is None or not _same(joined.parts, parts):
            joined = _Joined(parts, [concatenate(list(memories)) for memories in zip(*parts, strict=True)])
            self._joined[key] = joined
        return joined.memories


def _same(one: list[list[Memory]], other: list[list[Memory]]) -> bool:
    """Whether two lists hold the same objects."""
    return len(one) == len(other) and all(
        a is b for first, second in zip(one, other, strict=True) for a, b in zip(first, second, strict=True)
    )


def _key(cohort: Cohort) -> Any:  # noqa: ANN401
    """Return what cohorts have in common whose steps can be computed together."""
    beam = cohort.search.beam
    assert beam is not None
    return (
        tuple(id(model) for model in cohort.models.models),
        cohort.models.precision,
        beam.total.shape[1],
        signature(beam.memory),
        signature(beam.state),
    )


def signature(tree: Any) -> Any:  # noqa: ANN401
    """Return the structure of nested tuples and lists of tensors, with shapes except for the number of rows."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return tree.shape[1:], tree.dtype
    return type(tree), tuple(signature(part) for part in tree)


def concatenate(trees: Sequence[Any]) -> Any:  # noqa: ANN401
    """Concatenate the rows of memories or states of one signature."""
    first = trees[0]
    if first is None or len(trees) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    return _rebuild(first, [concatenate(list(parts)) for parts in zip(*trees, strict=True)])


def split(tree: Any, sizes: Sequence[int]) -> list[State]:  # noqa: ANN401
    """Split the rows of memories or states; the inverse of `concatenate`."""
    if tree is None:
        return [None] * len(sizes)
    if isinstance(tree, Tensor):
        return list(torch.split(tree, list(sizes)))
    parts = [split(part, sizes) for part in tree]
    return [_rebuild(tree, [part[number] for part in parts]) for number in range(len(sizes))]


def _rebuild(like: Any, parts: list[Any]) -> Any:  # noqa: ANN401
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
