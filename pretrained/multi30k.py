"""Descriptions of the second task of Multi30k (Elliott et al., 2016) as JSONL: German ones, and ones without images."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

DESCRIPTIONS = 5
"""Number of independent descriptions of each image in a language."""
SPLITS = {"train": "train", "val": "val", "test": "test_2016", "test_2016_flickr": "test_2016"}
"""File names of the splits in flickr8k_overlap.tsv."""


def write_german(multi30k: Path, out: Path) -> None:
    """Write the descriptions of the images that Multi30k and Flickr8k share, with the splits of Flickr8k.

    Args:
        multi30k: folder with task2/ and flickr8k_overlap.tsv, whose columns name the line of each shared image.
        out: JSONL file to write.
    """
    images = {split: (multi30k / f"task2/{split}.images.txt").read_text().split() for split in set(SPLITS.values())}
    german = {split: _descriptions(multi30k, split, "de") for split in images}
    with (multi30k / "flickr8k_overlap.tsv").open(encoding="utf-8") as rows, out.open("w", encoding="utf-8") as lines:
        for row in csv.DictReader(rows, delimiter="\t"):
            name, split = row["flickr8k_image"], SPLITS.get(row["multi30k_split"])
            if split is None:
                continue
            index = _index(images[split], int(row["line"]), name)
            for texts in german[split]:
                item = {
                    "id": Path(name).stem,
                    "split": row["flickr8k_split"],
                    "image": name,
                    "lang": "de",
                    "text": texts[index],
                }
                lines.write(json.dumps(item, ensure_ascii=False) + "\n")


def write_paraphrases(multi30k: Path, lang: str, out: Path) -> None:
    """Write the training descriptions of images that Flickr8k does not have, as items without an image.

    `multi30k`, `out`: see `write_german`.
    """
    with (multi30k / "flickr8k_overlap.tsv").open(encoding="utf-8") as rows:
        shared = {row["flickr8k_image"].split("_")[0] for row in csv.DictReader(rows, delimiter="\t")}
    names = (multi30k / "task2/train.images.txt").read_text().split()
    descriptions = _descriptions(multi30k, "train", lang)
    with out.open("w", encoding="utf-8") as lines:
        for index, name in enumerate(names):
            number = name.split(".")[0]
            for texts in descriptions if number not in shared else ():
                item = {"id": f"multi30k-{number}", "split": "train", "image": "", "lang": lang, "text": texts[index]}
                lines.write(json.dumps(item, ensure_ascii=False) + "\n")


def _descriptions(multi30k: Path, split: str, lang: str) -> list[list[str]]:
    """Read the descriptions of a split by their number, each a list by the line of the image."""
    return [_lines(multi30k / f"task2/{split}.{number}.{lang}.gz") for number in range(1, DESCRIPTIONS + 1)]


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")


def _index(images: list[str], line: int, name: str) -> int:
    """Return the index of an image, whose line is counted from 0 or from 1; its number confirms it."""
    for index in (line - 1, line):
        if index < len(images) and images[index].split(".")[0] == name.split("_")[0]:
            return index
    raise SystemExit(f"flickr8k_overlap.tsv: line {line}: expected image {name}, found {images[line - 1]}")
