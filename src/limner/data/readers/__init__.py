"""Readers: one a kind of source, and the import that makes a collection of what they read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from limner.data.collection import Changes, write_items
from limner.data.examples import Item
from limner.data.readers.audio import read_audio
from limner.data.readers.coco import read_coco, read_karpathy
from limner.data.readers.corpus_files import Options
from limner.data.readers.flickr import read_flickr
from limner.data.readers.folder import read_folder
from limner.data.readers.iapr import read_iapr
from limner.data.readers.item_builder import Gathering, Reading
from limner.data.readers.multi30k import read_multi30k
from limner.data.readers.tables import read_csv, read_jsonl
from limner.errors import CollectionError
from limner.media.modality import AUDIO, IMAGE, Modality
from limner.progress import Progress

__all__ = ["READERS", "ImportReport", "Options", "Reader", "Reading", "import_collection", "read"]


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of source, in one line, the function that reads it and the options it takes."""

    about: str
    read: Callable[[Path, Options, Gathering], None]
    takes: frozenset[str]
    modality: Modality = IMAGE
    """Modality of the files that the reader returns as the items' `image`."""


READERS: dict[str, Reader] = {
    "flickr": Reader(
        "Flickr8k, Flickr30k: *.token.txt, lists of splits, pictures",
        read_flickr,
        frozenset({"images", "splits", "lang"}),
    ),
    "multi30k": Reader(
        "Multi30k: train.en.gz, ... or train.1.en.gz, ..., and train.images.txt",
        read_multi30k,
        frozenset({"images", "splits"}),
    ),
    "coco": Reader("COCO: captions_*.json and pictures", read_coco, frozenset({"images", "lang", "split"})),
    "karpathy": Reader("Karpathy's splits: dataset_*.json and pictures", read_karpathy, frozenset({"images", "lang"})),
    "iapr": Reader(
        "IAPR TC-12: annotations_complete_eng/, images/, lists of splits",
        read_iapr,
        frozenset({"images", "splits"}),
    ),
    "jsonl": Reader(
        "one JSON object a sentence: id, split, image, lang, text", read_jsonl, frozenset({"images", "split"})
    ),
    "csv": Reader("one line a sentence: id,split,image,lang,text", read_csv, frozenset({"images", "split"})),
    "folder": Reader("a folder of pictures, sentences in .txt beside them", read_folder, frozenset({"lang", "split"})),
    "audio": Reader(
        "a folder of sounds, sentences in .txt beside them", read_audio, frozenset({"lang", "split"}), AUDIO
    ),
}


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did and what it left out."""

    collection: Path
    items: int
    sentences: int
    changes: Changes
    skipped: Counter[str]
    examples: dict[str, tuple[str, ...]]

    def lines(self) -> list[str]:
        """The report in sentences."""
        changes = self.changes
        first = (
            f"{self.collection}: read {self.items:,} items with {self.sentences:,} sentences "
            f"({changes.added:,} new, {changes.updated:,} updated, {changes.unchanged:,} as they were)"
        )
        return [
            first,
            *(
                f"skipped {count:,} {reason}, for example {'; '.join(self.examples[reason])}"
                for reason, count in self.skipped.most_common()
            ),
        ]


def read(kind: str, source: Path | str, options: Options | None = None, *, strict: bool = False) -> Reading:
    """Read a source without writing anything.

    Args:
        kind: a key of READERS.
        source: folder or file, as the reader wants it.
        options: what the reader cannot know by itself.
        strict: refuse at the first thing that would be skipped.

    Raises:
        CollectionError: the kind is unknown, an option is of no use to it, or the source is missing, damaged,
            inconsistent or empty.
    """
    if kind not in READERS:
        raise CollectionError(f"'{kind}': no such kind of source; there are {', '.join(READERS)}")
    source, options, reader = Path(source), options or Options(), READERS[kind]
    for option in fields(options):
        if getattr(options, option.name) is not None and option.name not in reader.takes:
            takes = ", ".join(sorted(reader.takes))
            raise CollectionError(f"'{kind}' has no use for the option '{option.name}'; it takes {takes}")
    if not source.exists():
        raise CollectionError(f"{source}: does not exist")
    gathering = Gathering(strict)
    reader.read(source, options, gathering)
    reading = gathering.reading()
    if not reading.items:
        reasons = "; ".join(f"{count} {reason}" for reason, count in reading.skipped.items()) or "it is empty"
        raise CollectionError(f"{source}: nothing to import as '{kind}' ({reasons})")
    if reader.modality == IMAGE:
        return reading
    items = [replace(item, image=None).with_media(reader.modality, item.image) for item in reading.items]
    return replace(reading, items=items)


def import_collection(
    kind: str,
    source: Path | str,
    target: Path | str,
    options: Options | None = None,
    *,
    strict: bool = False,
    copy: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Read a source into a collection: a new one, or one that gains what it lacks. Again changes nothing.

    Args:
        kind: a key of READERS.
        source: folder or file, as the reader wants it.
        target: the collection's folder.
        options: what the reader cannot know by itself.
        strict: refuse at the first thing that would be skipped.
        copy: copy the pictures or sounds into the collection, instead of referring to where they are.
        progress: called with (copied, total) pictures or sounds.

    Raises:
        CollectionError: see `read` and `write_items`; the collection is then as it was.
    """
    target = Path(target)
    reading = read(kind, source, options, strict=strict)
    items, copies = (_copied if copy else _referred)(reading.items, target)
    changes = write_items(target, items, files=copies, on_progress=progress)
    sentences = sum(len(item.sentences) for item in items)
    return ImportReport(target, len(items), sentences, changes, reading.skipped, reading.examples)


def _referred(items: list[Item], target: Path) -> tuple[list[Item], dict[str, Path]]:
    """ImageFolder and sounds by their path relative to the collection, through links resolved so that '..' leads home."""
    home = os.path.realpath(target)
    folders: dict[str, str] = {}
    moved = []
    for item in items:
        if item.media_path is not None:
            folder, name = os.path.split(item.media_path)
            if folder not in folders:
                folders[folder] = Path(os.path.relpath(os.path.realpath(folder), home)).as_posix()
            item = _moved(item, f"{folders[folder]}/{name}")
        moved.append(item)
    return moved, {}


def _copied(items: list[Item], target: Path) -> tuple[list[Item], dict[str, Path]]:
    """By their path in `images/` or `sounds/`, where they keep the folders they have below their common one."""
    files = [os.path.abspath(item.media_path) for item in items if item.media_path is not None]
    root = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
    copies: dict[str, Path] = {}
    moved = []
    for item in items:
        if item.media_path is not None and item.modality is not None:
            place = Path(item.modality.folder, os.path.relpath(item.media_path, root)).as_posix()
            copies[place] = Path(item.media_path)
            item = _moved(item, place)
        moved.append(item)
    return moved, copies


def _moved(item: Item, place: str) -> Item:
    return item if item.modality is None else item.with_media(item.modality, place)
