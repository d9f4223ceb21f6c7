"""Pooled features for sentences without a photograph: a photograph of similar things lends its features, moved.

    python pretrained/text_features.py COLLECTION --data FOLDER --concepts RUN --rows ROWS.jsonl --out TABLE.lance

COLLECTION has pooled features of captioned and labelled photographs, RUN the English concepts, and FOLDER the text
corpora. ROWS.jsonl receives an item for each sentence, whose image is the photograph that lends its features, and TABLE
the features. A captioner learns from them to write about things that no captioned photograph shows.

The features x (D,) of the photograph are moved as little as possible until the linear layer of the concepts says what
the sentence says,

    x' = x + W' (W W' + ridge)^-1 (t - W x),

with a row of W for each concept that the sentence names, and for each thing that is in the photograph and not in the
sentence. t is a logit that the layer has for a photograph with captions or labels in which the concept is true, or
`FALSE`. The part of the layer that reads the classes of ImageNet is not moved. Features are positive, so the step is
repeated on what clipping at zero has left. Sentences that name no concept are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concepts import BACKBONE, is_held_out, read_photographs, targets_of
from limner.data.collection import Collection
from limner.features.store import FeatureTable
from limner.features.tables import TableWriter
from limner.runs.concepts import Concepts
from limner.storage.hashes import IdSet
from pseudo_captions import EVERYDAY, read_sentences

COPIES, OTHERS = 2, 40_000
"""Items of an English sentence about everyday things, and number of other English sentences."""
CANDIDATES = 20
"""Most similar photographs, of which a sentence has one by chance."""
PRESENT = 0.15
"""Probability from which a thing that a sentence does not name is in a photograph."""
OTHER_THINGS = 0.7
"""Weight of the other things of a photograph in its choice, beside the concepts of the sentence."""
KEPT = 0.35
"""Share of the things of a photograph that a sentence passes over, as captions do."""
RIDGE = 0.02
"""Share of the mean square of the rows of W."""
REPEATS = 3
FALSE = -3.5
"""Logit of a thing that is not in a photograph."""
CHUNK = 512
"""Sentences whose features are written together."""

Array = NDArray[np.float32]


def main() -> None:
    """Write the items and their pooled features."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--concepts", type=Path, required=True, help="folder of concepts.json")
    parser.add_argument("--rows", type=Path, required=True, help="file of lines of JSON to write, for 'limner import'")
    parser.add_argument("--out", type=Path, required=True, help="feature table to write, or to add to")
    options = parser.parse_args()
    concepts, generator = Concepts.load(options.concepts), random.Random(1)
    assert concepts is not None, "the folder has concepts"
    collection = Collection.open(options.collection)
    texts = english_sentences(options.collection, options.data, generator)
    generator.shuffle(texts)
    known = read_photographs(options.collection, options.data, ("train", "pool"))
    photographs = [photograph for photograph in known if not is_held_out(photograph)]
    names = [photograph.id for photograph in photographs]
    paths = {
        item.id: collection.absolute_image_path(item) for split in ("train", "pool") for item in collection.items(split)
    }
    images = [str(Path(paths[name] or "").relative_to(options.data.resolve())) for name in names]
    table = FeatureTable.open(collection, BACKBONE)
    vectors = np.asarray(table.take(names), np.float32).reshape(len(names), -1)
    editor = Editor(concepts, vectors, targets_of(photographs, [concept.name for concept in concepts.file.concepts]))
    writer = TableWriter(options.out, table.spec, IdSet())
    with options.rows.open("w", encoding="utf-8") as out:
        for start in range(0, len(texts), CHUNK):
            named = {
                f"text-{start + row}": (text, editor.named(text))
                for row, text in enumerate(texts[start : start + CHUNK])
            }
            named = {name: pair for name, pair in named.items() if pair[1]}
            rows = editor.similar([columns for _, columns in named.values()])
            moved = [editor.moved(row, columns) for row, (_, columns) in zip(rows, named.values(), strict=True)]
            writer.add([*named], np.stack(moved).astype(np.float16).reshape(len(named), *table.spec.shape))
            for row, (name, (text, _)) in zip(rows, named.items(), strict=True):
                line = {"id": name, "split": "train", "image": images[row], "lang": "en", "text": text}
                out.write(json.dumps(line) + "\n")
    writer.flush()
    error, change = np.mean(editor.errors, 0)
    print(
        f"{len(editor.errors):,} of {len(texts):,} sentences: logits {error:.3f} off, features moved {change:.3f}",
        file=sys.stderr,
    )


