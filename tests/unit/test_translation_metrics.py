"""Metrics of translations: edit rate, chrF3 with its precision and recall, METEOR of other languages than English."""

import logging

import pytest
import sacrebleu

from limner.metrics import METRICS, higher_is_better, metrics_for, score_sentences

HYPOTHESES = ["Zwei Hunde spielen im Gras .", "ein mann läuft", "Das ist ein Haus", "die Katze"]
REFERENCES = [
    ["Zwei Hunde spielten auf dem Gras .", "Hunde im Gras ."],
    ["Ein Mann läuft schnell"],
    ["Ist das ein Haus", "Das Haus"],
    ["Die Katzen schlafen"],
]


def values(names, hypotheses, references, **options):
    return [score.value for score in score_sentences(hypotheses, references, names, **options)]


def test_character_precision_and_recall_by_hand():
    # 1-grams: 2 and 3, both of the 2; 2-grams: ab of ab and bc; the hypothesis has no longer ones, blanks count not.
    recall = 100 * (2 / 3 + 1 / 2) / 2
    f3 = 10 * 100 * recall / (9 * 100 + recall)
    result = values(["chrf3", "chrf3_precision", "chrf3_recall"], ["a b"], [["abc"]])
    assert result == pytest.approx([f3, 100, recall])


def test_character_precision_and_recall_with_spaces_by_hand():
    # 1-grams: all 3 of the 3 characters of 'a b', and 2 of the 3 of 'abb'; 2-grams 'a ', ' b' and 'ab', 'bb': none.
    names = ["chrf3_spaces", "chrf3_spaces_precision", "chrf3_spaces_recall"]
    precision, recall = 100 * (2 / 3 + 0 + 0) / 3, 100 * (2 / 3 + 0 + 0) / 3
    assert values(names, ["a b"], [["abb"]]) == pytest.approx([precision, precision, recall])


def test_empty_hypotheses_score_zero():
    assert values(["chrf3", "chrf3_precision", "chrf3_recall"], [""], [["ein Haus"]]) == [0, 0, 0]


def test_edit_rate_and_chrf_equal_sacrebleu():
    streams = [[own[place] if place < len(own) else None for own in REFERENCES] for place in range(2)]
    theirs = [
        sacrebleu.corpus_ter(HYPOTHESES, streams, case_sensitive=True).score,
        sacrebleu.corpus_ter(HYPOTHESES, streams).score,
        sacrebleu.corpus_chrf(HYPOTHESES, streams, beta=3).score,
        sacrebleu.corpus_chrf(HYPOTHESES, streams, beta=3).score,
    ]
    assert values(["ter", "ter_text", "chrf3", "chrf3_text"], HYPOTHESES, REFERENCES) == pytest.approx(theirs)


def test_direction_of_each_metric():
    names = ("ter", "ter_text", "perplexity", "bleu4", "meteor")
    assert [name for name in names if higher_is_better(name)] == ["bleu4", "meteor"]
    for name, metric in METRICS.items():
        # One item has no document frequencies; the extra `coco` and the dictionaries of MeCab may be missing.
        if name not in ("cider", "meteor") and "mecab" not in name:
            right, wrong = (metric.score([text], [["ein Haus am See"]]).value for text in ("ein Haus am See", "x"))
            assert (right > wrong) == metric.higher_is_better


def test_only_meteor_depends_on_a_language_with_spaces():
    german = metrics_for("de")
    assert {name for name in METRICS if german[name] is not METRICS[name]} == {"meteor"}
    assert list(german) == list(METRICS)


def test_a_language_unknown_to_meteor_is_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "limner"):
        scores = score_sentences(["a"], [["a"]], ["meteor", "bleu1"], lang="ja")
    assert [score.name for score in scores] == ["bleu1"]
    (line,) = caplog.messages
    assert "'ja'" in line and "cs, de, en, es, fr, ru" in line and "left out: meteor" in line
