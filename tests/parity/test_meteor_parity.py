"""METEOR against the Java program in pycocoevalcap: sentences with many equally good alignments."""

import gzip
import random
import subprocess

import numpy as np
import pytest

pytest.importorskip("pycocoevalcap")
pytest.importorskip("numba")

from limner.metrics.meteor import data, meteor_statistics

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


def sentences(lang, count):
    rng = random.Random(1)
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
