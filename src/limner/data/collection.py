"""Collections: a folder with an `items` table in Lance, and feature tables beside it.

Whatever is written appears whole or not at all: a new collection is built in a temporary folder beside its
place and renamed, an existing one changes by one commit of Lance. A write that was killed leaves at most its
temporary folder, which the next write removes.
"""

from __future__ import annotations

import filecmp
import glob
import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import lance
import pyarrow as pa

from limner.data.examples import Item, Region, Sentence
from limner.errors import CollectionError
from limner.files import locked

logger = logging.getLogger(__name__)

ITEMS = "items.lance"
FEATURES = "features"
_SENTENCE = pa.struct({"lang": pa.string(), "text": pa.string(), "group": pa.int32(), "generated_by": pa.string()})
_REGION = pa.struct({"box": pa.list_(pa.float32(), 4), "text": pa.string()})
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("image", pa.string()),
        pa.field("video", pa.string()),
        pa.field("audio", pa.string()),
        pa.field("sentences", pa.list_(_SENTENCE)),
        pa.field("regions", pa.list_(_REGION)),
        pa.field("label", pa.string()),
    ]
)
LATER = {"audio"}
"""Columns that collections made before there were any do not have."""
_LANCE_ERRORS = (OSError, ValueError, RuntimeError)  # what Lance and Arrow raise for files they cannot handle

Progress = Callable[[int, int], None]


class Changes(NamedTuple):
    """What a write did to the items."""

    added: int
    updated: int
    unchanged: int


class Collection:
    """The collection as it was when it was opened: a later write does not change what is read here.

    Lance must not be used in a forked process; read in a thread, or start processes by 'spawn'.
    """

    def __init__(self, path: Path, dataset: Any) -> None:  # noqa: ANN401 (Lance has no types)
        self.path = path
        self._dataset = dataset

    @classmethod
    def open(cls, path: Path | str) -> Collection:
        """Open the collection at `path`.

        Raises:
            CollectionError: there is none, or its items table is damaged.
        """
        path = Path(path)
        if not (path / ITEMS).is_dir():
            state = "is not a collection (it has no items.lance)" if path.exists() else "does not exist"
            raise CollectionError(f"{path}: this folder {state}; 'limner import' makes a collection")
        try:
            dataset = lance.dataset(str(path / ITEMS))
        except _LANCE_ERRORS as error:
            raise _damaged(path, error) from None
        if absent := set(SCHEMA.names) - set(dataset.schema.names) - LATER:
            raise CollectionError(f"{path / ITEMS}: no column '{min(absent)}'; remove it and import the source again")
        return cls(path, dataset)

    def __len__(self) -> int:
        return int(self._dataset.count_rows())

    def items(self, split: str | None = None) -> list[Item]:
        """The items of one split, or all of them, in stored order.

        Raises:
            CollectionError: the split has no items, or the table is damaged.
        """
        wanted = None if split is None else "split = '" + split.replace("'", "''") + "'"
        rows = self._read([name for name in SCHEMA.names if name in self._dataset.schema.names], wanted).to_pylist()
        if split is not None and not rows:
            there = ", ".join(f"'{name}' ({count})" for name, count in self.splits().items())
            raise CollectionError(
                f"{self.path}: no items in split '{split}'; the splits are {there}: name one of "
                "them (in a recipe data.train, data.val, data.test), or import with --split auto, which deals items "
                "out to train, val and test"
            )
        return [_item(row) for row in rows]

    def splits(self) -> dict[str, int]:
        """How many items each split has, in stored order."""
        return dict(Counter(self._read(["split"])["split"].to_pylist()))

    def image_path(self, item: Item) -> Path:
        return self._member(item, item.image, "picture")

    def absolute_image_path(self, item: Item) -> str | None:
        """Absolute path of an item's picture as text, for records; None where it has none."""
        return None if item.image is None else str(self.image_path(item).resolve())

    def video_path(self, item: Item) -> Path:
        return self._member(item, item.video, "video")

    def media_file(self, item: Item) -> Path:
        """Where the picture or the sound is that features are made of."""
        return self._member(item, item.medium, "picture and no sound")

    def features(self) -> tuple[str, ...]:
        """Names of the feature tables there are."""
        return tuple(sorted(table.stem for table in (self.path / FEATURES).glob("*.lance")))

    def fingerprint(self) -> str:
        """SHA-256 over the items' contents in stored order.

        Of pictures and videos only the file names count: one source has one fingerprint, wherever it lies.
        """
        digest = hashlib.sha256()
        for item in self.items():
            contents = (
                item.split,
                _name(item.image),
                _name(item.video),
                [sentence if sentence.generated_by else sentence[:3] for sentence in item.sentences],
                item.regions,
                item.label,
                *([_name(item.audio)] if item.audio else []),
            )
            digest.update(json.dumps((item.id, *contents)).encode())
        return digest.hexdigest()

    def _member(self, item: Item, name: str | None, kind: str) -> Path:
        if name is None:
            raise CollectionError(f"{self.path}: item '{item.id}' has no {kind}")
        return self.path / name

    def _read(self, columns: list[str], wanted: str | None = None) -> Any:  # noqa: ANN401
        try:
            return self._dataset.to_table(columns=columns, filter=wanted)
        except _LANCE_ERRORS as error:
            raise _damaged(self.path, error) from None


