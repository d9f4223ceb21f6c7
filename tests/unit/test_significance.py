"""Approximate randomisation: properties of p for all metrics, and exact values of small cases."""

import itertools
import tracemalloc

import numpy as np
import pytest

from limner.diagnosis import DiagnosisSettings, GroundingSettings
from limner.errors import SettingsError
from limner.evaluation.compare import ComparisonSettings
from limner.metrics import METRICS
from limner.metrics import significance as significance_module
from limner.metrics.significance import approximate_randomisation, check_trials, too_few_segments


def ratio(totals):
    return 100 * totals[0] / totals[1]


def system(random, segments, right=0.5, runs=1):
    """Correct words and all words of every segment; the metric of the sum is not a mean over segments."""
    lengths = random.integers(3, 12, size=segments)
    return [np.stack([random.binomial(lengths, right), lengths], axis=1).astype(float) for _ in range(runs)]


def far(outputs, runs):
    """Difference of two systems (R, N, k), the first `runs` of R being one system."""
    values = [ratio(run.sum(axis=0)) for run in outputs]
    return abs(np.mean(values[:runs]) - np.mean(values[runs:]))


def by_counting(a, b, deals):
    """Exact p over all equally probable assignments of the outputs of each segment."""
    outputs = np.stack([*a, *b])
    segments = range(outputs.shape[1])
    observed, reached, ways = far(outputs, len(a)), 0, 0
    for deal in itertools.product(deals, repeat=len(segments)):
        shuffled = np.stack([outputs[list(order), segment] for segment, order in zip(segments, deal, strict=True)], 1)
        reached += far(shuffled, len(a)) >= observed - 1e-9
        ways += 1
    return reached / ways


def near(p, trials):
    """Four standard deviations of a share of trials, plus the trial of the observed assignment."""
    return pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / trials) + 1 / trials)


@pytest.mark.parametrize("seed", range(4))
def test_p_agrees_with_the_exact_test(seed):
    random = np.random.default_rng(seed)
    a, b = system(random, 10, 0.6), system(random, 10, 0.45)
    expected = by_counting(a, b, [(0, 1), (1, 0)])
    assert approximate_randomisation(a, b, ratio, trials=4000).p == near(expected, 4000)


@pytest.mark.parametrize(
    ("exchange", "segments", "deals"),
    [("outputs", 3, list(itertools.permutations(range(4)))), ("systems", 9, [(0, 1, 2, 3), (2, 3, 0, 1)])],
)
def test_p_of_several_runs_agrees_with_the_exact_test(exchange, segments, deals):
    random = np.random.default_rng(7)
    a, b = system(random, segments, 0.7, runs=2), system(random, segments, 0.4, runs=2)
    result = approximate_randomisation(a, b, ratio, trials=4000, exchange=exchange)
    assert result.p == near(by_counting(a, b, deals), 4000)


@pytest.mark.parametrize("exchange", ["outputs", "systems"])
@pytest.mark.parametrize("runs", [1, 3])
def test_a_system_does_not_differ_from_itself(exchange, runs):
    a = system(np.random.default_rng(1), 30) * runs
    result = approximate_randomisation(a, a, ratio, trials=200, exchange=exchange)
    assert (result.difference, result.p) == (0, 1)


@pytest.mark.parametrize("runs", [1, 2])
def test_better_on_every_segment_gives_the_smallest_possible_p(runs):
    a, b = ([np.tile([right, 8.0], (40, 1))] * runs for right in (6.0, 3.0))
    result = approximate_randomisation(a, b, ratio, trials=500)
    assert result.p == 1 / 501
    assert result == pytest.approx((75, 37.5, 37.5, 1 / 501))


@pytest.mark.parametrize("runs", [(1, 1), (3, 3), (2, 3)])
def test_exchanging_the_systems_changes_the_sign_only(runs):
    random = np.random.default_rng(5)
    a, b = system(random, 25, 0.55, runs[0]), system(random, 25, 0.5, runs[1])
    one, other = (approximate_randomisation(*pair, ratio, trials=300, exchange="outputs") for pair in ((a, b), (b, a)))
    assert one.p == other.p
    assert (one.a_mean, one.difference) == (other.b_mean, -other.difference)


