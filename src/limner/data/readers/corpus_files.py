"""Files of corpora: text with optional gzip compression, JSON, image folders, lists of splits."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from limner.data.readers.item_builder import ItemBuilder, SourceLocation, image_key, may_be_same_image
from limner.errors import CollectionError, system_reason
from limner.files import decode_utf8, open_file, read_bytes
from limner.files.structured import StructureError, parse_json
from limner.media.modality import IMAGE, Modality, find_modality

IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k_images", "flickr30k-images")
"""Names of image folders in published corpora."""
SPLIT_NAME = re.compile(r"(?:^|[._-])(train|val|dev|test)(?:Images|_?list|_?images)?$", re.IGNORECASE)
"""Name of a split in the file name of a list, without suffix."""
HIDDEN_FOLDERS = (".", "__")
"""Prefixes of the names of folders that are not read, such as __MACOSX."""
SPLIT_ALIASES = {"dev": "val"}
FLICKR_NAME = re.compile(r"(\d+)(?:_[0-9a-f]+.*)?")
"""Number of an image on Flickr, followed in Flickr8k by an underscore and a hash."""


DescriptionForm = Literal["split", "whole"]


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options of readers; each reader supports some of them."""

    images: Path | None = None
    """Folder of the images; by default the usual folder of the corpus."""
    splits: Path | None = None
    """Folder of lists of image names, one list per split (`train.txt`, ...) and one name per line."""
    lang: str | None = None
    """Language of the sentences."""
    split: str | None = None
    """Split of items without a split in the source; `auto` assigns splits by item id (`assign_split`)."""
    descriptions: DescriptionForm | None = None
    """Form of descriptions of several sentences: `split` into sentences, or `whole`, one sentence with its ';'."""


def assign_split(id: str, options: ReaderOptions) -> str:
    """Split of an item without a split in the source: `options.split`, by default `train`.

    With `auto` the split is a function of the item id, so that it does not change when the collection grows: about
    80 % of the items are in `train`, 10 % in `val` and 10 % in `test`.
    """
    if options.split != "auto":
        return options.split or "train"
    byte = hashlib.sha256(os.fsencode(id)).digest()[0]
    return "train" if byte < 205 else "val" if byte < 231 else "test"


def read_text(path: Path) -> str:
    """Read UTF-8 text, decompressed for `.gz`; CollectionError if it cannot be read, is empty or is not UTF-8."""
    try:
        data = read_bytes(path)
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise CollectionError(
            f"{path}: cannot be read ({system_reason(error)}); expected a text file that can be opened"
        ) from None
    text = decode_utf8(data, CollectionError, partial(SourceLocation, path))
    if not text.strip():
        raise CollectionError(f"{path}: the file is empty; restore it from its source, or remove it")
    return text


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file; see `split_lines`."""
    return split_lines(read_text(path))


def split_lines(text: str) -> list[str]:
    """Lines of a text; only line feeds separate lines, because sentences contain other separators."""
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def open_lines(path: Path, newline: str = "\n") -> Generator[str, None, None]:
    """Read the lines of a text file one by one, decoded as by `read_text`; an empty `newline` is any line end."""
    has_text = False
    try:
        with (
            open_file(path) as file,
            gzip.open(file) if path.suffix == ".gz" else file as data,
            io.TextIOWrapper(cast(BinaryIO, data), encoding="utf-8-sig", newline=newline) as text,
        ):
            for line in text:
                has_text = has_text or bool(line.strip())
                yield line
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        read_text(path)  # raises the error that names the reason or the line
        raise
    if not has_text:
        read_text(path)


def read_json(path: Path) -> Any:  # noqa: ANN401 (any JSON value)
    """Read a JSON file; CollectionError if it is invalid."""
    try:
        return parse_json(read_text(path))
    except StructureError as error:
        where = SourceLocation(path, error.line) if error.line else path
        raise CollectionError(f"{where}: {error}; correct the file") from None


def parse_json_line(line: str, location: SourceLocation) -> Any:  # noqa: ANN401 (any JSON value)
    """Read a line of a file with one JSON value per line; CollectionError if it is invalid."""
    try:
        return parse_json(line)
    except StructureError as error:
        raise CollectionError(f"{location}: {error}; correct the line") from None


def require_field(entry: Any, key: str, kind: type, location: SourceLocation) -> Any:  # noqa: ANN401
    """Return `entry[key]` of a JSON object; CollectionError if it is missing or of another type."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        state = "is missing" if value is None else f"is {value!r}"
        raise CollectionError(f"{location}: '{key}' {state}; expected a value of type '{kind.__name__}'")
    return value