def write_items(
    path: Path | str,
    items: Iterable[Item],
    *,
    pictures: Mapping[str, Path] | None = None,
    progress: Progress | None = None,
) -> Changes:
    """Add items to a collection, atomically; an item that is there already gets the sentences it lacks.

    Sentences unite by (language, text, group), regions by (box, text). What is not new is not written; what a model
    made gives way to the same sentence by people.

    Args:
        path: the collection's folder; made when missing.
        items: what to add.
        pictures: files to copy into the collection first, by the path they get within it.
        progress: called with (copied, total) pictures.

    Raises:
        CollectionError: an id is there with another split, label or picture; another process is writing; the
            disk refuses. The collection is then as it was.
    """
    path = Path(os.path.abspath(path))
    wanted = list(items)
    if not wanted:
        raise CollectionError(f"{path}: there are no items to write")
    copies = pictures or {}
    with _explained(path):
        if path.is_dir():
            with locked(path, CollectionError):
                return _write_into(path, wanted, copies, progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as folder:
            _copy_pictures(copies, folder, folder, progress)
            united, changes = _unite_all([], wanted)
            _store(united, folder / ITEMS, "create")
            os.rename(folder, path)
    return changes


def _write_into(path: Path, items: list[Item], pictures: Mapping[str, Path], progress: Progress | None) -> Changes:
    exists = (path / ITEMS).is_dir()
    for left in (path / ITEMS).glob("**/.tmp*"):  # of a write of Lance that was killed; we hold the lock
        left.unlink(missing_ok=True)
    united, changes = _unite_all(Collection.open(path).items() if exists else [], items)
    with _temporary(path / "pictures") as folder:
        _copy_pictures(pictures, folder, path, progress)
    if not exists:
        with _temporary(path / ITEMS) as table:
            _store(united, table, "create")
            os.rename(table, path / ITEMS)
    elif changes.added or changes.updated:
        _store(united, path / ITEMS, "overwrite")
    return changes


def _unite_all(old: list[Item], new: list[Item]) -> tuple[list[Item], Changes]:
    known = {item.id: item for item in old}
    before = dict(known)
    for row in _table(new).to_pylist():  # by way of Arrow: boxes are compared as they are stored
        item = _item(row)
        known[item.id] = _unite(known.get(item.id, item), item)
    added = len(known) - len(before)
    touched = {item.id for item in new} & before.keys()
    updated = sum(known[key] != before[key] for key in touched)
    return list(known.values()), Changes(added, updated, len(touched) - updated)


def _unite(old: Item, new: Item) -> Item:
    """`new` may move picture and video to another folder and fill what was empty, but contradict nothing."""
    told = ("split", old.split, new.split), ("label", old.label, new.label)
    files = ("picture", old.image, new.image), ("video", old.video, new.video), ("sound", old.audio, new.audio)
    for what, ours, theirs in (*told, *((what, _name(ours), _name(theirs)) for what, ours, theirs in files)):
        if ours != theirs and ours is not None and theirs is not None:
            again = " (give --split auto again if it was given before)" if what == "split" else ""
            raise CollectionError(
                f"item '{old.id}': its {what} is '{ours}' in the collection and '{theirs}' in what is "
                f"being added; use another collection, or mend the source{again}"
            )
    return replace(
        old,
        image=new.image or old.image,
        video=new.video or old.video,
        audio=new.audio or old.audio,
        label=old.label if new.label is None else new.label,
        sentences=_unite_sentences(old.sentences + new.sentences),
        regions=tuple(dict.fromkeys(old.regions + new.regions)),
    )


def _unite_sentences(sentences: Sequence[Sentence]) -> tuple[Sentence, ...]:
    written = {sentence[:3] for sentence in sentences if not sentence.generated_by}
    return tuple(dict.fromkeys(one for one in sentences if not one.generated_by or one[:3] not in written))


def _item(row: dict[str, Any]) -> Item:
    return Item(
        id=row["id"],
        split=row["split"],
        image=row["image"],
        video=row["video"],
        audio=row.get("audio"),
        sentences=tuple([_sentence(s) for s in row["sentences"] or ()]),
        regions=tuple([Region(tuple(r["box"]), r["text"]) for r in row["regions"] or ()]),
        label=row["label"],
    )


def _sentence(row: dict[str, Any]) -> Sentence:
    return Sentence(row["lang"], row["text"], row["group"], row.get("generated_by") or "")


def _table(items: list[Item]) -> Any:  # noqa: ANN401
    return pa.Table.from_pylist(
        [
            {
                "id": item.id,
                "split": item.split,
                "image": item.image,
                "video": item.video,
                "audio": item.audio,
                "sentences": [sentence._asdict() for sentence in item.sentences],
                "regions": [region._asdict() for region in item.regions],
                "label": item.label,
            }
            for item in items
        ],
        schema=SCHEMA,
    )


def _store(items: list[Item], table: Path, mode: str) -> None:
    lance.write_dataset(_table(items), str(table), mode=mode)


def _copy_pictures(pictures: Mapping[str, Path], stage: Path, target: Path, progress: Progress | None) -> None:
    """Copy into `stage`, then rename each picture to its place in `target`; what is there already stays."""
    for done, (name, source) in enumerate(pictures.items(), start=1):
        place = target / name
        if not place.exists():
            copy = stage / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(copy, place)
        elif not filecmp.cmp(source, place):
            raise CollectionError(f"{place}: another picture than {source} is there; import without copying")
        if progress:
            progress(done, len(pictures))


@contextmanager
def _temporary(place: Path) -> Iterator[Path]:
    """A hidden folder beside `place`, to be renamed to it; removed if it still exists at the end.

    Its owner holds a lock on it, so what a killed process left behind is told from what is being written.
    """
    prefix = f".{place.name}.partial-"
    for left in place.parent.glob(f"{glob.escape(prefix)}*"):
        try:
            with locked(left, CollectionError):
                logger.info("%s: removing what an interrupted write left", left)
                shutil.rmtree(left)
        except (CollectionError, FileNotFoundError):
            continue  # somebody else is writing there, or has just cleaned up
    folder = place.parent / f"{prefix}{uuid4().hex[:8]}"
    folder.mkdir()
    try:
        with locked(folder, CollectionError):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except _LANCE_ERRORS as error:
        raise CollectionError(f"{path}: cannot be written, and is as it was: {error}") from error


def _damaged(path: Path, error: Exception) -> CollectionError:
    reason = str(error).splitlines()[0]
    return CollectionError(f"{path / ITEMS}: damaged; remove it and import the source again ({reason})")


def _name(path: str | None) -> str | None:
    return None if path is None else path.rpartition("/")[2]
