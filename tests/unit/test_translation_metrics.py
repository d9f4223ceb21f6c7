"""Metrics of translations: edit rate, chrF3 with its precision and recall, METEOR of other languages than English."""

import logging

import numpy as np
import pytest
import sacrebleu

from limner.metrics import METRICS, higher_is_better, metrics_for, score_sentences
from limner.metrics.meteor import LANGUAGES, alignment, data, meteor_in, meteor_statistics, meteor_value
from limner.metrics.meteor.matchers import Normaliser

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


pytest.importorskip("pycocoevalcap")
pytest.importorskip("numba")


@pytest.mark.parametrize(
    ("lang", "text", "words"),
    [
        ("en", "It's Mr. Smith's dog, isn't it?", "it 's mr. smith 's dog , isn 't it ?"),
        ("en", "U.S. No. 5, no. Five", "us no. 5 , no . five"),
        ("en", "1,000.50 a,b a-b “q” ... x..", '1,000.50 a , b a b " q " ... x ..'),
        ("fr", "L'eau d’un", "l' eau d' un"),
        ("de", "z.B. 3 Äpfel", "zb 3 äpfel"),
        ("en", "", ""),
    ],
)
def test_normalisation(lang, text, words):
    assert Normaliser(lang, data.prefixes(data.folder(), lang))(text) == words.split()


def row(hypothesis, *references, lang="en"):
    return meteor_statistics(lang, [hypothesis], [references])[0]


def test_the_score_is_that_of_the_formulas():
    # Two of four words match in one chunk each: P = 2.25 / 3 and R the same, all content words but "the".
    statistics = row("red dog the barks", "red cat the sings")
    assert statistics[[0, 1, 2, 3, 20, 21, 22]].tolist() == [4, 4, 1, 1, 2, 2, 2]
    precision = recall = (0.75 * 1 + 0.25 * 1) / (0.75 * 3 + 0.25 * 1)
    f_mean = precision * recall / (0.85 * precision + 0.15 * recall)
    assert meteor_value("en", statistics) == pytest.approx(100 * f_mean * (1 - 0.6 * (2 / 2) ** 0.2))


def test_modules_match_stems_and_synonyms_of_lemmas():
    assert row("gloxing", "gloxes")[8] == 1
    assert row("automobiles", "car")[12] == 1
    assert row("children", "kid")[12] == 1


def test_a_match_must_be_worth_its_chunk():
    assert row("dog red dog", "dogs")[21] == 0, "an ambiguous stem of its own"
    assert row("a dog red dog", "a dogs")[21] == 2, "the same, beside another match"
    assert row("a b c", "c x b")[21] == 2


def test_paraphrases_of_a_phrase_are_in_the_order_of_their_entries():
    entries = np.random.default_rng(0).integers(0, 9, 40).tolist()
    before = (-1,) * 5
    matches, order = [before], np.empty(len(entries), np.int64)
    for number, entry in enumerate(entries):
        alignment._insert_match.py_func(matches, order, 1, entry, (0, 1, number, 1, alignment.PARAPHRASE))
    assert matches[0] == before and order.tolist() == sorted(entries)
    numbers = [match[2] for match in matches[1:]]
    assert numbers == sorted(range(len(entries)), key=entries.__getitem__)  # equal entries as they come


def test_the_best_reference_counts():
    assert (row("a dog", "two cats", "a dog") == row("a dog", "a dog")).all()


@pytest.mark.parametrize("lang", sorted(LANGUAGES))
def test_identity_is_100_and_nothing_is_0(lang):
    metric = meteor_in(lang)
    assert metric.score(["x y z"], [["x y z"]]).value == pytest.approx(100)
    assert metric.score(["", "q"], [["x y z"], ["x"]]).value == 0
    assert np.isfinite(metric.statistics(["…" * 300], [["。" * 300]])).all()


def test_the_signature_names_implementation_and_modules(tmp_path, monkeypatch):
    (tmp_path / "paraphrase-de.gz").touch()
    monkeypatch.setattr(data, "paraphrase_file", lambda lang: tmp_path / f"paraphrase-{lang}.gz")
    assert "modules:exact,stem,paraphrase|" in meteor_in("de").signature([["a"]])
    assert "modules:exact|" in meteor_in("cs").signature([["a"]])
    assert "implementation:limner" in meteor_in("cs").signature([["a"]])