def test_means_are_over_the_runs():
    random = np.random.default_rng(5)
    a, b = system(random, 25, 0.55, 3), system(random, 25, 0.5)
    result = approximate_randomisation(a, b, ratio, trials=1, exchange="outputs")
    assert result.a_mean == pytest.approx(np.mean([ratio(run.sum(axis=0)) for run in a]))
    assert result.b_mean == pytest.approx(ratio(b[0].sum(axis=0)))
    assert result.difference == pytest.approx(result.a_mean - result.b_mean)


@pytest.mark.parametrize("runs", [1, 2])
def test_p_is_about_uniform_where_there_is_no_difference(runs):
    random = np.random.default_rng(11)
    result = np.array(
        [
            approximate_randomisation(
                system(random, 20, runs=runs), system(random, 20, runs=runs), ratio, trials=99, seed=trial
            ).p
            for trial in range(200)
        ]
    )
    assert result.mean() == pytest.approx(0.5, abs=0.08)
    assert [(result <= level).mean() for level in (0.1, 0.25, 0.5, 0.75)] == pytest.approx(
        [0.1, 0.25, 0.5, 0.75], abs=0.1
    )


def test_copies_of_a_run_are_no_evidence_where_systems_are_exchanged_whole():
    random = np.random.default_rng(9)
    a, b = system(random, 60, 0.53), system(random, 60, 0.5)
    once = approximate_randomisation(a, b, ratio, trials=2000).p
    whole = approximate_randomisation(a * 4, b * 4, ratio, trials=2000, exchange="systems").p
    single = approximate_randomisation(a * 4, b * 4, ratio, trials=2000, exchange="outputs").p
    assert whole == near(once, 1000)
    assert single < once / 2  # the reason for the setting


def test_the_same_seed_gives_the_same_p_in_blocks_of_any_size(monkeypatch):
    random = np.random.default_rng(3)
    a, b = system(random, 15, 0.6, 2), system(random, 15, 0.5, 2)
    for exchange in ("outputs", "systems"):
        whole = approximate_randomisation(a, b, ratio, trials=150, exchange=exchange)
        with monkeypatch.context() as small:
            small.setattr(significance_module, "BLOCK_BYTES", 7 * 8 * 4 * 15)
            assert approximate_randomisation(a, b, ratio, trials=150, exchange=exchange) == whole
        assert approximate_randomisation(a, b, ratio, trials=150, seed=2, exchange=exchange).p != whole.p


def test_memory_is_bounded_and_progress_is_reported(monkeypatch):
    monkeypatch.setattr(significance_module, "BLOCK_BYTES", 1 << 20)
    random, progress = np.random.default_rng(0), []
    a, b = system(random, 1000), system(random, 1000)
    tracemalloc.start()
    approximate_randomisation(a, b, ratio, trials=1000, on_progress=lambda done, total: progress.append((done, total)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20  # all trials at once would be 16 MB of random numbers alone
    assert progress == sorted(progress) and len(progress) > 10 and progress[-1] == (1000, 1000)


@pytest.mark.parametrize("name", ["bleu4", "ter", "chrf3_recall"])
def test_significance_of_every_metric(name):
    references = [[f"ein Haus mit {number} Fenstern steht am See"] for number in range(20)]
    right = [own[0] for own in references]
    wrong = [f"ein Haus mit {number} Türen und am See" for number in range(20)]
    metric = METRICS[name]
    a, b = ([metric.statistics(hypotheses, references)] for hypotheses in (right, wrong))
    result = approximate_randomisation(a, b, metric.value, trials=200)
    assert result.p == 1 / 201
    assert (result.difference > 0) == metric.higher_is_better
    assert result.a_mean == pytest.approx(metric.score(right, references).value)


@pytest.mark.parametrize(
    ("a", "b", "options", "says"),
    [
        ([], [np.ones((3, 2))], {}, "0 and 1 runs"),
        ([np.ones((3, 2))], [np.ones((4, 2))], {}, "same segments"),
        ([np.ones((3, 2))], [np.ones((3, 2))], {"trials": 0}, "0 trials"),
        ([np.ones((3, 2))] * 2, [np.ones((3, 2))], {"exchange": "systems"}, "same number of runs"),
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
        best = approximate_randomisation([rows], [rows * [0, 1]], ratio, trials=2000).p
        assert (best >= 0.05) == bool(reason)
        assert too_few_segments(len(rows)).startswith(reason) and bool(too_few_segments(len(rows))) == bool(reason)
