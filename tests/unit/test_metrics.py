"""Metrics: hand-computed values, missing programs and unusual input."""

import logging
import math
import sys
from random import Random

import numpy as np
import pytest

from limner.errors import CollectionError, SettingsError
from limner.metrics import METRICS, default_metrics, novelty, perplexity, score_sentences, sentence_scores
from limner.metrics.base import format_value
from limner.metrics.caption import CiderD
from limner.metrics.ranks import rank_all, retrieval_scores
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

HYPOTHESES = ["a dog runs on the grass", "two men", "a red bus", "the cat"]
REFERENCES = [
    ["a dog runs over the grass", "the dog is running"],
    ["two men are talking", "two men", "people"],
    ["a red car"],
    ["the cat sleeps on a mat", "a cat"],
]


def value(metric, hypotheses, references):
    return score_sentences(hypotheses, references, [metric])[0].value


@pytest.mark.parametrize("name", ["bleu4", "sacrebleu", "chrf", "chrf3_recall", "ter", "ter_text", "rouge_l"])
def test_resampled_statistics_score_the_resampled_corpus(name):
    metric = METRICS[name]
    rows = [2, 0, 0, 3, 1, 0]
    statistics = metric.statistics(HYPOTHESES, REFERENCES)
    resampled = metric.score([HYPOTHESES[row] for row in rows], [REFERENCES[row] for row in rows])
    assert metric.value(statistics[rows].sum(axis=0)) == pytest.approx(resampled.value)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "meteor" and "mecab" not in name])
def test_every_metric_accepts_unusual_sentences_and_prints_its_settings(name):
    score = METRICS[name].score(["", "a  dog ", "ein Hündchen"], [["a dog", ""], ["a dog"], ["  ", "x", "y z"]])
    assert score.value >= 0
    assert "nrefs:1-2|" in score.signature and "scale:" in score.signature
    assert score.name in str(score) and score.signature in str(score)


def test_blank_references_are_ignored():
    blank = [[*own, " "] for own in REFERENCES]
    names = ["bleu4", "chrf", "cider", "rouge_l"]
    assert score_sentences(["", *HYPOTHESES[1:]], blank, names) == score_sentences(
        ["", *HYPOTHESES[1:]], REFERENCES, names
    )


def test_metrics_that_tokenise_receive_running_text():
    texts = ["A dog runs, on the grass."], [["A dog runs, on the grass."]]
    tokens = ["a dog runs on the lawn"], [["a dog runs on the grass"]]
    bleu, own = score_sentences(*tokens, ["bleu1", "sacrebleu"], texts=texts)
    assert bleu.value < 100 and own.value == pytest.approx(100)
    assert "input:tokens" not in own.signature
    assert "input:tokens" in score_sentences(*tokens, ["sacrebleu"])[0].signature


@pytest.mark.parametrize(
    ("hypotheses", "references", "metrics", "error", "says"),
    [
        (["a"], [["a"]], ["bleu5"], SettingsError, "no metric 'bleu5'.*bleu1, bleu2"),
        (["a", "b"], [["a"]], ["bleu1"], CollectionError, "2 hypotheses and 1 lists"),
        *(([], [], [name], CollectionError, "empty") for name in METRICS),
        (["a", "b"], [["a"], [" "]], ["bleu1"], CollectionError, "item 1 has no reference"),
    ],
)
def test_errors_name_the_cause(hypotheses, references, metrics, error, says):
    with pytest.raises(error, match=says):
        score_sentences(hypotheses, references, metrics)


