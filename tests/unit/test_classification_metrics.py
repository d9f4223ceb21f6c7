"""Metrics of labels against hand-worked cases and scikit-learn."""

from random import Random

import numpy as np
import pytest

from limner.metrics import METRICS, default_metrics, score_sentences
from limner.metrics.base import format_value
from limner.text.labels import (
    CELLS,
    PredictedLabel,
    cell_centres,
    cell_token,
    label_token,
    position_text,
    read_predictions,
    write_predictions,
)


def value(name, hypotheses, references):
    return METRICS[name].score(hypotheses, [[one] for one in references]).value


def test_accuracy_counts_steps_and_missing_labels_are_wrong():
    assert value("accuracy", ["a", "b", "b"], ["a", "a", "b"]) == pytest.approx(200 / 3)
    assert value("accuracy", ["a b", "c"], ["a b a", "c"]) == pytest.approx(75)
    assert value("accuracy", [""], ["a"]) == 0


def test_f1_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    labels = np.array(["one", "two", "three", "four"])
    right, predicted = (labels[random.integers(0, 4, 200)] for _ in range(2))
    expected = metrics.f1_score(right, predicted, average="macro")
    assert value("f1", predicted.tolist(), right.tolist()) == pytest.approx(100 * expected)
    lines = [[" ".join(part) for part in side.reshape(20, 10)] for side in (predicted, right)]
    assert value("f1", *lines) == pytest.approx(100 * expected)


def test_calibration_error_by_hand():
    """Two predictions of .95, one right, and one of .65 that is right: (2 |.95 - .5| + |.65 - 1|) / 3."""
    hypotheses = ["a (0.9500)", "a (0.9500)", "b (0.6500)"]
    references = ["a", "b", "b"]
    assert value("calibration_error", hypotheses, references) == pytest.approx(100 * (2 * 0.45 + 0.35) / 3)
    assert value("calibration_error", ["a (1.0000) b (1.0000)"], ["a b"]) == 0


def test_position_error_by_hand():
    """Distances of 5 (3-4-5 triangle) and 0; a missing frame counts as the whole width."""
    assert value("position_error", ["13.00,24.00 (0.9) 50.00,50.00 (0.8)"], ["10.00,20.00 50.00,50.00"]) == 2.5
    assert value("position_error", ["13.00,24.00 (0.9)"], ["10.00,20.00 50.00,50.00"]) == 52.5


def test_position_error_of_hidden_objects_by_hand():
    """The second frame of the first clip is hidden; a clip without hidden frames does not count."""
    references = ["10.00,20.00 50.00,50.00,hidden", "1.00,1.00"]
    hypotheses = ["10.00,20.00 (0.9) 53.00,54.00 (0.8)", "9.00,9.00 (0.5)"]
    assert value("hidden_position_error", hypotheses, references) == 5
    assert value("hidden_position_error", ["10.00,20.00 (0.9)"], references[:1]) == 100


def test_the_error_of_hidden_objects_is_left_out_where_none_is_hidden():
    names, hypotheses = ["position_error", "hidden_position_error"], ["10.00,20.00 (0.9)"]
    for reference, expected in (("10.00,20.00", names[:1]), ("10.00,20.00,hidden", names)):
        assert [one.name for one in score_sentences(hypotheses, [[reference]], names)] == expected


def test_large_scores_are_written_with_an_exponent():
    assert [format_value(one) for one in (3.14159, 999_999, 4.02e97)] == ["3.14", "999999.00", "4.0e+97"]
    assert format_value(-2e6, sign="+") == "-2.0e+06" and format_value(0.5, 1, sign="+") == "+0.5"


def test_default_metrics_belong_to_the_target():
    assert default_metrics("label") == ("accuracy", "f1", "calibration_error")
    assert "position_error" in default_metrics("track")
    assert "bleu4" in default_metrics("en") and "accuracy" not in default_metrics("en")
    scores = score_sentences(["a"], [["a"]], ["accuracy", "calibration_error"], texts=(["a (0.75)"], [["a"]]))
    assert [score.value for score in scores] == [100, 25]


def test_tokens_of_labels_and_positions():
    assert label_token(" very  good ") == "very_good"
    point, rng = (0.30, 0.99), Random(1)
    centres = cell_centres([cell_token(point, rng) for _ in range(2000)])
    np.testing.assert_allclose(centres.mean(0), (0.30, 1 - 0.5 / CELLS), atol=0.005)  # the outer centre is the limit
    assert np.abs(centres - point).max() < 1 / CELLS and np.isnan(cell_centres(["<unk>"])).all()
    assert cell_token((-1, 2), rng) == f"c0r{CELLS - 1}"
    predictions = [PredictedLabel("tone", 0.5), PredictedLabel(position_text((0.5, 0.25)), 1.0)]
    assert write_predictions(predictions) == "tone (0.5000) 50.00,25.00 (1.0000)"
    assert read_predictions(write_predictions(predictions)) == predictions
    assert read_predictions("a sentence") == []
