"""Approximate randomisation and Holm's correction: properties of p for all metrics, and exact values of small cases."""

import itertools
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from limner.apps.diagnosis import DiagnosisSettings, GroundingSettings
from limner.errors import SettingsError
from limner.evaluation.comparison import ComparisonSettings
from limner.metrics import significance
from limner.metrics.significance import (
    HierarchicalDifference,
    RunScores,
    approximate_randomisation,
    check_trials,
    holm,
    too_few_segments,
)


def ratio(totals):
    return 100 * totals[0] / totals[1]


def system(random, segments, right=0.5):
    """Correct words and all words of every segment; the metric of the sum is not a mean over segments."""
    lengths = random.integers(3, 12, size=segments)
    return np.stack([random.binomial(lengths, right), lengths], axis=1).astype(float)


def by_counting(a, b):
    """Exact p over all equally probable exchanges of segments."""
    both = a.sum(axis=0) + b.sum(axis=0)
    observed, reached, ways = abs(ratio(a.sum(axis=0)) - ratio(b.sum(axis=0))), 0, 0
    for exchanged in itertools.product((False, True), repeat=len(a)):
        total = np.where(np.array(exchanged)[:, None], b, a).sum(axis=0)
        reached += abs(ratio(total) - ratio(both - total)) >= observed - 1e-9
        ways += 1
    return reached / ways


def near(p, trials):
    """Four standard deviations of a share of trials, plus the trial of the observed assignment."""
    return pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / trials) + 1 / trials)


@pytest.mark.parametrize("seed", range(4))
def test_p_agrees_with_the_exact_test(seed):
    random = np.random.default_rng(seed)
    a, b = system(random, 10, 0.6), system(random, 10, 0.45)
    assert approximate_randomisation(a, b, ratio, trials=4000).p == near(by_counting(a, b), 4000)


def test_better_on_every_segment_gives_the_smallest_possible_p():
    a, b = (np.tile([right, 8.0], (40, 1)) for right in (6.0, 3.0))
    result = approximate_randomisation(a, b, ratio, trials=500)
    assert result.p == 1 / 501
    assert result == pytest.approx((75, 37.5, 1 / 501))


def test_p_is_uniform_where_there_is_no_difference():
    """2,000 simulated tests: the standard deviation of a rate of 5 % is 0.5 %."""
    random, p = np.random.default_rng(11), []
    for trial in range(2000):
        difficulty = random.beta(3, 3, size=40)  # segments are hard or easy for both systems
        a, b = system(random, 40, difficulty), system(random, 40, difficulty)
        p.append(approximate_randomisation(a, b, ratio, trials=199, seed=trial).p)
    assert 0.03 < (np.array(p) < 0.05).mean() < 0.07
    assert [(np.array(p) <= level).mean() for level in (0.25, 0.5, 0.75)] == pytest.approx([0.25, 0.5, 0.75], abs=0.05)


def test_holm_adjusts_the_smallest_p_most():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # the example of many textbooks
    assert holm([0.5, 0.9]) == [1, 1] and holm([0.02]) == [0.02] and holm([]) == []


def test_the_same_seed_gives_the_same_p_in_blocks_of_any_size(monkeypatch):
    random = np.random.default_rng(3)
    a, b = system(random, 15, 0.6), system(random, 15, 0.5)
    whole = approximate_randomisation(a, b, ratio, trials=150)
    with monkeypatch.context() as small:
        small.setattr(significance, "BLOCK_BYTES", 7 * 8 * 15)
        assert approximate_randomisation(a, b, ratio, trials=150) == whole
    assert approximate_randomisation(a, b, ratio, trials=150, seed=2).p != whole.p


@pytest.mark.parametrize(
    ("a", "b", "options", "says"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), {}, "same segments"),
        (np.ones((3, 2)), np.ones((3, 2)), {"trials": 0}, "0 trials"),
    ],
)
def test_invalid_inputs_are_refused(a, b, options, says):
    with pytest.raises(SettingsError, match=says):
        approximate_randomisation(a, b, ratio, **options)


@pytest.mark.parametrize(("trials", "level", "needed"), [(19, 0.05, 20), (1, 0.05, 20), (99, 0.01, 100)])
def test_trials_that_cannot_make_a_difference_significant_are_refused(trials, level, needed):
    with pytest.raises(ValueError, match=rf"{trials} trials cannot give p < {level:g}.*expected {needed} or more"):
        check_trials(trials, level)
    assert check_trials(needed, level) == needed
    for settings in (DiagnosisSettings, GroundingSettings, ComparisonSettings):
        with pytest.raises(SettingsError, match=r"trials|level"):
            settings.parse({"trials": 19})