def test_a_missing_extra_is_one_warning_and_other_metrics_are_computed(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    with caplog.at_level(logging.WARNING, "limner"):
        scores = score_sentences(HYPOTHESES, REFERENCES, ["cider", "bleu1", "meteor"])
    assert [score.name for score in scores] == ["cider", "bleu1"]
    (line,) = caplog.messages
    assert "limner[coco]" in line and "left out: meteor" in line


def test_cider_of_no_items_is_an_error():
    with pytest.raises(CollectionError, match="expected sentences to score, found none"):
        CiderD([])


def test_cider_of_one_item_is_0_with_a_warning(caplog):
    assert value("cider", ["a dog"], [["a dog"]]) == 0
    assert "cider" in caplog.text
    assert value("cider", ["a dog", "two men"], [["a dog"], ["two men"]]) > 0


def test_sentence_scores_order_sentences():
    good, middling, bad, empty = sentence_scores(
        ["a dog runs on grass", "a dog sits on snow", "x y z", ""], [["a dog runs on grass"]] * 4
    )
    assert good == pytest.approx(100)
    assert good > middling > bad >= empty == 0


def test_perplexity_is_eq_5_in_any_base():
    words, vocabulary = 12, 50
    assert perplexity(-words * math.log(vocabulary), words).value == pytest.approx(vocabulary)
    log_probs = np.log([0.5, 0.1, 0.25])
    assert perplexity(log_probs.sum(), 3).value == pytest.approx(2 ** -np.mean(np.log2([0.5, 0.1, 0.25])))
    assert perplexity(-math.inf, 3).value == math.inf
    with pytest.raises(CollectionError, match="found none"):
        perplexity(0.0, 0)


def test_novelty_compares_words_not_blanks():
    novel, words = novelty(["a dog", "a  cat", "a bird"], ["a dog ", "a cat", "a cat"])
    assert novel.value == pytest.approx(100 / 3)
    assert words.value == 4
    assert "2 distinct training sentences" in novel.signature


def test_novelty_without_training_sentences_is_undefined():
    assert [score.name for score in novelty(["a dog"], [])] == ["distinct_words"]


@pytest.mark.parametrize("constant", [0.0, -np.inf, np.nan])
def test_a_constant_model_ranks_last(constant):
    owners = np.repeat(np.arange(4), 2)
    ranks = rank_all(np.full((8, 4), constant), owners)
    assert ranks.text_to_image.tolist() == [4] * 8
    assert ranks.image_to_text.tolist() == [7] * 4  # six foreign sentences are ahead
    assert sorted(ranks.own_sentences.tolist()) == [7] * 4 + [8] * 4


def test_area_under_the_curve_of_a_random_order_is_a_half():
    owners = np.repeat(np.arange(200), 3)
    ranks = rank_all(np.random.default_rng(0).normal(size=(600, 200)), owners)
    areas = [score.value for score in retrieval_scores(ranks, owners) if score.name.endswith("area")]
    assert areas == pytest.approx([50, 50], abs=4)


@pytest.mark.parametrize(
    ("owners", "says"),
    [
        ([0, 0, 2], "1 of 3 images have no sentence, the first is number 1"),
        ([0, 1], "expected an owner for each row"),
        ([0, 1, 3], "expected an owner for each row"),
    ],
)
def test_owners_of_the_wrong_size_are_refused(owners, says):
    with pytest.raises(CollectionError, match=says):
        rank_all(np.zeros((3, 3)), owners)


def label_value(name, hypotheses, references):
    return METRICS[name].score(hypotheses, [[one] for one in references]).value


def test_accuracy_counts_steps_and_missing_labels_are_wrong():
    assert label_value("accuracy", ["a", "b", "b"], ["a", "a", "b"]) == pytest.approx(200 / 3)
    assert label_value("accuracy", ["a b", "c"], ["a b a", "c"]) == pytest.approx(75)
    assert label_value("accuracy", [""], ["a"]) == 0


def test_f1_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    labels = np.array(["one", "two", "three", "four"])
    right, predicted = (labels[random.integers(0, 4, 200)] for _ in range(2))
    expected = metrics.f1_score(right, predicted, average="macro")
    assert label_value("f1", predicted.tolist(), right.tolist()) == pytest.approx(100 * expected)
    lines = [[" ".join(part) for part in side.reshape(20, 10)] for side in (predicted, right)]
    assert label_value("f1", *lines) == pytest.approx(100 * expected)


def test_calibration_error_by_hand():
    """Two predictions of .95, one right, and one of .65 that is right: (2 |.95 - .5| + |.65 - 1|) / 3."""
    hypotheses = ["a (0.9500)", "a (0.9500)", "b (0.6500)"]
    references = ["a", "b", "b"]
    assert label_value("calibration_error", hypotheses, references) == pytest.approx(100 * (2 * 0.45 + 0.35) / 3)
    assert label_value("calibration_error", ["a (1.0000) b (1.0000)"], ["a b"]) == 0


def test_position_error_by_hand():
    """Distances of 5 (3-4-5 triangle) and 0; a missing frame counts as the whole width."""
    assert label_value("position_error", ["13.00,24.00 (0.9) 50.00,50.00 (0.8)"], ["10.00,20.00 50.00,50.00"]) == 2.5
    assert label_value("position_error", ["13.00,24.00 (0.9)"], ["10.00,20.00 50.00,50.00"]) == 52.5


def test_position_error_of_hidden_objects_by_hand():
    """The second frame of the first clip is hidden; a clip without hidden frames does not count."""
    references = ["10.00,20.00 50.00,50.00,hidden", "1.00,1.00"]
    hypotheses = ["10.00,20.00 (0.9) 53.00,54.00 (0.8)", "9.00,9.00 (0.5)"]
    assert label_value("hidden_position_error", hypotheses, references) == 5
    assert label_value("hidden_position_error", ["10.00,20.00 (0.9)"], references[:1]) == 100


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
