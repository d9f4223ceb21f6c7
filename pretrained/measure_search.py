"""Measure the search of folders: 40 queries in the validation photographs and 500 photographs of the pool.

    python pretrained/measure_search.py --data FOLDER

FOLDER has `photographs/` and `pool/` (README.md beside this file). The photographs of the pool are of the tenth that is
left out of every training. A photograph is right for a query if it shows all its things: a caption names them, the
label of the pool is such a thing ('water bottle' is a bottle, and a ferry is a boat), or the teacher detects them with
a score of at least 0.5. Precision is the share of right photographs among the first min(5, R), where R are right; a
query for which none is right is left out.

Queries for persons, in English and German, are searched in Flickr8k's 500 validation photographs, which are in
`flickr8k/` of FOLDER. A photograph is right if two of its captions have the word.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
PERSONS = {
    "en": {"a skier": "ski(s|er|ers|ing)", "a surfer": "surf.*", "a cyclist": "bik.*|bicyc.*|cycl.*",
           "a girl": "girls?", "a baby": "bab(y|ies)", "a rider": "rid(es?|ing|ers?)", "a boy": "boys?",
           "a woman": "woman|lady", "a climber": "climb.*", "a swimmer": "sw[ai]m.*", "a snowboarder": "snowboard.*",
           "a runner": "run.*", "a skateboarder": "skateboard.*", "children": "child.*|kids?", "women": "women|ladies"},
    "de": {"ein Skifahrer": "ski(s|er|ers|ing)", "ein Surfer": "surf.*", "Radfahrer": "bik.*|bicyc.*|cycl.*",
           "ein Baby": "bab(y|ies)", "Reiter": "horses?", "ein Mädchen": "girls?", "ein Junge": "boys?",
           "eine Frau": "woman|lady", "ein Kletterer": "climb.*", "Schwimmer": "sw[ai]m.*", "ein Läufer": "run.*",
           "Snowboarder": "snowboard.*", "Skateboarder": "skateboard.*", "Motorradfahrer": "motor(cycl|bik).*",
           "zwei Leute reiten": "horses?"},
}  # fmt: skip
"""The words of captions that each query for persons asks for, as a regular expression, by language."""
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


def captions(data: Path) -> dict[Path, list[set[str]]]:
    """Return the words of each caption of the validation photographs of Flickr8k."""
    words = defaultdict(list)
    for line in (data / "flickr8k" / "Flickr8k.token.txt").read_text("utf-8").splitlines():
        name, sentence = line.split("\t")
        words[name.split("#")[0]].append(set(sentence.lower().split()))
    names = (data / "flickr8k" / "splits" / "val.txt").read_text("utf-8").split()
    return {data / "flickr8k" / "images" / name: words[name] for name in names}


def measure(searcher: ImageSearcher, paths: Sequence[Path], queries: Mapping[str, Callable[[Path], bool]]) -> None:
    """Print the precision of each query, whose function says which photographs are right, and the means."""
    features = (searcher.features_of([searcher.read(path)])[0] for path in paths)
    vectors = np.stack([searcher.vector_of(values) for values in features])
    projected, precisions, firsts = searcher.project(vectors), [], []
    for query, is_right in queries.items():
        right = [is_right(path) for path in paths]
        if not any(right):
            continue
        best = np.argsort(-searcher.scores(query, vectors, projected), kind="stable")[: min(5, sum(right))]
        precisions.append(np.mean([right[row] for row in best]))
        firsts.append(right[best[0]])
        print(f"{query}\t{precisions[-1]:.2f}\t{', '.join(paths[row].name for row in best)}")
    print(f"{len(paths)} photographs, {len(firsts)} queries: precision {np.mean(precisions):.3f}, ", end="")
    print(f"first right {np.mean(firsts):.3f}")


def shows(things_of: Mapping[Path, set[str]], names: str) -> Callable[[Path], bool]:
    """Return whether a photograph shows all things of a query."""
    needed = {name.replace("+", " ") for name in names.split()}
    return lambda path: needed <= things_of[path]


def describes(words: Mapping[Path, list[set[str]]], pattern: str) -> Callable[[Path], bool]:
    """Return whether two captions of a photograph have a word."""
    return lambda path: sum(any(re.fullmatch(pattern, word) for word in caption) for caption in words[path]) > 1


def main() -> None:
    """Measure the queries for things, and the queries for persons of each language."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with photographs/, pool/ and flickr8k/")
    data = parser.parse_args().data
    shown, words = photographs(data), captions(data)
    measure(ImageSearcher(), list(shown), {query: shows(shown, names) for query, names in QUERIES.items()})
    for lang, patterns in PERSONS.items():
        queries = {query: describes(words, pattern) for query, pattern in patterns.items()}
        measure(ImageSearcher(lang), list(words), queries)


if __name__ == "__main__":
    main()
