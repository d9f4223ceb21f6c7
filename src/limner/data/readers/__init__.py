"""Readers of published corpora and of plain files, and the import of their items into a collection."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from limner.data.collection import ITEMS, Collection
from limner.data.collection_writer import CollectionWriter
from limner.data.examples import Item
from limner.data.items_table import Changes
from limner.data.readers.arrow_tables import Rows, read_datasets, read_parquet
from limner.data.readers.coco import read_coco, read_karpathy, read_visual_genome
from limner.data.readers.corpus_files import ReaderOptions
from limner.data.readers.flickr import read_flickr, read_flickr30k_entities, read_multi30k
from limner.data.readers.folder import read_iapr, read_imdb, read_media_folder, read_rt_polarity
from limner.data.readers.item_builder import READ_BUDGET, ItemBuilder, ReaderResult
from limner.data.readers.tables import read_csv, read_jsonl
from limner.data.readers.webdataset import read_webdataset
from limner.data.tally import Tally
from limner.errors import CollectionError, counted, did_you_mean
from limner.media.modality import AUDIO, IMAGE, VIDEO, Modality, find_modality
from limner.progress import Progress
from limner.storage.outputs import require_name
from limner.storage.places import is_remote, place

__all__ = ["READERS", "ImportReport", "Reader", "ReaderOptions", "ReaderResult", "import_collection", "read_source"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader of one kind of source."""

    description: str
    """Files of the source, in one line."""
    read: Callable[[Any, ReaderOptions, ItemBuilder], None]
    """Function that adds the items of a source to a builder in their order; CollectionError if a file is
    missing or malformed."""
    options: str
    """Names of the supported fields of `ReaderOptions`, separated by spaces."""
    streams: bool = False
    """Whether the entries of an item follow each other in the source, so that it can be read in any number of parts."""
    modality: Modality = IMAGE
    """Modality of the files that the function passes as `image`; of a reader of images, videos are recognised by their
    suffix."""


READERS: dict[str, Reader] = {
    "flickr": Reader("Flickr8k, Flickr30k: *.token.txt, lists of splits, images", read_flickr, "images splits lang"),
    "multi30k": Reader(
        "Multi30k: train.en.gz, ... or train.1.en.gz, ..., and train.images.txt", read_multi30k, "images splits"
    ),
    "coco": Reader("COCO: captions_*.json and images", read_coco, "images lang split"),
    "karpathy": Reader("Karpathy splits: dataset_*.json and images", read_karpathy, "images lang"),
    "iapr": Reader(
        "IAPR TC-12: annotations_complete_eng/, images/, lists of splits", read_iapr, "images splits descriptions"
    ),
    "visual-genome": Reader(
        "Visual Genome: region_descriptions.json, optionally image_data.json, and images",
        read_visual_genome,
        "images splits split",
    ),
    "flickr30k-entities": Reader(
        "Flickr30k Entities: Annotations/*.xml and Sentences/*.txt, or one file *.jsonl, and images",
        read_flickr30k_entities,
        "images splits split",
    ),
    "jsonl": Reader(
        "one JSON object per sentence: id, split, image, lang, text, or text, label",
        read_jsonl,
        "images split lang",
        streams=True,
    ),
    "csv": Reader(
        "one row per sentence: id,split,image,lang,text, or text,label", read_csv, "images split lang", streams=True
    ),
    "webdataset": Reader(
        "WebDataset shards: *.tar with KEY.jpg and KEY.txt or KEY.json, as img2dataset writes them",
        read_webdataset,
        "split lang",
        streams=True,
    ),
    "parquet": Reader(
        "Parquet: columns image (a path or bytes) and text or caption, one row an item",
        read_parquet,
        "images split lang",
        streams=True,
    ),
    "datasets": Reader(
        "Hugging Face datasets: a folder that save_to_disk wrote, with the columns of Parquet",
        read_datasets,
        "images split lang",
        streams=True,
    ),
    "folder": Reader(
        "folder of images or videos, sentences in .txt files of the same names",
        partial(read_media_folder, modalities=(IMAGE, VIDEO)),
        "lang split",
    ),
    "audio": Reader(
        "folder of audio files, sentences in .txt files of the same names",
        partial(read_media_folder, modalities=(AUDIO,)),
        "lang split",
        modality=AUDIO,
    ),
    "imdb": Reader("labelled texts: SPLIT/LABEL/*.txt or LABEL/*.txt", read_imdb, "lang split"),
    "rt-polarity": Reader("labelled texts, one a line: NAME.LABEL, as rt-polarity.pos", read_rt_polarity, "lang split"),
}
"""Readers by kind of source."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Result of an import."""

    collection: Path
    """Folder of the collection."""
    items: int
    """Number of items read."""
    sentences: int
    """Number of sentences read."""
    regions: int
    """Number of regions read."""
    phrases: int
    """Number of phrases read."""
    changes: Changes
    """Numbers of items added, updated and unchanged."""
    tally: Tally
    """Counts of skipped entries, and of oddities of the source and of the collection."""

    def lines(self) -> list[str]:
        """Lines of text that summarise the import."""
        changes = self.changes
        regions, phrases = counted(self.regions, "region"), counted(self.phrases, "phrase")
        annotations = f", {regions}, {phrases}" if self.regions or self.phrases else ""
        summary = (
            f"{self.collection}: read {counted(self.items, 'item')} with {counted(self.sentences, 'sentence')}"
            f"{annotations} ({changes.added:,} new, {changes.updated:,} updated, {changes.unchanged:,} unchanged)"
        )
        return [summary, *self.tally.lines()]


