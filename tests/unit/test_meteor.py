"""METEOR by hand: normalisation, lemmas, alignments and the formulas of the papers."""

import numpy as np
import pytest

from limner.metrics.meteor import LANGUAGES, data, meteor_in, meteor_statistics, meteor_value
from limner.metrics.meteor.matchers import Normaliser

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
