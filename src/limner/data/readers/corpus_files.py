"""The files a corpus comes in: text with or without gzip, JSON, folders of pictures, lists of splits."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from limner.data.readers.image_names import key_of, may_be_one
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError
from limner.media.modality import IMAGE, Modality, find_modality

PICTURE_FOLDERS = (
    "images",
    "Images",
    "Flicker8k_Dataset",
    "Flickr8k_Dataset",
    "flickr30k_images",
    "flickr30k-images",
)
SPLIT_NAME = re.compile(r"(?:^|[._-])(train|val|dev|test)(?:Images|_?list|_?images)?$", re.IGNORECASE)
SPLIT_ALIASES = {"dev": "val"}
FLICKR_NAME = re.compile(r"(\d+)(?:_[0-9a-f]+.*)?")  # Flickr's number, then what Flickr8k adds to it


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say about a source; each reader takes some of these."""

    images: Path | None = None
    """Folder of the pictures, where it is not where the corpus puts it."""
    splits: Path | None = None
    """Folder of lists, one a split (`train.txt`, ...): names of pictures, one a line."""
    lang: str | None = None
    """Language of the sentences."""
    split: str | None = None
    """Split of all items that have none of their own; `auto` deals them out, see `chosen_split`."""


def chosen_split(id: str, options: Options) -> str:
    """The split of an item that its source puts in none: what the user says, otherwise `train`.

    With `auto` it depends on the id alone: about 80 % are `train`, 10 % `val` and 10 % `test`, and an item stays
    where it is however the collection grows.
    """
    if options.split != "auto":
        return options.split or "train"
    drawn = hashlib.sha256(id.encode()).digest()[0]
    return "train" if drawn < 205 else "val" if drawn < 231 else "test"


def read_text(path: Path) -> str:
    """The text of a file, gunzipped when its name ends in `.gz`.

    Raises:
        CollectionError: it cannot be read, is empty or is not UTF-8.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise CollectionError(f"{path}: cannot be read: {error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CollectionError(
            f"{SourceLocation(path, line)}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    if not text.strip():
        raise CollectionError(f"{path}: the file is empty")
    return text


def read_lines(path: Path) -> list[str]:
    """The lines of a file; only line feeds end one, as other separators occur within sentences."""
    return [line.rstrip("\r") for line in read_text(path).removesuffix("\n").split("\n")]


def read_json(path: Path) -> Any:  # noqa: ANN401 (whatever JSON holds)
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise CollectionError(f"{SourceLocation(path, error.lineno)}: not valid JSON: {error.msg}") from None


def field(entry: Any, key: str, kind: type, place: SourceLocation) -> Any:  # noqa: ANN401
    """`entry[key]` of a JSON object, or a CollectionError saying what was expected."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        found = "is missing" if value is None else f"is {value!r}"
        raise CollectionError(f"{place}: '{key}' {found}; expected a value of type '{kind.__name__}'")
    return value


def find_files(source: Path, patterns: Iterable[str], what: str) -> list[Path]:
    """The files of `source` that the first matching pattern finds, or `source` itself when it is a file.

    Raises:
        CollectionError: no pattern matches; the message names `what` and all patterns.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise CollectionError(f"{source}: does not exist")
    patterns = tuple(patterns)
    for pattern in patterns:
        if found := sorted(path for path in source.glob(pattern) if path.is_file()):
            return found
    raise CollectionError(f"{source}: no {what} found; looked for {', '.join(patterns)}")


class ImageFolder:
    """The pictures below a folder, found by name.

    Raises:
        CollectionError: the folder holds no pictures.
    """

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, dict[str, Path]] = {}  # by key, then by path below the folder
        self._numbered: dict[str, list[Path]] = {}
        for path in list_pictures(folder):
            key = key_of(path.name)
            self._paths.setdefault(key, {})[path.relative_to(folder).as_posix()] = path
            if match := FLICKR_NAME.fullmatch(key):
                self._numbered.setdefault(match[1], []).append(path)

    @classmethod
    def of(cls, source: Path, options: Options) -> ImageFolder:
        """The pictures of a corpus: in the folder the user names, or where such a corpus has them."""
        root = source if source.is_dir() else source.parent
        usual = (root / name for name in PICTURE_FOLDERS)
        return cls(options.images or next((folder for folder in usual if folder.is_dir()), root))

    def find(self, name: str) -> Path | None:
        """The picture at that path below the folder, or else the one whose path the name leads to.

        Raises:
            CollectionError: several pictures fit; names two.
        """
        paths = self._paths.get(key_of(name), {})
        if name in paths:
            return paths[name]
        fits = [path for below, path in paths.items() if may_be_one(below, name)]
        if len(fits) > 1:
            raise CollectionError(
                f"'{name}' may be {fits[0]} or {fits[1]}; name the folder of the right ones with --images, "
                "or rename one"
            )
        return fits[0] if fits else None

    def find_flickr(self, name: str) -> Path | None:
        """By name, or by Flickr's number: `1000268201.jpg` is `1000268201_693b08cb0e.jpg` in Flickr8k."""
        if path := self.find(name):
            return path
        match = FLICKR_NAME.fullmatch(key_of(name))
        numbered = self._numbered.get(match[1], []) if match else []
        return numbered[0] if len(numbered) == 1 else None


