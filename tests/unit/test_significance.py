"""Approximate randomisation and Holm's correction: properties of p for all metrics, and exact values of small cases."""

import itertools

import numpy as np
import pytest

from limner.apps.diagnosis import DiagnosisSettings, GroundingSettings
from limner.errors import SettingsError
from limner.evaluation.comparison import ComparisonSettings
from limner.metrics import significance as significance_module
from limner.metrics.significance import approximate_randomisation, check_trials, holm, too_few_segments


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
        small.setattr(significance_module, "BLOCK_BYTES", 7 * 8 * 15)
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
