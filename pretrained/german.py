"""German descriptions of Flickr8k's photographs, from the second task of Multi30k (Elliott et al., 2016), as JSONL."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

DESCRIPTIONS = 5
"""Number of independent German descriptions of each image."""
SPLITS = {"train": "train", "val": "val", "test": "test_2016", "test_2016_flickr": "test_2016"}
"""File names of the splits in flickr8k_overlap.tsv."""


def write_german(multi30k: Path, out: Path) -> None:
    """Write the descriptions of the images that Multi30k and Flickr8k share, with the splits of Flickr8k.

    Args:
        multi30k: folder with task2/ and flickr8k_overlap.tsv, whose columns name the line of each shared image.
        out: JSONL file to write.
    """
    images = {split: (multi30k / f"task2/{split}.images.txt").read_text().split() for split in set(SPLITS.values())}
    german = {
        (split, number): _lines(multi30k / f"task2/{split}.{number}.de.gz")
        for split in images
        for number in range(1, DESCRIPTIONS + 1)
    }
    with (multi30k / "flickr8k_overlap.tsv").open(encoding="utf-8") as rows, out.open("w", encoding="utf-8") as lines:
        for row in csv.DictReader(rows, delimiter="\t"):
            name, split = row["flickr8k_image"], SPLITS.get(row["multi30k_split"])
            if split is None:
                continue
            index = _index(images[split], int(row["line"]), name)
            for number in range(1, DESCRIPTIONS + 1):
                text = german[split, number][index]
                item = {
                    "id": Path(name).stem,
                    "split": row["flickr8k_split"],
                    "image": name,
                    "lang": "de",
                    "text": text,
                }
                lines.write(json.dumps(item, ensure_ascii=False) + "\n")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")


def _index(images: list[str], line: int, name: str) -> int:
    """Return the index of an image, whose line is counted from 0 or from 1; its number confirms it."""
    for index in (line - 1, line):
        if index < len(images) and images[index].split(".")[0] == name.split("_")[0]:
            return index
    raise SystemExit(f"flickr8k_overlap.tsv: line {line}: expected image {name}, found {images[line - 1]}")
