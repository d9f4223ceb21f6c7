"""Multi30k (Elliott et al., 2016): images of Flickr30k with sentences in English, German, French and Czech."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from limner.data.readers.corpus_files import ImageFolder, ReaderOptions, SplitLists, read_lines
from limner.data.readers.item_builder import ItemBuilder, SourceLocation, image_key
from limner.errors import CollectionError

LANGUAGES = ("en", "de", "fr", "cs")
TEXT_NAME = re.compile(rf"(?P<split>\w+?)(?:\.(?P<number>[1-9]))?\.(?P<lang>{'|'.join(LANGUAGES)})(?:\.gz)?")
IMAGE_LISTS = ("{split}.images.txt", "image_splits/{split}.txt", "../image_splits/{split}.txt")
SPLIT_NAMES = {"test_2016": "test", "test_2016_flickr": "test"}  # names of the same test set in task 2 and task 1


class _TaskSplit(NamedTuple):
    """Files of one split of one task."""

    split: str
    images: Path
    texts: list[tuple[Path, str, int | None]]  # file, language, number of the description (task 2)


def read_multi30k(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read task 1 (`SPLIT.LANG`, translations) and task 2 (`SPLIT.K.LANG`, independent descriptions).

    The sentences of one line of task 1 share a group; each description of task 2 has a group of its own. Item ids are
    image names, so that both tasks have the same items.

    Source: folder with the files of a task (plain or `.gz`) and its image lists, or with `task1` and `task2`. Options:
    `images`, a folder of images of Flickr30k or Flickr8k; without it, and for images that are missing there, items have
    sentences only. `splits`, lists that replace the splits of Multi30k; images in none of them are skipped.

    Raises:
        CollectionError: a file is missing or malformed, or files of one split differ in length.
    """
    images = ImageFolder(options.images, builder) if options.images else None
    splits = SplitLists.of(source, options, builder) if options.splits else None
    added: set[tuple[str, str]] = set()  # both tasks list the same images; missing ones are counted once
    for part in _find_files(source):
        names = [name.strip().partition("#")[0] for name in read_lines(part.images)]
        keys = [builder.key(name, SourceLocation(part.images, number)) for number, name in enumerate(names, start=1)]
        for number, (name, key) in enumerate(zip(names, keys, strict=True), start=1):
            if (key, part.split) not in added:
                added.add((key, part.split))
                _add_item(name, part.split, SourceLocation(part.images, number), images, splits, builder)
        for path, lang, description in part.texts:
            lines = read_lines(path)
            _require_same_length(path, len(lines), part.images, len(names))
            counts: Counter[str] = Counter()  # number of lines of each image; each line is a group of its own
            for number, (key, text) in enumerate(zip(keys, lines, strict=True), start=1):
                if key in builder:
                    group = counts[key] if description is None else 10 * description + LANGUAGES.index(lang)
                    builder.add_sentence(key, SourceLocation(path, number), lang, text, group)
                    counts[key] += 1


def _add_item(
    name: str,
    split: str,
    location: SourceLocation,
    images: ImageFolder | None,
    splits: SplitLists | None,
    builder: ItemBuilder,
) -> None:
    image = images.find_flickr(name) if images else None
    if splits:
        listed = splits.split_of(image_key(name)) or (splits.split_of(image_key(image.name)) if image else None)
        if listed is None:
            builder.skip("images in none of the lists of splits", name, location)
            return
        split = listed
    if images and image is None:
        builder.skip("images that are missing (their sentences are kept as text)", name, location)
    builder.add_item(image_key(name), location, split=split, image=image)


def _find_files(source: Path) -> list[_TaskSplit]:
    """Splits in a folder, or in its subfolders `task1` and `task2`, training split first."""
    folders = [source, *(source / name for name in ("raw", "task1", "task1/raw", "task2", "task2/raw"))]
    parts: dict[tuple[Path, str], _TaskSplit] = {}
    for folder in folders:
        for path in sorted(folder.glob("*")):
            if match := TEXT_NAME.fullmatch(path.name):
                name = match["split"]
                if (folder, name) not in parts:
                    images = _image_list(folder, name)
                    parts[folder, name] = _TaskSplit(SPLIT_NAMES.get(name, name), images, [])
                number = int(match["number"]) if match["number"] else None
                parts[folder, name].texts.append((path, match["lang"], number))
    if not parts:
        raise CollectionError(f"{source}: no files like train.en.gz (task 1) or train.1.en.gz (task 2)")
    return sorted(parts.values(), key=lambda part: ("train", "val", part.split).index(part.split))


def _image_list(folder: Path, split: str) -> Path:
    candidates = [folder / pattern.format(split=split) for pattern in IMAGE_LISTS]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise CollectionError(
            f"{candidates[0]}: does not exist; expected the image name of each line; import sentence pairs without "
            "images as a table, with 'limner import csv'"
        )
    return path


def _require_same_length(path: Path, lines: int, other: Path, others: int) -> None:
    if lines != others:
        (short, end), (long, last) = sorted([(path, lines), (other, others)], key=lambda pair: pair[1])
        raise CollectionError(
            f"{SourceLocation(short, end)}: this file ends here, but {long} goes on to line {last}; "
            "expected files with the same number of lines"
        )
