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
from things import mentions, things

FOLDERS = ("coco", "pascal")
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Weights of the things; WORD_WEIGHT is a share of them."""
WORD_WEIGHT = 0.3
SURE = 1.6
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
    parser.add_argument("--weight", type=float, nargs="+", default=WEIGHTS)
    options = parser.parse_args()
    layer = np.load(options.concepts)
    columns = {str(concept): column for column, concept in enumerate(layer["concepts"])}
    rows = {folder: read_rows(options.photographs / folder) for folder in FOLDERS}
    hypotheses = decode(options.run, options.photographs, rows, options.beam_size)
    probabilities: dict[str, NDArray[np.float32]] = {}
    for folder in FOLDERS:
        ids = [f"{folder}-{Path(row['file']).stem}" for row in rows[folder]]
        logits = pooled_features(options.collection, ids) @ layer["weight"].T + layer["bias"]
        files = [row["file"] for row in rows[folder]]
        probabilities.update(zip(files, 1 / (1 + np.exp(-logits)), strict=True))
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


def decode(
    run: Path, photographs: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]], beam_size: int
) -> dict[str, list[tuple[str, float]]]:
    """Return the n-best captions of the photographs with their log-probabilities, by file."""
    import limner

    captioner = limner.load(run)
    found = {}
    for folder, some in rows.items():
        images = [photographs / folder / "images" / row["file"] for row in some]
        lists = captioner.describe(images, beam_size=beam_size, n_best=beam_size)
        for row, captions in zip(some, lists, strict=True):
            found[row["file"]] = [(caption.text, caption.log_prob) for caption in captions]
    return found


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
