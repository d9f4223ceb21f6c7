"""Make the built-in captioner: collection, features, training, choice of the decoding settings, packing.

    make pretrained DATA=folder [LANGS="en de zh"]

DATA holds the published corpora (see README.md beside this file); WORK receives the collection and the runs. A step
whose result exists is not repeated, and an interrupted training is resumed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from card import METRICS, write_card
from german import write_german
from limner.runs.pretrained import PRETRAINED, pack
from mirror import write_mirrored

TITLES = {
    "en": "Built-in captioner, English",
    "de": "Built-in captioner, German",
    "zh": "Built-in captioner, Chinese",
}
LENGTH_PENALTIES = (0.0, 0.3, 0.5, 0.7, 1.0)
"""Values of which validation CIDEr chooses one."""
BEAM_SIZE = 5
FEATURES = ("--backbone", "efficientnet-lite2", "--kind", "grid", "--size", 300, "--resize", "squash")


def main() -> None:
    """Make the captioners of the chosen languages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with flickr8k, flickr8k_cn and multi30k")
    parser.add_argument("--work", type=Path, default=Path("pretrained/work"), help="folder of collection and runs")
    parser.add_argument("--out", type=Path, default=PRETRAINED, help="folder of the packed models")
    parser.add_argument("--lang", nargs="+", choices=list(TITLES), default=list(TITLES))
    options = parser.parse_args()
    collection = options.work / "collection"
    make_collection(options.data, collection)
    mirrored = make_mirrored_collection(collection, options.work)
    for lang in options.lang:
        run = train(lang, collection, mirrored, options.work)
        penalty = choose_length_penalty(run, collection)
        pack(run, options.out / lang, TITLES[lang], {"beam_size": BEAM_SIZE, "length_penalty": penalty})
        measured = {split: scores(options.out / lang, collection, "--split", split) for split in ("val", "test")}
        shutil.rmtree(options.out / lang / "evaluation")
        write_card(options.out / lang, lang, collection, measured)


def make_collection(data: Path, collection: Path) -> None:
    """Import the captions of the three languages, and compute the features of the images."""
    flickr = data / "flickr8k"
    images, splits = flickr / "images", flickr / "splits"
    if not (collection / "items.lance").exists():
        german = collection.parent / "german.jsonl"
        german.parent.mkdir(parents=True, exist_ok=True)
        write_german(data / "multi30k", german)
        limner("import", "flickr", flickr, collection)
        chinese = data / "flickr8k_cn" / "flickr8kzhc.caption.txt.gz"
        limner("import", "flickr", chinese, collection, "--images", images, "--splits", splits)
        limner("import", "jsonl", german, collection, "--images", images)
    limner("features", collection, *FEATURES)


def make_mirrored_collection(collection: Path, work: Path) -> Path:
    """Return a copy of the collection that also has the mirror images of the training photographs."""
    mirrored, images, items = work / "collection-mirrored", work / "mirrored", work / "mirrored.jsonl"
    if not mirrored.exists():
        partial = work / "collection-mirrored.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(collection, partial)
        write_mirrored(collection, images, items)
        limner("import", "jsonl", items, partial, "--images", images)
        partial.rename(mirrored)
    limner("features", mirrored, *FEATURES)
    return mirrored


def train(lang: str, collection: Path, mirrored: Path, work: Path) -> Path:
    """Train by the likelihood, then by self-critical training with mirror images; return the last run."""
    first, second = work / lang, work / f"{lang}-scst"
    resume = ["--resume"] if (first / "config.json").exists() else []
    limner("train", f"pretrained/flickr8k-{lang}", "--collection", collection, "--out", first, *resume)
    start = ["--resume"] if (second / "config.json").exists() else ["--init", first]
    limner("train", f"pretrained/flickr8k-{lang}-scst", "--collection", mirrored, "--out", second, *start)
    return second


def choose_length_penalty(run: Path, collection: Path) -> float:
    """Return the length penalty with the highest CIDEr on the validation split."""
    options = ("--split", "val", "--beam-size", BEAM_SIZE)
    found = {
        penalty: scores(run, collection, *options, "--length-penalty", penalty)["cider"] for penalty in LENGTH_PENALTIES
    }
    print(f"validation CIDEr by length penalty: {found}", file=sys.stderr)
    return max(found, key=lambda penalty: found[penalty])


def scores(run: Path, collection: Path, *options: object) -> dict[str, float]:
    """Evaluate a model, and return its scores by metric."""
    metrics = [word for name in METRICS for word in ("--metric", name)]
    place = ("--model", run, "--collection", collection, "--no-retrieval", "--json")
    printed = json.loads(limner("evaluate", *place, *options, *metrics))
    return {one["name"]: one["value"] for one in printed["scores"]}


def limner(*arguments: object) -> str:
    """Run a command of Limner, and return what it prints."""
    command = [sys.executable, "-m", "limner", *map(str, arguments)]
    print(shlex.join(command[2:]), file=sys.stderr)
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
