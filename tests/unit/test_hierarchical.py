"""Tests and intervals over runs and segments: error rates under the null hypothesis, and exact values."""

from itertools import islice

import numpy as np
import pytest
from scipy import stats

from limner.errors import SettingsError
from limner.metrics import significance
from limner.metrics.significance import HierarchicalDifference, RunScores

SEGMENTS, SIMULATIONS = 60, 1600
COUNTS = np.random.default_rng(1).multinomial(SEGMENTS, np.full(SEGMENTS, 1 / SEGMENTS), 1000)


def mean(totals):
    return totals[0] / totals[1]


def outputs(random, runs, run_effect=0.0, system_effect=0.0):
    """Scores of the segments of the runs of a system, (R, N).

    Args:
        random: random number generator.
        runs: number of runs R.
        run_effect: standard deviation of an effect that all segments of a run share.
        system_effect: standard deviation of the effect of a segment that all runs of a system share.
    """
    shared = system_effect * random.normal(size=SEGMENTS) + run_effect * random.normal(size=(runs, 1))
    return shared + random.normal(size=(runs, SEGMENTS))


def run_scores(scores):
    """The scores of `RunScores.of` for the mean over segments, whose samples are one matrix product."""
    return RunScores(scores.mean(axis=1), scores @ COUNTS.T / SEGMENTS)


def statistics(scores):
    return [np.stack([row, np.ones(len(row))], axis=1) for row in scores]


def differences(runs, **effects):
    """Differences of two systems of the same expected score, on simulated test sets and runs."""
    random = np.random.default_rng(17)
    for _ in range(SIMULATIONS):
        difficulty = random.normal(size=SEGMENTS)
        yield HierarchicalDifference.of(*(run_scores(difficulty + outputs(random, count, **effects)) for count in runs))


def rate_outside(intervals):
    """Share of intervals that do not contain 0; its standard deviation is 0.55 % at 5 %."""
    return np.mean([low > 0 or high < 0 for low, high in intervals])


@pytest.mark.parametrize(
    ("runs", "run_effect", "system_effect"),
    [
        *(((2, 2), *effects) for effects in ((0, 0), (0.2, 0), (0, 0.5))),
        *((runs, 1, 0.5) for runs in ((2, 3), (1, 2))),
        ((1, 3), 0.2, 0),
    ],
)
def test_one_of_twenty_differences_is_significant_where_there_is_none(runs, run_effect, system_effect):
    """An interval ends at 0 where p is the level, so that this is the rate of false positives of the test."""
    tested = differences(runs, run_effect=run_effect, system_effect=system_effect)
    assert 0.03 < rate_outside(one.interval(0.05) for one in tested) < 0.07


@pytest.mark.parametrize("runs", [(2, 2), (3, 3)])
def test_runs_of_one_system_may_vary_more_if_there_are_equally_many_of_both(runs):
    random, tested = np.random.default_rng(17), []
    for _ in range(SIMULATIONS):
        difficulty = random.normal(size=SEGMENTS)
        a, b = (difficulty + outputs(random, *one) for one in zip(runs, (0.4, 0.2), strict=True))
        tested.append(HierarchicalDifference.of(run_scores(a), run_scores(b)))
    assert 0.03 < rate_outside(one.interval(0.05) for one in tested) < 0.07


def test_a_system_without_random_choices_says_nothing_about_the_variance_of_one_run():
    random = np.random.default_rng(4)
    counted, trained = run_scores(np.repeat(outputs(random, 1), 3, axis=0)), run_scores(outputs(random, 1))
    for pair in ((counted, trained), (trained, counted)):
        difference = HierarchicalDifference.of(*pair)
        assert (difference.freedom, difference.between_runs) == (0, 0)
        assert difference.interval(0.05) == pytest.approx(tuple(np.quantile(difference.samples, (0.025, 0.975))))
        with pytest.raises(SettingsError, match="two or more runs of a system that is not deterministic"):
            _ = difference.p


@pytest.mark.parametrize("runs", [2, 3])
def test_a_system_without_random_choices_has_no_variance_between_runs(runs):
    random, tested = np.random.default_rng(17), []
    for _ in range(SIMULATIONS):
        difficulty = random.normal(size=SEGMENTS)
        counted = np.repeat(difficulty + outputs(random, 1), runs, axis=0)
        trained = difficulty + outputs(random, runs, run_effect=0.4)
        tested.append(HierarchicalDifference.of(run_scores(counted), run_scores(trained)))
    assert 0.03 < rate_outside(one.interval(0.05) for one in tested) < 0.07


