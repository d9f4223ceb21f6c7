"""Choose among the n-best captions of a run by the concepts, and write the captions of the photographs.

    python pretrained/choose_by_concepts.py RUN --concepts concepts.npz --collection COLLECTION \
        --photographs FOLDER --out captions.tsv

The score of a caption is

    log P(w | photograph) / length + WEIGHT * sum over the things that it names (log p(thing) + SURE)
        + WORD_WEIGHT * sum over its other words (log p(word) / rate of the word)

COLLECTION holds the pooled features of the photographs under `coco-NAME` and `pascal-NAME`. Without `--weight` the
figures of several weights are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concepts import pooled_features
from measure_photographs import content_words, measure
from things import many, mentions, things

FOLDERS = ("coco", "pascal")
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Weights of the things; WORD_WEIGHT is a share of them."""
WORD_WEIGHT = 0.3
PROBABLE = 0.15
"""Probability from which captions that name a thing are generated."""
SURE = 2.5
"""A thing counts for a caption from a probability of exp(-SURE)."""


def main() -> None:
    """Print the figures, and write the captions of the last weight."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--concepts", type=Path, required=True)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--photographs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beam-size", type=int, default=20)
    parser.add_argument("--name-things", type=int, default=2, help="probable things that further captions must name")
    parser.add_argument("--weight", type=float, nargs="+", default=WEIGHTS)
    options = parser.parse_args()
    layer = np.load(options.concepts)
    columns = {str(concept): column for column, concept in enumerate(layer["concepts"])}
    rows = {folder: read_rows(options.photographs / folder) for folder in FOLDERS}
    probabilities: dict[str, NDArray[np.float32]] = {}
    for folder in FOLDERS:
        ids = [f"{folder}-{Path(row['file']).stem}" for row in rows[folder]]
        logits = pooled_features(options.collection, ids) @ layer["weight"].T + layer["bias"]
        files = [row["file"] for row in rows[folder]]
        probabilities.update(zip(files, 1 / (1 + np.exp(-logits)), strict=True))
    expected = {file: expected_things(values, columns, options.name_things) for file, values in probabilities.items()}
    hypotheses = decode(options.run, options.photographs, rows, options.beam_size, expected)
    captions: dict[str, str] = {}
    for weight in options.weight:
        captions = {
            file: choose(found, evidence_of(found, probabilities[file], columns, layer["rate"]), weight)
            for file, found in hypotheses.items()
        }
        figures = {folder: measure(rows[folder], captions) for folder in FOLDERS}
        print(weight, json.dumps(figures), file=sys.stdout, flush=True)
    options.out.write_text("".join(f"{file}\t{caption}\n" for file, caption in captions.items()), encoding="utf-8")


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Read the photographs of a folder with their captions."""
    return [json.loads(line) for line in (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()]


def expected_things(values: NDArray[np.float32], columns: Mapping[str, int], number: int) -> list[str]:
    """Return the most probable things of a photograph, best first."""
    nouns = sorted((noun for noun in things() if noun in columns), key=lambda noun: -values[columns[noun]])
    return [noun for noun in nouns[:number] if values[columns[noun]] >= PROBABLE]


def decode(
    run: Path,
    photographs: Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    beam_size: int,
    expected: Mapping[str, Sequence[str]],
) -> dict[str, list[tuple[str, float]]]:
    """Return captions of the photographs with their log-probabilities: the n-best, and those that name a thing."""
    import limner

    captioner = limner.load(run)
    vocabulary = set(captioner.models[0].tokenizer.entries)
    found: dict[str, list[tuple[str, float]]] = {}
    for folder, some in rows.items():
        files = [row["file"] for row in some]
        number = max((len(expected[file]) for file in files), default=0)
        for place in range(-1, number):
            words = [required(expected[file], place, vocabulary) for file in files]
            kept = [file for file, word in zip(files, words, strict=True) if place < 0 or word]
            if not kept:
                continue
            must = None if place < 0 else [word for word in words if word]
            size = beam_size if place < 0 else 5
            images = [photographs / folder / "images" / file for file in kept]
            lists = captioner.describe(images, beam_size=size, n_best=size, must_include=must)
            for file, captions in zip(kept, lists, strict=True):
                found.setdefault(file, []).extend((caption.text, caption.log_prob) for caption in captions)
    return found


def required(nouns: Sequence[str], place: int, vocabulary: set[str]) -> list[str]:
    """Return the words of a thing that the model knows as a list of one text with alternatives; empty for none."""
    if not 0 <= place < len(nouns):
        return []
    thing = things()[nouns[place]]
    words = (thing.noun, *thing.words)
    forms = dict.fromkeys(form for word in words for form in (word, many(word)))
    known = [form for form in forms if all(part in vocabulary for part in form.split())]
    return ["|".join(known[:12])] if known else []


def evidence_of(
    hypotheses: Sequence[tuple[str, float]],
    probabilities: NDArray[np.float32],
    columns: Mapping[str, int],
    rates: NDArray[np.float64],
) -> list[float]:
    """Compute what the concepts say of each caption."""
    result = []
    for text, _ in hypotheses:
        named = {mention.nouns for mention in mentions(text)}
        value = sum(np.log(max(*(probabilities[columns[n]] for n in nouns), 1e-3)) + SURE for nouns in named)
        for word in content_words(text) - set(things()):
            if word in columns:
                ratio = max(probabilities[columns[word]], 1e-3) / max(rates[columns[word]], 1e-3)
                value += WORD_WEIGHT * float(np.clip(np.log(ratio), -2, 1.5))
        result.append(float(value))
    return result


def choose(hypotheses: Sequence[tuple[str, float]], evidence: Sequence[float], weight: float) -> str:
    """Return the caption with the highest score."""
    scores = [
        log_prob / max(len(text.split()), 1) + weight * value
        for (text, log_prob), value in zip(hypotheses, evidence, strict=True)
    ]
    return hypotheses[int(np.argmax(scores))][0]


if __name__ == "__main__":
    main()