def read_source(
    kind: str, source: Path | str, options: ReaderOptions | None = None, *, strict: bool = False
) -> ReaderResult:
    """Read the items of a source of a kind in `READERS`.

    Raises:
        CollectionError: the kind is unknown, an option is not supported, or the source is missing, damaged,
            inconsistent or empty; or `strict`, and an entry would be skipped.
    """
    builder = ItemBuilder(strict)
    reader, source = _read(kind, source, options, builder)
    result = builder.result()
    _require_items(result.items, kind, source, result.tally)
    return replace(result, items=[_with_modality(item, reader.modality) for item in result.items])


def _read(kind: str, source: Any, options: ReaderOptions | None, builder: ItemBuilder) -> tuple[Reader, Any]:  # noqa: ANN401
    """Check the arguments of `read_source` and read the source into a builder."""
    if kind not in READERS:
        raise CollectionError(
            f"'{kind}': unknown kind of source; expected one of {', '.join(READERS)}{did_you_mean(kind, READERS)}"
        )
    options, reader = options or ReaderOptions(), READERS[kind]
    for option in fields(options):
        if getattr(options, option.name) is not None and option.name not in (
            supported := sorted(reader.options.split())
        ):
            raise CollectionError(
                f"'{kind}' does not support the option '{option.name}'; it supports {', '.join(supported)}; leave "
                "it out"
            )
    for what, name in (("language", options.lang), ("split", options.split)):
        if name is not None:
            require_name(name, what, CollectionError)
    if options.splits is not None and options.split is not None:
        raise CollectionError(f"split '{options.split}': has no effect with lists of splits ({options.splits})")
    for folder in (options.images, options.splits):
        if folder is not None and not folder.is_dir():
            raise CollectionError(f"{folder}: no such folder; name a folder that exists")
    source = Path(source) if isinstance(source, str) else source
    if kind != "datasets" and not isinstance(source, Path):
        raise CollectionError(f"'{kind}': expected a folder or a file; a list of dicts is of the kind 'datasets'")
    if isinstance(source, Path) and not source.exists():
        raise CollectionError(f"{source}: does not exist; name a folder or a file that exists")
    reader.read(source, options, builder)
    return reader, source


def _require_items(items: list[Item], kind: str, source: Path | str, tally: Tally) -> None:
    """Raise CollectionError if no items are left, with the reasons."""
    if not items:
        reasons = "; ".join(f"{count} {reason}" for reason, count in tally.skipped.items()) or "it is empty"
        raise CollectionError(f"{source}: no items to import as '{kind}' ({reasons}); correct the source")


def _with_modality(item: Item, modality: Modality) -> Item:
    """Move the path of an item that a reader passed as `image` to the field of its modality."""
    if modality is IMAGE and item.image is not None and find_modality(item.image) is VIDEO:
        modality = VIDEO
    return item if modality is IMAGE else replace(item, image=None).with_media(modality, item.image)


