"""Measure the search of folders: 40 queries in the validation photographs and 500 photographs of the pool.

    python pretrained/measure_search.py --data FOLDER

FOLDER has `photographs/` and `pool/` (README.md beside this file). The photographs of the pool are of the tenth that is
left out of every training. A photograph is right for a query if it shows all its things: a caption names them, the
label of the pool is such a thing ('water bottle' is a bottle, and a ferry is a boat), or the teacher detects them with
a score of at least 0.5. Precision is the share of right photographs among the first min(5, R), where R are right; a
query for which none is right is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np

from limner.inference.image_searcher import ImageSearcher
from things import by_coco, by_label, mentions, things

QUERIES = {
    "a cat": "cat", "a dog": "dog", "a horse": "horse", "a cow": "cow", "a sheep": "sheep", "an elephant": "elephant",
    "a giraffe": "giraffe", "a bird": "bird", "a bear": "bear", "a bus": "bus", "a train": "train",
    "an airplane": "airplane", "a boat": "boat", "a car": "car", "a motorcycle": "motorcycle", "a bicycle": "bicycle",
    "a pizza": "pizza", "a cake": "cake", "a banana": "banana", "an apple": "apple", "a cup": "cup",
    "a bottle": "bottle", "a chair": "chair", "a couch": "couch", "a bed": "bed", "a laptop": "laptop",
    "a television": "tv", "a clock": "clock", "an umbrella": "umbrella", "a piano": "piano",
    "a person riding a horse": "person horse", "a man on a skateboard": "person skateboard",
    "a dog on a couch": "dog couch", "a cat on a bed": "cat bed", "a boat on the water": "boat",
    "a person with an umbrella": "person umbrella", "a table with chairs": "dining+table chair",
    "a man riding a bicycle": "person bicycle", "food on a plate": "plate",
    "a kitchen with a refrigerator": "refrigerator",
}  # fmt: skip
"""The things of each query; a name of two words has a +."""
BOATS = {"ferry", "yawl", "watercraft", "canoe", "gondola", "speedboat", "lifeboat", "catamaran", "fireboat",
         "schooner", "trimaran", "ketch"}  # fmt: skip
"""Labels of the pool that are boats."""
SURE = 0.5
"""Score from which a detection counts."""
POOL = 500
"""Number of photographs of the pool."""


def photographs(data: Path) -> dict[Path, set[str]]:
    """Return the things in each photograph."""
    shown: dict[Path, set[str]] = {}
    for part in ("coco", "pascal"):
        for line in (data / "photographs" / part / "captions.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            nouns = [mention.nouns for caption in row["captions"] for mention in mentions(caption)]
            shown[data / "photographs" / part / "images" / row["file"]] = set().union(*nouns)
    rows = [json.loads(line) for line in (data / "pool" / "manifest.jsonl").read_text("utf-8").splitlines()]
    for row in [row for row in rows if sum(f"pool-{Path(row['file']).stem}".encode()) % 10 == 0][:POOL]:
        label, words = row["label"], row["label"].replace("-", " ").split()
        names = by_label()[label]
        kinds = {name for name in things() if name in names.kinds}
        detected = {by_coco()[name].noun for name, score, _ in row["detections"] if score >= SURE}
        part_of_name = {words[-1]} if len(words) > 1 else set()
        boat = {"boat"} if label in BOATS else set()
        shown[data / "pool" / "images" / row["file"]] = {names.noun} | kinds | detected | part_of_name | boat
    with gzip.open(data / "pool" / "photographs_detections.jsonl.gz", "rt", encoding="utf-8") as lines:
        detections = {Path(row["file"]).name: row["detections"] for row in map(json.loads, lines)}
    for path, names_of in shown.items():
        names_of |= {by_coco()[name].noun for name, score, _ in detections.get(path.name, ()) if score >= SURE}
    return shown


def main() -> None:
    """Print the precision of each query, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with photographs/ and pool/")
    shown, searcher = photographs(parser.parse_args().data), ImageSearcher()
    paths = list(shown)
    features = (searcher.features_of([searcher.read(path)])[0] for path in paths)
    vectors = np.stack([searcher.vector_of(values) for values in features])
    projected, precisions, firsts = searcher.project(vectors), [], []
    for query, names in QUERIES.items():
        needed = {name.replace("+", " ") for name in names.split()}
        right = [needed <= shown[path] for path in paths]
        if not any(right):
            continue
        best = np.argsort(-searcher.scores(query, vectors, projected), kind="stable")[: min(5, sum(right))]
        precisions.append(np.mean([right[row] for row in best]))
        firsts.append(right[best[0]])
        print(f"{query}\t{precisions[-1]:.2f}\t{', '.join(paths[row].name for row in best)}")
    print(f"{len(paths)} photographs, {len(firsts)} queries: precision {np.mean(precisions):.3f}, ", end="")
    print(f"first right {np.mean(firsts):.3f}")


if __name__ == "__main__":
    main()