def list_pictures(folder: Path, remedy: str = "name the folder of the pictures with --images") -> list[Path]:
    """All files below a folder that look like pictures, in order of their paths.

    Args:
        folder: where to look.
        remedy: what the user can do about a folder without any.

    Raises:
        CollectionError: there are none.
    """
    found: list[Path] = []
    others: set[Modality] = set()
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        pictures = sorted(name for name in names if IMAGE.matches(name))
        found += [Path(parent, name) for name in pictures if not name.startswith(".")]
        others |= {modality for name in names if (modality := find_modality(name)) not in (None, IMAGE)}
    if not found:
        for other in others:
            raise CollectionError(
                f"{folder}: no images below this folder, but {other.plural}; import it as '{other.name}'"
            )
        state = "no pictures below this folder" if folder.is_dir() else "this folder does not exist"
        raise CollectionError(f"{folder}: {state}; {remedy}")
    return found


class Listed(NamedTuple):
    """A line of a list."""

    name: str
    split: str
    place: SourceLocation


class Splits:
    """Which split a picture belongs to, from lists with one name a line.

    Raises:
        CollectionError: no lists are found, one is empty, or two name the same picture.
    """

    def __init__(self, lists: dict[str, Path], gathering: Gathering) -> None:
        self.listed: dict[str, Listed] = {}  # by key, in the lists' order
        for split, path in lists.items():
            for number, line in enumerate(read_lines(path), start=1):
                if name := line.strip():
                    self._add(Listed(name, split, SourceLocation(path, number)), gathering)

    @classmethod
    def of(cls, source: Path, options: Options, gathering: Gathering) -> Splits:
        """The lists of a corpus: in the folder the user names, in `splits/`, or by the files' names."""
        root = source if source.is_dir() else source.parent
        folder = options.splits or root / "splits"
        if folder.is_dir() or options.splits:
            files = find_files(folder, ["*.txt"], "lists of splits")
            return cls(_in_order([(_split_of(path) or path.stem, path) for path in files]), gathering)
        lists = [(split, path) for path in sorted(root.glob("*.txt")) if (split := _split_of(path))]
        if not lists:
            raise CollectionError(
                f"{root}: no lists of splits found; write the pictures' names, one a line, to train.txt, "
                f"val.txt and test.txt in {root / 'splits'}, or name their folder with --splits"
            )
        return cls(_in_order(lists), gathering)

    def split_of(self, key: str) -> str | None:
        found = self.listed.get(key)
        return found.split if found else None

    def _add(self, line: Listed, gathering: Gathering) -> None:
        before = self.listed.setdefault(gathering.key(line.name, line.place), line)
        if before.split != line.split:
            raise CollectionError(
                f"{line.place}: '{line.name}' is in the split '{line.split}' here and in '{before.split}' in "
                f"{before.place}; a picture belongs to one split"
            )


def _split_of(path: Path) -> str | None:
    match = SPLIT_NAME.search(path.stem)
    return SPLIT_ALIASES.get(match[1].lower(), match[1].lower()) if match else None


def _in_order(lists: list[tuple[str, Path]]) -> dict[str, Path]:
    """Training, validation, test, then the others as they come."""
    ordered: dict[str, Path] = {}
    for split, path in sorted(lists, key=lambda pair: ("train", "val", "test", pair[0]).index(pair[0])):
        if split in ordered:
            raise CollectionError(f"{path}: the split '{split}' has two lists, the other is {ordered[split]}")
        ordered[split] = path
    return ordered
