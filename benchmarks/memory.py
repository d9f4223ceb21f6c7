"""Peak memory of each step against the number of rows of a collection: import, features, training, evaluate, search.

Each step runs in a process of its own, whose peak resident memory is reported, on a generated collection with one
sentence an image. The features are stored directly, as no images exist; training takes 20 steps, evaluation is that
of 500 test images with the sentences of the training split, and the search ranks all images for one sentence.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

ROWS = (10_000, 100_000, 1_000_000)
STEPS = ("import", "summary", "features", "training", "evaluate", "search")
TEST_ROWS, VAL_ROWS = 500, 100
WIDTH = 16
"""Size of the stored features."""
COLOURS = ("red", "green", "blue", "white", "black", "brown", "yellow", "grey")
THINGS = ("dog", "cat", "horse", "boat", "house", "tree", "child", "bird", "car", "train")
PLACES = ("in the snow", "on the beach", "by the river", "in the street", "under a bridge", "in a field")
LIMIT = 1.5
"""Most memory of a step in GiB."""


def sentences(rows: int) -> Iterator[tuple[str, str, str]]:
    """Generate the id, the split and a sentence of each row; the same numbers give the same rows."""
    random = np.random.default_rng(0)
    for begin in range(0, rows, 10_000):
        words = random.integers([len(COLOURS), len(THINGS), len(PLACES)], size=(min(10_000, rows - begin), 3))
        for row, (colour, thing, place) in enumerate(words.tolist(), start=begin):
            split = "test" if row < TEST_ROWS else "val" if row < TEST_ROWS + VAL_ROWS else "train"
            yield f"{row:09d}", split, f"a {COLOURS[colour]} {THINGS[thing]} {PLACES[place]}"


def write_source(path: Path, rows: int) -> None:
    """Write the JSONL file that a collection is imported from; its images are one file, since none is read."""
    (path.parent / "image.jpg").touch()
    with path.open("w", encoding="utf-8") as file:
        for item_id, split, text in sentences(rows):
            file.write(
                f'{{"id": "{item_id}", "split": "{split}", "image": "image.jpg", "lang": "en", "text": "{text}"}}\n'
            )


def run_step(step: str, folder: Path) -> None:
    """Run one step in this process, on the collection of a folder; all use the model that `model` trained."""
    from limner.data.collection import Collection

    path, run = folder / "collection", folder.parent / "run"
    if step == "import":
        from limner.data.readers import import_collection

        import_collection("jsonl", folder / "source.jsonl", path)
    elif step == "summary":
        from limner.data.summary import summarise

        summarise(Collection.open(path))
    elif step == "features":
        store_features(Collection.open(path))
    elif step == "training":
        train_lbl(Collection.open(path), folder / "unfinished", steps=20)
    elif step == "model":
        train_lbl(Collection.open(path), run)
    elif step == "evaluate":
        from limner.evaluation.evaluate import EvaluationOptions, evaluate
        from limner.runs.trained_model import load_trained_model

        options = EvaluationOptions(split="test", metrics=None)
        evaluate([load_trained_model(run)], Collection.open(path), options=options)
    else:
        from limner.inference.retriever import Retriever

        retriever = Retriever.load(run, encode_images=False)
        retriever.retrieve_images("a red dog in the snow", Collection.open(path), count=5)


def store_features(collection: object) -> None:
    """Write random features of every item, in the order of the items."""
    from limner.features.spec import FeatureSpec
    from limner.features.store import FeatureTable
    from limner.features.tables import TableWriter, table_path
    from limner.storage.hashes import IdSet

    spec = FeatureSpec(
        name="noise", kind="pooled", shape=(WIDTH,), backbone="noise", preprocessing={}, weights_sha256=""
    )
    writer = TableWriter(table_path(collection.path, "noise"), spec, IdSet())
    random, ids = np.random.default_rng(1), []
    for item in collection.iter_items(columns=["image"]):
        ids.append(item.id)
        if len(ids) == 4096:
            writer.add(ids, random.random((len(ids), WIDTH)).astype(np.float16))
            ids = []
    writer.add(ids, random.random((len(ids), WIDTH)).astype(np.float16))
    writer.flush()
    table = FeatureTable(writer.path, cache_bytes=0)
    for _ in range(100):
        table.take([f"{row:09d}" for row in random.integers(len(table), size=128)])


def train_lbl(collection: object, run: Path, steps: int | None = None) -> None:
    """Train a small MLBL-B on the training split, for one epoch or some steps of it."""
    from limner.runs.recipe import Recipe
    from limner.training.loop import train

    class Enough(Exception):
        pass

    def stop(progress: object) -> None:
        if progress.state.step == steps:
            raise Enough

    recipe = Recipe.parse(
        {
            "features": {"tables": ["noise"], "cache_mib": 0},
            "model": {"name": "lbl", "variant": "MLBL-B", "word_dim": 16, "image_encoder": {"scaling": "unit"}},
            "training": {"epochs": 1, "batch_size": 64, "metrics": [], "precision": "fp32"},
        }
    )
    with suppress(Enough):
        train(recipe, collection, run, on_progress=stop)


def memory() -> None:
    """Report the peak memory of each step at each number of rows, and its growth a million rows."""
    from measuring import report

    peaks: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for rows in ROWS:
            folder = Path(scratch) / str(rows)
            folder.mkdir()
            write_source(folder / "source.jsonl", rows)
            for step in (*STEPS[:4], "model", *STEPS[4:]) if rows == ROWS[0] else STEPS:
                command = [sys.executable, __file__, step, str(folder)]
                output = subprocess.run(command, check=True, capture_output=True, text=True)
                peak = int(output.stdout.split()[-1]) / (1 << 20)
                peaks.setdefault(step, {})[rows] = peak
                report(f"memory_{step}", peak, "GiB", f"<= {LIMIT}", rows=rows)
    for step in STEPS:
        growth = (peaks[step][ROWS[-1]] - peaks[step][ROWS[0]]) / (ROWS[-1] - ROWS[0]) * 1e6
        report(f"memory_{step}_growth", growth, "GiB for a million rows", "<= 0.5", rows=f"{ROWS[0]} to {ROWS[-1]}")


if __name__ == "__main__":
    run_step(sys.argv[1], Path(sys.argv[2]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