def english_sentences(collection: Path, data: Path, generator: random.Random) -> list[str]:
    """Return the sentences about everyday things, each `COPIES` times, and `OTHERS` sentences of the other corpora."""
    sentences = read_sentences(collection, data)
    others = [text for text, value in sentences.items() if value != EVERYDAY]
    texts = [text for text, value in sentences.items() if value == EVERYDAY] * COPIES
    return [*texts, *generator.sample(others, OTHERS)]


class Editor:
    """Moves the pooled features of photographs to the concepts of sentences."""

    def __init__(self, concepts: Concepts, vectors: Array, targets: Array) -> None:
        """Compute the logits of the concepts in the photographs, and of the true ones among them.

        Args:
            concepts: the layer, with the names of its concepts.
            vectors: pooled features of the photographs, (N, D).
            targets: truth of the concepts in the photographs, (N, C).
        """
        self.concepts, self.vectors = concepts, vectors
        self.probabilities = np.clip(concepts.of_vectors(vectors), 1e-6, 1 - 1e-6)
        self.logits = np.log(self.probabilities / (1 - self.probabilities))
        self.things = np.zeros(self.logits.shape[1], bool)
        self.things[concepts.things] = True
        self.true = [self.logits[targets[:, column] == 1.0, column] for column in range(self.logits.shape[1])]
        self.typical = np.concatenate([values[:50] for values in self.true])
        numbers = {concept.name: column for column, concept in enumerate(concepts.file.concepts)}
        self.kind = {column: numbers.get(concept.kind) for column, concept in enumerate(concepts.file.concepts)}
        self.generator = np.random.default_rng(1)
        self.errors: list[tuple[float, float]] = []
        """Mean error of the logits, and share of their length by which features were moved."""

    def named(self, text: str) -> list[int]:
        """Return the concepts that a text names, of several for a name the most frequent, with the kinds of things."""
        groups = self.concepts.mentions(text)
        columns = [max(group, key=lambda column: len(self.true[column])) for group in groups]
        kinds = [kind for column in columns if (kind := self.kind[column]) is not None]
        return [*dict.fromkeys([*columns, *kinds])]

    def similar(self, named: Sequence[Sequence[int]]) -> list[int]:
        """Choose a photograph for the concepts of each sentence, one of the most similar ones."""
        rows, columns = np.repeat(np.arange(len(named)), [*map(len, named)]), np.concatenate(named)
        chosen = csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(named), self.logits.shape[1]))
        present = OTHER_THINGS * np.where(self.things, self.probabilities, 0)
        scores = chosen @ (np.log(np.maximum(self.probabilities, 1e-3)) + present).T - present.sum(1)
        best = np.argpartition(-scores, CANDIDATES, axis=1)[:, :CANDIDATES]
        return [int(row[self.generator.integers(CANDIDATES)]) for row in best]

    def moved(self, row: int, named: Sequence[int]) -> Array:
        """Return the features of a photograph, moved to the concepts of a sentence, (D,)."""
        logits, change = self.logits[row], dict[int, float]()
        for column in named:
            values = self.true[column] if len(self.true[column]) >= 10 else self.typical
            change[column] = max(0.0, values[self.generator.integers(len(values))] - logits[column])
        for column in np.flatnonzero(self.things & (self.probabilities[row] > PRESENT)).tolist():
            is_named = column in named or self.kind[column] in named or column in {self.kind[other] for other in named}
            if not is_named and self.generator.random() > KEPT:
                change[column] = min(0.0, FALSE - logits[column])
        columns = [column for column, difference in change.items() if difference]
        if not columns:
            return self.vectors[row]
        weight, start = self.concepts.weight[columns], self.vectors[row]
        system = weight @ weight.T + RIDGE * np.square(weight).sum(1).mean() * np.eye(len(columns), dtype=np.float32)
        goal, x = weight @ start + np.array([change[column] for column in columns], np.float32), start
        for _ in range(REPEATS):
            x = np.maximum(x + weight.T @ np.linalg.solve(system, goal - weight @ x), 0)
        moved = np.linalg.norm(x - start) / np.linalg.norm(start)
        self.errors.append((float(np.abs(goal - weight @ x).mean()), float(moved)))
        return np.asarray(x, np.float32)


if __name__ == "__main__":
    main()
