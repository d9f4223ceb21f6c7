"""Mirror images of the training photographs, with the sentences of the photographs, as JSONL."""

from __future__ import annotations

import json
import re
from pathlib import Path

from PIL import Image, ImageOps

from limner.data.collection import Collection

SUFFIX = "-mirrored"
"""What the id of a mirror image adds to that of its photograph."""
SIDES = re.compile(r"\b(left|right)\b|\b(link|recht)(s|e|en|er|es|em)\b|[左右]", re.IGNORECASE)
"""What makes a sentence wrong of the mirror image: left and right in English, German and Chinese."""


def write_mirrored(collection: Path, images: Path, out: Path) -> None:
    """Write the mirror images of the training split, and their sentences that name no side.

    Args:
        collection: collection with the photographs and their sentences.
        images: folder of the mirror images, which are JPEG files; those that exist stay.
        out: JSONL file to write.
    """
    images.mkdir(parents=True, exist_ok=True)
    opened = Collection.open(collection)
    with out.open("w", encoding="utf-8") as lines:
        for item in opened.items("train"):
            if item.id.endswith(SUFFIX):
                continue
            name = f"{item.id}{SUFFIX}.jpg"
            _mirror(opened.absolute_image_path(item), images / name)
            for sentence in item.sentences:
                if SIDES.search(sentence.text):
                    continue
                row = {
                    "id": item.id + SUFFIX,
                    "split": "train",
                    "image": name,
                    "lang": sentence.lang,
                    "text": sentence.text,
                }
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _mirror(source: Path, out: Path) -> None:
    if out.exists():
        return
    with Image.open(source) as image:
        mirrored = ImageOps.mirror(ImageOps.exif_transpose(image).convert("RGB"))
    partial = out.with_suffix(".partial")
    mirrored.save(partial, format="JPEG", quality=95, subsampling=0)
    partial.replace(out)