def find_files(source: Path, patterns: Iterable[str], description: str) -> list[Path]:
    """Files by the first pattern with a match, or `source`, if it is a file; CollectionError without a file."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise CollectionError(f"{source}: does not exist; name a folder or a file that exists")
    patterns = tuple(patterns)
    for pattern in patterns:
        if paths := sorted(path for path in source.glob(pattern) if path.is_file()):
            return paths
    raise CollectionError(f"{source}: no {description} found; expected files named {', '.join(patterns)}")


class ImageFolder:
    """Index of the image files below a folder by name; images that no item uses are noted.

    Raises:
        CollectionError: the folder has no images.
    """

    def __init__(self, folder: Path, builder: ItemBuilder) -> None:
        self._paths: dict[str, dict[str, Path]] = {}  # by key, then by path relative to the folder
        self._by_number: dict[str, list[Path]] = {}
        paths, _ = list_media_files(folder, (IMAGE,), "specify the image folder with --images", builder)
        builder.offer_files(paths)
        for path in paths:
            key = image_key(path.name)
            self._paths.setdefault(key, {})[path.relative_to(folder).as_posix()] = path
            if match := FLICKR_NAME.fullmatch(key):
                self._by_number.setdefault(match[1], []).append(path)

    @classmethod
    def from_corpus(cls, source: Path, options: ReaderOptions, builder: ItemBuilder) -> ImageFolder:
        """Index the image folder of a corpus: `options.images`, or a folder of a usual name in the source."""
        root = source if source.is_dir() else source.parent
        candidates = (root / name for name in IMAGE_FOLDERS)
        return cls(options.images or next((folder for folder in candidates if folder.is_dir()), root), builder)

    def find(self, name: str) -> Path | None:
        """Find the image of a relative path, or the only image that a name can denote; CollectionError for several."""
        paths = self._paths.get(image_key(name), {})
        if name in paths:
            return paths[name]
        matches = [path for relative, path in paths.items() if may_be_same_image(relative, name)]
        if len(matches) > 1:
            raise CollectionError(
                f"'{name}' may be {matches[0]} or {matches[1]}; specify the image folder with --images, or rename one"
            )
        return matches[0] if matches else None

    def find_flickr(self, name: str) -> Path | None:
        """Find an image by name or by number on Flickr: `1000268201.jpg` is `1000268201_693b08cb0e.jpg` in Flickr8k."""
        if path := self.find(name):
            return path
        match = FLICKR_NAME.fullmatch(image_key(name))
        paths = self._by_number.get(match[1], []) if match else []
        return paths[0] if len(paths) == 1 else None


def list_media_files(
    folder: Path, modalities: Sequence[Modality], remedy: str, builder: ItemBuilder
) -> tuple[list[Path], list[Path]]:
    """List the files of some modalities below a folder, and all other files, both sorted by path.

    Hidden files and folders, and links to folders, are noted and not read.

    Raises:
        CollectionError: the folder does not exist or has no files of the modalities; ends with the remedy.
    """
    media: list[Path] = []
    others: list[Path] = []
    for path in _visible_files(folder, builder):
        (media if find_modality(path) in modalities else others).append(path)
    if media:
        return media, others
    if not folder.is_dir():
        raise CollectionError(f"{folder}: expected a folder; {remedy}")
    plural = " and no ".join(modality.plural for modality in modalities)
    for available in filter(None, map(find_modality, others)):
        raise CollectionError(
            f"{folder}: no {plural} below this folder, but {available.plural}; choose a reader of {available.plural}"
        )
    suffixes = ", ".join(sorted(suffix for modality in modalities for suffix in modality.suffixes))
    raise CollectionError(f"{folder}: no {plural} below this folder ({suffixes}); {remedy}")


def _visible_files(folder: Path, builder: ItemBuilder) -> Iterator[Path]:
    """Yield the files below a folder in the order of their paths, without hidden files."""
    for parent, folders, names in os.walk(folder):
        hidden = [name for name in folders if name.startswith(HIDDEN_FOLDERS)]
        for name in (*hidden, *(name for name in names if name.startswith("."))):
            builder.tally.note("hidden files and folders, which are not read", os.path.join(parent, name))
        folders[:] = sorted(set(folders) - set(hidden))
        for name in (folder_name for folder_name in folders if os.path.islink(os.path.join(parent, folder_name))):
            builder.tally.note("links to folders, which are not followed", os.path.join(parent, name))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


class SplitEntry(NamedTuple):
    """Line of a list of images of a split."""

    name: str
    split: str
    location: SourceLocation


class SplitLists:
    """Splits of images, from lists with one image name per line.

    Raises:
        CollectionError: there are no lists, a list is empty, or two lists have the same image.
    """

    def __init__(self, lists: dict[str, Path], builder: ItemBuilder) -> None:
        self.entries: dict[str, SplitEntry] = {}
        """Entries by image key, in the order of the lists."""
        for split, path in lists.items():
            for number, line in enumerate(read_lines(path), start=1):
                if name := line.strip():
                    self._add(SplitEntry(name, split, SourceLocation(path, number)), builder)

    @classmethod
    def from_corpus(cls, source: Path, options: ReaderOptions, builder: ItemBuilder) -> SplitLists:
        """Read the lists of a corpus: in `options.splits`, in the folder `splits`, or files named after splits."""
        root = source if source.is_dir() else source.parent
        folder = options.splits or root / "splits"
        if folder.is_dir() or options.splits:
            files = find_files(folder, ["*.txt"], "lists of splits")
            return cls(_order_splits([(_split_of_file(path) or path.stem, path) for path in files]), builder)
        lists = [(split, path) for path in sorted(root.glob("*.txt")) if (split := _split_of_file(path))]
        if not lists:
            raise CollectionError(
                f"{root}: no lists of splits found; write the image names, one per line, to train.txt, val.txt and "
                f"test.txt in {root / 'splits'}, or specify their folder with --splits"
            )
        return cls(_order_splits(lists), builder)

    def split_of(self, key: str) -> str | None:
        """Split of an image key; None if it is in no list."""
        entry = self.entries.get(key)
        return entry.split if entry else None

    def _add(self, entry: SplitEntry, builder: ItemBuilder) -> None:
        before = self.entries.setdefault(builder.key(entry.name, entry.location), entry)
        if before.split != entry.split:
            raise CollectionError(
                f"{entry.location}: '{entry.name}' is in the split '{entry.split}' here and in '{before.split}' in "
                f"{before.location}; remove it from one of the lists"
            )


def _split_of_file(path: Path) -> str | None:
    match = SPLIT_NAME.search(path.stem)
    return SPLIT_ALIASES.get(match[1].lower(), match[1].lower()) if match else None


def _order_splits(lists: list[tuple[str, Path]]) -> dict[str, Path]:
    """Sort lists: train, val, test, then other splits in the given order."""
    ordered: dict[str, Path] = {}
    for split, path in sorted(lists, key=lambda pair: ("train", "val", "test", pair[0]).index(pair[0])):
        if split in ordered:
            raise CollectionError(f"{path}: the split '{split}' has two lists, the other is {ordered[split]}")
        ordered[split] = path
    return ordered
