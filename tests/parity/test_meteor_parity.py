"""METEOR against the Java program in pycocoevalcap: sentences with many equally good alignments.

The statistics are compared with those that the program prints, and the scores with its own, which depend on the
parameters of the language.
"""

import gzip
import importlib.util
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pycocoevalcap")
pytest.importorskip("numba")

from limner.metrics.meteor import LANGUAGES, data, meteor_statistics, meteor_value, meteor_values

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORDS = {
    "en": "a the dog dogs puppy runs running ran automobile car cars child children 's U.S. red , . 3.5",
    "de": "ein eine der Hund Hunde Hunden läuft laufen Straße Straßen Äpfel Apfel rot , . z.B.",
    "fr": "un une le chien chiens l'eau d’un court courir courent rouge rouges , . été",
    "cs": "pes psi psa běží ulice ulici červený , . č. v na",
    "es": "un una el perro perros corre corriendo calles calle niño niñas Sr. rojo rojos ¿ ? , . está",
    "ru": "собака собаки собаку бежит бежать улица улице красный красная на в , . ёлка",
}


def java_statistics(java, lang, hypotheses, references):
    command = [java, "-Dfile.encoding=UTF-8", "-Xmx1G", "-jar", str(data.folder() / data.ARCHIVE), "-", "-", "-stdio"]
    command += ["-l", lang, "-norm", "-m", " ".join(data.modules(lang))]
    if "paraphrase" in data.modules(lang):
        command += ["-a", str(data.paraphrase_file(lang))]
    lines = "".join(f"SCORE ||| {ref} ||| {hyp}\n" for hyp, ref in zip(hypotheses, references, strict=True))
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=True, timeout=120)
    rows = np.array([line.split() for line in done.stdout.decode().splitlines()], dtype=float)
    rows[(rows[:, :2] == rows[:, 21:]).all(axis=1) & (rows[:, 20] == 1), 20] = 0  # no fragmentation
    return rows


def sentences(lang, count, seed=1):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS[lang].split(), k=rng.randint(1, 16))) for _ in range(count)]


@pytest.mark.parametrize("lang", sorted(WORDS))
def test_statistics_are_those_of_the_program(lang, java):
    hypotheses, references = sentences(lang, 400)[::2], sentences(lang, 400)[1::2]
    ours = meteor_statistics(lang, hypotheses, [[one] for one in references])
    assert (ours == java_statistics(java, lang, hypotheses, references)).all()


def test_paraphrases_are_those_of_the_program(java, tmp_path, monkeypatch):
    entries = [("the dog", "a puppy"), ("a puppy", "the dog"), ("car", "the red"), ("runs , a", "dog"), ("dog", "car")]
    table = tmp_path / "paraphrase-en.gz"
    with gzip.open(table, "wt", encoding="utf-8") as file:
        file.writelines(f"0.5\n{phrase}\n{other}\n" for phrase, other in entries)
    monkeypatch.setattr(data, "paraphrase_file", lambda lang: table)
    hypotheses, references = sentences("en", 1000)[::2], sentences("en", 1000)[1::2]
    ours = meteor_statistics("en", hypotheses, [[one] for one in references])
    assert (ours == java_statistics(java, "en", hypotheses, references)).all()


@pytest.mark.parametrize(
    ("lang", "one", "other"), [("cs", "pán", "ten"), ("fr", "n'est", "le"), ("fr", "n'est", "les")]
)
def test_the_program_alone_takes_words_with_the_same_hash_code_for_equal(lang, one, other, java):
    """The difference between both: the program compares hash codes of words and of stems."""
    assert java_statistics(java, lang, [one], [other])[0, 21] == 1
    assert meteor_statistics(lang, [one], [[other]])[0, 21] == 0


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark of METEOR: pairs of real sentences, the command of the program and the scores that it prints."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delenv("METEOR_PAIRS", raising=False)
    spec = importlib.util.spec_from_file_location("benchmark_of_meteor", BENCHMARKS / "meteor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def scored_by_java(benchmark, java, tmp_path):
    """Function that scores hypotheses with lists of R references each: what the program prints, times 100."""

    def score(lang, hypotheses, references):
        files = tmp_path / "hypotheses", tmp_path / "references"
        benchmark.write_lines(files[0], hypotheses)
        benchmark.write_lines(files[1], (one for own in references for one in own))
        command = [*benchmark.java_command(java, lang, *files), "-r", str(len(references[0]))]
        done = subprocess.run(command, capture_output=True, check=True, timeout=1200)
        return benchmark.printed_scores(done.stdout.decode())

    return score


@pytest.fixture
def paraphrased(tmp_path, monkeypatch):
    """Paraphrases of each language made of its words, so that all modules of METEOR have matches."""

    def table_of(lang):
        path = tmp_path / f"paraphrase-{lang}.gz"
        words = [word for word in WORDS[lang].lower().split() if word.isalpha()]
        phrases = [*words, *map(" ".join, zip(words[1:], words, strict=False))]
        with gzip.open(path, "wt", encoding="utf-8") as table:
            table.writelines(f"0.5\n{one}\n{other}\n" for one, other in zip(phrases, phrases[5:], strict=False))
        return path

    monkeypatch.setattr(data, "paraphrase_file", {lang: table_of(lang) for lang in WORDS}.__getitem__)


@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("lang", sorted(WORDS))
def test_scores_are_those_that_the_program_prints(lang, references, scored_by_java, paraphrased):
    hypotheses, *others = (sentences(lang, 300, seed) for seed in range(1 + references))
    grouped = list(zip(*others, strict=True))
    rows = meteor_statistics(lang, hypotheses, grouped)
    used = rows[:, 4:20].reshape(-1, 4, 4).sum(axis=(0, 2)) > 0
    assert used.sum() == len(LANGUAGES[lang].modules), "every weight counts"
    segments, corpus = scored_by_java(lang, hypotheses, grouped)
    assert meteor_values(lang, rows) == pytest.approx(segments, abs=1e-9)
    assert meteor_value(lang, rows.sum(axis=0)) == pytest.approx(corpus, abs=1e-9)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("paraphrases")
@pytest.mark.parametrize("lang", ["en", "de", "fr", "cs"])
def test_scores_of_real_sentences_are_those_that_the_program_prints(lang, scored_by_java, benchmark, real_data):
    """20,000 pairs, most of them reversed, doubled or mixed copies, with many equally good alignments."""
    hypotheses, references = zip(*benchmark.pairs(real_data, lang), strict=True)
    rows = meteor_statistics(lang, hypotheses, [[one] for one in references])
    segments, corpus = scored_by_java(lang, hypotheses, [[one] for one in references])
    assert len(rows) == len(segments) == 20_000
    assert (np.abs(meteor_values(lang, rows) - segments) < 0.01).mean() >= 0.999  # 1e-4 on the scale of the program
    assert meteor_value(lang, rows.sum(axis=0)) == pytest.approx(corpus, abs=0.01)