@pytest.mark.parametrize("run_effect", [0, 1])
@pytest.mark.parametrize("runs", [2, 3])
def test_one_of_twenty_differences_of_the_same_runs_is_significant(runs, run_effect):
    """Two evaluations of the same runs share the effect of a run; each run responds to the change by itself."""
    random, rates = np.random.default_rng(17), {True: [], False: []}
    for _ in range(SIMULATIONS):
        shared = random.normal(size=SEGMENTS) + run_effect * random.normal(size=(runs, 1))
        a, b = (run_scores(shared + outputs(random, runs, run_effect=0.1)) for _ in range(2))
        for same_runs, tested in rates.items():
            tested.append(HierarchicalDifference.of(a, b, same_runs=same_runs).interval(0.05))
    assert 0.03 < rate_outside(rates[True]) < 0.07
    if run_effect:
        assert rate_outside(rates[False]) < 0.01  # the reason for pairs: the effect of a run hides the difference


@pytest.mark.parametrize("runs", [1, 3])
def test_one_of_twenty_intervals_of_a_score_misses_it(runs):
    random = np.random.default_rng(5)
    effects = {"run_effect": 0.2 if runs > 1 else 0, "system_effect": 1}
    assert (
        0.03 < rate_outside(run_scores(outputs(random, runs, **effects)).interval() for _ in range(SIMULATIONS)) < 0.07
    )


def test_a_difference_between_systems_is_found():
    random = np.random.default_rng(3)
    a, b = (run_scores(outputs(random, 3, run_effect=0.1) + shift) for shift in (1, 0))
    difference = HierarchicalDifference.of(a, b)
    assert difference.p < 0.01 and difference.interval()[0] > 0
    assert HierarchicalDifference.of(b, a).p == pytest.approx(difference.p)


def test_the_interval_ends_at_zero_where_p_is_the_level():
    for difference in islice(differences((2, 3), run_effect=0.2), 20):
        low, high = difference.interval(difference.p)
        assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-6)


def test_without_segments_it_is_the_t_test_of_the_runs():
    """Where segments do not differ, resampling them changes nothing."""
    values = np.array([[3.0, 4.0, 8.0], [1.0, 2.0, 2.5]])
    a, b = (RunScores.of(statistics(np.repeat(row[:, None], 7, axis=1)), mean) for row in values)
    difference = HierarchicalDifference.of(a, b)
    expected = stats.ttest_ind(*values)
    assert difference.p == pytest.approx(expected.pvalue)
    assert difference.interval() == pytest.approx(tuple(expected.confidence_interval()))
    assert a.interval() == pytest.approx(tuple(stats.ttest_1samp(values[0], 0).confidence_interval()))


def test_scores_are_those_of_resampled_segments(monkeypatch):
    """Every run and every system has the same samples, in blocks of any size."""
    random = np.random.default_rng(4)
    scores = outputs(random, 3)
    whole = RunScores.of(statistics(scores), mean, samples=500)
    assert whole.values == pytest.approx(scores.mean(axis=1)) and whole.mean == pytest.approx(scores.mean())
    assert whole.samples.std(axis=1) == pytest.approx(scores.std(axis=1) / np.sqrt(SEGMENTS), rel=0.1)
    monkeypatch.setattr(significance, "BLOCK_BYTES", 8 * SEGMENTS * 30)
    alone = RunScores.of(statistics(scores[1:2]), mean, samples=500)
    np.testing.assert_allclose(alone.samples[0], whole.samples[1])


def test_invalid_inputs_are_refused():
    for runs, samples, says in (([], 100, r"shapes \[\]"), ([np.ones((3, 2)), np.ones((4, 2))], 100, "same segments")):
        with pytest.raises(SettingsError, match=says):
            RunScores.of(runs, mean, samples=samples)
    with pytest.raises(SettingsError, match="and 1 samples"):
        RunScores.of([np.ones((3, 2))], mean, samples=1)
    one = run_scores(np.ones((1, SEGMENTS)))
    with pytest.raises(SettingsError, match="two or more runs"):
        _ = HierarchicalDifference.of(one, one).p
