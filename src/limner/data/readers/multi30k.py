"""Multi30k (Elliott et al., 2016): Flickr30k's pictures described in English, German, French and Czech."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from limner.data.readers.corpus_files import ImageFolder, Options, Splits, read_lines
from limner.data.readers.image_names import key_of
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError

LANGUAGES = ("en", "de", "fr", "cs")
TEXT_NAME = re.compile(rf"(?P<split>\w+?)(?:\.(?P<number>[1-9]))?\.(?P<lang>{'|'.join(LANGUAGES)})(?:\.gz)?")
IMAGE_LISTS = (
    "{split}.images.txt",
    "image_splits/{split}.txt",
    "../image_splits/{split}.txt",
)
SPLIT_NAMES = {
    "test_2016": "test",
    "test_2016_flickr": "test",
}  # task 2's and task 1's names for one test set


class _Part(NamedTuple):
    """The files of one task and one split."""

    split: str
    images: Path
    texts: list[tuple[Path, str, int | None]]  # file, language, number of the description in task 2


def read_multi30k(source: Path, options: Options, gathering: Gathering) -> None:
    """Read task 1 (`SPLIT.LANG`, translations) and task 2 (`SPLIT.K.LANG`, independent descriptions).

    The sentences of one line of task 1 share a group; each description of task 2 has its own. Items are named
    by their pictures, so both tasks, read one after the other, meet in the same items.

    Args:
        source: a folder with a task's files (plain or `.gz`) and its image lists, or with `task1`, `task2`.
        options: `images`, a folder of Flickr30k's or Flickr8k's pictures; without it, and for pictures that
            are not in it, the sentences are kept as text. `splits`, lists to use in place of Multi30k's own
            splits; what is in none of them is skipped.
        gathering: gets the items, in the order of the image lists.
    """
    pictures = ImageFolder(options.images) if options.images else None
    splits = Splits.of(source, options, gathering) if options.splits else None
    announced: set[tuple[str, str]] = set()  # both tasks list the same pictures, which are skipped once
    for part in _find_parts(source):
        names = [name.strip().partition("#")[0] for name in read_lines(part.images)]
        keys = [gathering.key(name, SourceLocation(part.images, number)) for number, name in enumerate(names, start=1)]
        for number, (name, key) in enumerate(zip(names, keys, strict=True), start=1):
            if (key, part.split) not in announced:
                announced.add((key, part.split))
                _announce(name, part.split, SourceLocation(part.images, number), pictures, splits, gathering)
        for path, lang, description in part.texts:
            lines = read_lines(path)
            _require_same_length(path, len(lines), part.images, len(names))
            turns: Counter[str] = Counter()  # a picture may have several lines: each is translated for itself
            for number, (key, text) in enumerate(zip(keys, lines, strict=True), start=1):
                if key in gathering:
                    group = turns[key] if description is None else 10 * description + LANGUAGES.index(lang)
                    gathering.sentence(key, SourceLocation(path, number), lang, text, group)
                    turns[key] += 1


def _announce(
    name: str,
    split: str,
    place: SourceLocation,
    pictures: ImageFolder | None,
    splits: Splits | None,
    gathering: Gathering,
) -> None:
    picture = pictures.find_flickr(name) if pictures else None
    if splits:
        listed = splits.split_of(key_of(name)) or (splits.split_of(key_of(picture.name)) if picture else None)
        if listed is None:
            gathering.skip("pictures in none of the lists of splits", name, place)
            return
        split = listed
    if pictures and picture is None:
        gathering.skip("pictures that are not there (their sentences are kept as text)", name, place)
    gathering.item(key_of(name), place, split=split, image=picture)


def _find_parts(source: Path) -> list[_Part]:
    """The parts in a folder, or in its subfolders `task1` and `task2`, training split first."""
    folders = [source, *(source / name for name in ("raw", "task1", "task1/raw", "task2", "task2/raw"))]
    parts: dict[tuple[Path, str], _Part] = {}
    for folder in folders:
        for path in sorted(folder.glob("*")):
            if match := TEXT_NAME.fullmatch(path.name):
                name = match["split"]
                if (folder, name) not in parts:
                    images = _image_list(folder, name)
                    parts[folder, name] = _Part(SPLIT_NAMES.get(name, name), images, [])
                number = int(match["number"]) if match["number"] else None
                parts[folder, name].texts.append((path, match["lang"], number))
    if not parts:
        raise CollectionError(f"{source}: no files like train.en.gz (task 1) or train.1.en.gz (task 2)")
    return sorted(parts.values(), key=lambda part: ("train", "val", part.split).index(part.split))


def _image_list(folder: Path, split: str) -> Path:
    candidates = [folder / pattern.format(split=split) for pattern in IMAGE_LISTS]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise CollectionError(f"{candidates[0]}: does not exist; it should name the picture of each line")
    return found


def _require_same_length(path: Path, lines: int, other: Path, others: int) -> None:
    if lines != others:
        (short, end), (long, last) = sorted([(path, lines), (other, others)], key=lambda pair: pair[1])
        raise CollectionError(
            f"{SourceLocation(short, end)}: this file ends here, but {long} goes on to line {last}; "
            "line by line they must belong together"
        )