def import_collection(
    kind: str,
    source: Path | str | Rows,
    target: Path | str,
    options: ReaderOptions | None = None,
    *,
    strict: bool = False,
    copy: bool = False,
    budget: int = READ_BUDGET,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import a source into a new or an existing collection; repeating an import changes nothing.

    Args:
        kind: key of `READERS`.
        source: folder or file; of the kind 'datasets' also a list of dicts, a `datasets.Dataset`, or either by split,
            with the columns of `read_parquet`: image, text, id, split, lang, label.
        target: folder of the collection.
        options: options of the reader.
        strict: whether an entry that would be skipped raises an error.
        copy: whether media files are copied into the collection instead of being referenced.
        budget: memory in bytes of the items that are held while a source is read whose reader `streams`.
        on_progress: called with the numbers of copied files and of all files.

    Raises:
        CollectionError: see `read_source` and `write_items`; the collection is unchanged.
    """
    importer = _Importer(kind, source, place(target), copy=copy, strict=strict)
    with CollectionWriter(importer.target) as writer:
        importer.read(options or ReaderOptions(), writer, budget)
        changes = writer.finish(importer.files, on_progress)
    tally = importer.tally
    for name, count in Collection.open(target).splits().items():
        tally.note_few(name, count, "items")
    return ImportReport(importer.target, **importer.counts, changes=changes, tally=tally)


class _Importer:
    """Reads a source in parts and adds them to a collection."""

    def __init__(self, kind: str, source: Path | str | Rows, target: Path, *, copy: bool, strict: bool) -> None:
        self.kind, self.rows, self.target, self.copy, self.strict = kind, source, target, copy, strict
        self.source = Path(source) if isinstance(source, Path | str) else Path("rows")
        self.files: dict[str, Path] = {}
        self.counts: Counter[str] = Counter()
        self.tally = Tally()

    def read(self, options: ReaderOptions, writer: CollectionWriter, budget: int) -> None:
        """Read the source; its items are passed to the writer in parts if the reader permits it."""

        def add(items: list[Item]) -> None:
            self._add([_with_modality(item, READERS[self.kind].modality) for item in items], writer)

        # The folder that all files have in common is known when all are read.
        streams = self.kind in READERS and READERS[self.kind].streams and not self.copy
        builder = ItemBuilder(self.strict, add if streams else None, budget)
        builder.store, self.written = writer.write_file, builder.written
        self.tally = builder.tally
        _read(self.kind, self.rows, options, builder)
        rest = builder.result().items
        if not builder.passed:
            _require_items(rest, self.kind, self.source, self.tally)
        if self.copy and not any(item.image for item in rest):
            raise CollectionError(f"{self.source}: has no files to copy; leave out --copy")
        add(rest)
        if not self.counts["items"]:
            _require_items([], self.kind, self.source, self.tally)

    def _add(self, items: list[Item], writer: CollectionWriter) -> None:
        held = [item for item in items if item.image is not None and item.image in self.written]
        new = [item for item in items if item.image is None or item.image not in self.written]
        new = without_own_files(new, self.source, self.target, self.tally)
        if self.copy:
            items, self.files = with_copied_files(new, self.tally, strict=self.strict)
        else:
            if is_remote(self.target) and (file := next((item.media_path for item in new if item.media_path), None)):
                raise CollectionError(
                    f"{self.target}: cannot refer to '{file}' of this machine; add --copy, which copies the files"
                )
            items = new if is_remote(self.target) else with_relative_paths(new, self.target)
        items = [*held, *items]
        sentences = [sentence for item in items for sentence in item.sentences]
        self.counts["items"] += len(items)
        self.counts["sentences"] += len(sentences)
        self.counts["regions"] += sum(len(item.regions) for item in items)
        self.counts["phrases"] += sum(len(sentence.phrases) for sentence in sentences)
        writer.add(items)


NO_MEDIA = "items whose file is no image, video or audio file, which is not copied"
FILES_OF_ITEMS = "files that belong to an item of the collection already"


def without_own_files(items: list[Item], source: Path, target: Path, tally: Tally) -> list[Item]:
    """Leave out files of the collection itself, which a reader finds where one of the two folders contains the other.

    Otherwise each import of a folder into itself would add the copies of the previous import.
    """
    if is_remote(target):
        return items
    real_source, real_target = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath([real_source, real_target]) not in (real_source, real_target):
        return items
    if not (target / ITEMS).is_dir():
        return items
    owners: dict[str, set[str]] = {}
    for known in Collection.open(target).items():
        if known.media_path is not None:
            owners.setdefault(os.path.realpath(target / known.media_path), set()).add(known.id)
    kept = []
    for item in items:
        item_ids = owners.get(os.path.realpath(item.media_path)) if item.media_path else None
        if item_ids and item.id not in item_ids:
            tally.skip(FILES_OF_ITEMS, item.id)
        else:
            kept.append(item)
    return kept


def with_relative_paths(items: list[Item], target: Path) -> list[Item]:
    """Replace media paths by paths relative to the collection, with links resolved so that '..' is correct."""
    root = os.path.realpath(target)
    relative_folders: dict[str, str] = {}
    result = []
    for item in items:
        if item.media_path is not None:
            folder, name = os.path.split(item.media_path)
            if folder not in relative_folders:
                relative_folders[folder] = Path(os.path.relpath(os.path.realpath(folder), root)).as_posix()
            item = _with_path(item, f"{relative_folders[folder]}/{name}")
        result.append(item)
    return result


def with_copied_files(items: list[Item], tally: Tally, *, strict: bool) -> tuple[list[Item], dict[str, Path]]:
    """Replace media paths by paths of copies in the collection; return the files to copy by these paths as well.

    Copies keep their folders below the common folder of all files. Items whose file is of no modality are skipped: a
    source may name any file of the machine.

    Raises:
        CollectionError: `strict`, and a file is of no modality.
    """
    kept = []
    for item in items:
        modality = item.modality
        if item.media_path is None or modality is None or modality.is_in(Path(item.media_path)):
            kept.append(item)
        elif strict:
            raise CollectionError(
                f"{item.media_path}: begins like no {modality.noun}, so it is not copied; correct the source, or leave "
                "--strict out to skip it"
            )
        else:
            tally.skip(NO_MEDIA, str(item.media_path))
    paths = [os.path.abspath(item.media_path) for item in kept if item.media_path is not None]
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    files: dict[str, Path] = {}
    result = []
    for item in kept:
        if item.media_path is not None and item.modality is not None:
            name = Path(item.modality.folder, os.path.relpath(item.media_path, root)).as_posix()
            files[name] = Path(item.media_path)
            item = _with_path(item, name)
        result.append(item)
    return result, files


def _with_path(item: Item, path: str) -> Item:
    return item if item.modality is None else item.with_media(item.modality, path)