def test_so_few_items_that_no_difference_can_be_significant_are_named():
    """Of n segments, 2 of the 2 ** n exchanges give at least the observed difference."""
    few, enough = (np.array([[n, 1.0] for n in range(1, count + 1)]) for count in (5, 6))
    for rows, reason in ((few, "5 items cannot give p < 0.05"), (enough, "")):
        best = approximate_randomisation(rows, rows * [0, 1], ratio, trials=2000).p
        assert (best >= 0.05) == bool(reason)
        assert too_few_segments(len(rows)).startswith(reason) and bool(too_few_segments(len(rows))) == bool(reason)


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
    """The scores of `RunScores.from_runs` for the mean over segments, whose samples are one matrix product."""
    return RunScores(scores.mean(axis=1), scores @ COUNTS.T / SEGMENTS)


def statistics(scores):
    return [np.stack([row, np.ones(len(row))], axis=1) for row in scores]


def differences(runs, **effects):
    """Differences of two systems of the same expected score, on simulated test sets and runs."""
    random = np.random.default_rng(17)
    for _ in range(SIMULATIONS):
        base = random.normal(size=SEGMENTS)  # difficulty of the segments
        yield HierarchicalDifference.from_scores(*(run_scores(base + outputs(random, n, **effects)) for n in runs))


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
        tested.append(HierarchicalDifference.from_scores(run_scores(a), run_scores(b)))
    assert 0.03 < rate_outside(one.interval(0.05) for one in tested) < 0.07


def test_a_system_without_random_choices_says_nothing_about_the_variance_of_one_run():
    random = np.random.default_rng(4)
    counted, trained = run_scores(np.repeat(outputs(random, 1), 3, axis=0)), run_scores(outputs(random, 1))
    for pair in ((counted, trained), (trained, counted)):
        difference = HierarchicalDifference.from_scores(*pair)
        assert (difference.degrees_of_freedom, difference.between_runs) == (0, 0)
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
        tested.append(HierarchicalDifference.from_scores(run_scores(counted), run_scores(trained)))
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
            tested.append(HierarchicalDifference.from_scores(a, b, same_runs=same_runs).interval(0.05))
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
    difference = HierarchicalDifference.from_scores(a, b)
    assert difference.p < 0.01 and difference.interval()[0] > 0
    assert HierarchicalDifference.from_scores(b, a).p == pytest.approx(difference.p)


def test_the_interval_ends_at_zero_where_p_is_the_level():
    for difference in islice(differences((2, 3), run_effect=0.2), 20):
        low, high = difference.interval(difference.p)
        assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-6)


def test_without_segments_it_is_the_t_test_of_the_runs():
    """Where segments do not differ, resampling them changes nothing."""
    values = np.array([[3.0, 4.0, 8.0], [1.0, 2.0, 2.5]])
    a, b = (RunScores.from_runs(statistics(np.repeat(row[:, None], 7, axis=1)), mean) for row in values)
    difference = HierarchicalDifference.from_scores(a, b)
    expected = stats.ttest_ind(*values)
    assert difference.p == pytest.approx(expected.pvalue)
    assert difference.interval() == pytest.approx(tuple(expected.confidence_interval()))
    assert a.interval() == pytest.approx(tuple(stats.ttest_1samp(values[0], 0).confidence_interval()))


def test_scores_are_those_of_resampled_segments(monkeypatch):
    """Every run and every system has the same samples, in blocks of any size."""
    random = np.random.default_rng(4)
    scores = outputs(random, 3)
    whole = RunScores.from_runs(statistics(scores), mean, samples=500)
    assert whole.values == pytest.approx(scores.mean(axis=1)) and whole.mean == pytest.approx(scores.mean())
    assert whole.samples.std(axis=1) == pytest.approx(scores.std(axis=1) / np.sqrt(SEGMENTS), rel=0.1)
    monkeypatch.setattr(significance, "BLOCK_BYTES", 8 * SEGMENTS * 30)
    alone = RunScores.from_runs(statistics(scores[1:2]), mean, samples=500)
    np.testing.assert_allclose(alone.samples[0], whole.samples[1])


def test_invalid_runs_are_refused():
    for runs, samples, says in (([], 100, r"shapes \[\]"), ([np.ones((3, 2)), np.ones((4, 2))], 100, "same segments")):
        with pytest.raises(SettingsError, match=says):
            RunScores.from_runs(runs, mean, samples=samples)
    with pytest.raises(SettingsError, match="and 1 samples"):
        RunScores.from_runs([np.ones((3, 2))], mean, samples=1)
    one = run_scores(np.ones((1, SEGMENTS)))
    with pytest.raises(SettingsError, match="two or more runs"):
        _ = HierarchicalDifference.from_scores(one, one).p
