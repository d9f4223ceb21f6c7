"""Settings and records of a comparison of systems."""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from limner.bounds import BootstrapSamples, Count, Level, Seed
from limner.errors import counted
from limner.metrics.significance import LEVEL, SAMPLES, SEED, TRIALS, Interval, check_trials
from limner.runs.records import Record
from limner.settings import Settings

DAGGERS = "†‡"
"""Marks of scores that are significantly better than the scores of the first and of the second system."""


class ComparisonSettings(Settings):
    """Metrics of a comparison and settings of the significance tests."""

    metrics: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of metrics; None for the metrics of Calixto et al. (2017), or for labels all metrics of their kind."""
    trials: Count = TRIALS
    """Number of trials of approximate randomisation, for systems of one run."""
    samples: BootstrapSamples = SAMPLES
    """Number of bootstrap samples of the segments."""
    seed: Seed = SEED
    """Seed of the trials and of the samples."""
    level: Level = LEVEL
    """Significance level: a difference is significant if its adjusted p is below it."""

    @model_validator(mode="after")
    def _enough_trials(self) -> Self:
        check_trials(self.trials, self.level)
        return self


class ComparedSystem(Record):
    """A system with one or several runs."""

    name: str
    runs: tuple[str, ...]
    """Paths of the run directories."""


class ComparedMetric(Record):
    """A metric of a comparison."""

    name: str
    signature: str
    higher_is_better: bool


class SystemScore(Record):
    """Score of a system by a metric."""

    system: str
    metric: str
    value: float
    """Mean score over the runs."""
    values: tuple[float, ...]
    interval: Interval
    """Interval of the mean score with a confidence of 1 - level, over segments and, with several runs, over runs."""
    marks: str
    """† if significantly better than the first system, ‡ if significantly better than the second."""

    @property
    def spread(self) -> float | None:
        """Standard deviation over the runs; None for a single run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


Probability = Annotated[float, Field(ge=0, le=1)]


class Contrast(Record):
    """Difference between a system and a baseline by a metric."""

    system: str
    baseline: str
    metric: str
    difference: float
    """Mean score of the system minus the mean score of the baseline."""
    p: Probability
    """Two-sided p-value."""
    adjusted_p: Probability
    """p-value adjusted by Holm's method for all pairs of systems that are compared by the metric."""
    interval: Interval
    """Interval of the difference with a confidence of 1 - level, not adjusted."""
    over_runs: bool | None = None
    """Whether the test is over runs and segments, not over the segments of one run alone; None in older records."""


class Comparison(Record):
    """Scores of several systems and the significance of their differences."""

    split: str
    """Name of the evaluations."""
    systems: tuple[ComparedSystem, ...]
    metrics: tuple[ComparedMetric, ...]
    scores: tuple[SystemScore, ...]
    """Score of every system by every metric."""
    contrasts: tuple[Contrast, ...]
    """Differences of all other systems to the first system, and of all but the first two to the second system."""
    segments: int
    settings: ComparisonSettings
    notes: tuple[str, ...] = ()
    """Reasons to doubt the tests, one a line."""

    @property
    def pairs(self) -> int:
        """Number of pairs of systems that are compared by each metric."""
        return len({(contrast.system, contrast.baseline) for contrast in self.contrasts})

    @property
    def signature(self) -> str:
        """Tests, numbers of trials, samples and segments, and correction."""
        runs, over_runs = [len(system.runs) for system in self.systems], {test.over_runs for test in self.contrasts}
        tests = [f"ar:{self.settings.trials}"] if False in over_runs else []
        same = "|same runs" if len({system.runs for system in self.systems}) == 1 else ""
        tests += [f"hierarchical-t:cochran-cox|runs:{'+'.join(map(str, runs))}{same}"] if True in over_runs else []
        correction = f"holm:{self.pairs}" if self.pairs > 1 else "correction:none"
        sampling = f"samples:{self.settings.samples}|seed:{self.settings.seed}|segments:{self.segments}"
        return "|".join([*tests, sampling, correction])

    @property
    def explanation(self) -> list[str]:
        """Marks, tests, intervals, correction and notes in words."""
        settings, runs = self.settings, [len(system.runs) for system in self.systems]
        named = zip(DAGGERS, self.systems, strict=False)
        better = ", ".join(f"{dagger} better than {system.name}" for dagger, system in named)
        over, over_runs = counted(self.segments, "segment"), {test.over_runs for test in self.contrasts}
        tests = []
        if False in over_runs:
            tests.append(
                f"approximate randomisation, {counted(settings.trials, 'trial')} over {over}; one run of a system, so "
                "that seeds were not sampled: another seed may give another result"
            )
        if True in over_runs:
            tests.append(
                f"hierarchical t-test over runs ({', '.join(map(str, runs))}) and {over}, quantiles of Cochran and Cox"
            )
        return [
            f"{better}: p < {settings.level:g}",
            *(f"test: {test}" for test in tests),
            f"intervals: {100 * (1 - settings.level):g} %, bootstrap of the segments with "
            f"{counted(settings.samples, 'sample')}{' and variance between runs' if max(runs) > 1 else ''}",
            f"correction: Holm, {self.pairs} pairs of systems by each metric"
            if self.pairs > 1
            else "correction: none, one pair of systems",
            f"signature: {self.signature}",
            *(f"note: {note}" for note in self.notes),
        ]

    def score(self, system: str, metric: str) -> SystemScore:
        """Return the score of a system by a metric; KeyError if there is none."""
        return {(score.system, score.metric): score for score in self.scores}[system, metric]
