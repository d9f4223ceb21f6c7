"""The items of a collection as rows of a Lance table, and the merging of new items into stored items."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from limner.data.examples import Item, ItemSentence, Phrase, Region
from limner.errors import CollectionError
from limner.storage.hashes import CHECKSUM, checksum

_TYPES = pa.list_(pa.string())
_PHRASE = pa.struct({"first": pa.int32(), "text": pa.string(), "entity": pa.string(), "types": _TYPES})
_SENTENCE = pa.struct(
    {
        "lang": pa.string(),
        "text": pa.string(),
        "group": pa.int32(),
        "generated_by": pa.string(),
        "phrases": pa.list_(_PHRASE),
    }
)
_REGION = pa.struct({"box": pa.list_(pa.float32(), 4), "text": pa.string(), "entity": pa.string(), "types": _TYPES})
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
        pa.field("track", pa.list_(pa.list_(pa.float32(), 4))),
        pa.field("frame_size", pa.list_(pa.int32())),
        pa.field("frame_labels", pa.list_(pa.string())),
    ]
)
"""Columns of the items table."""
STORED_SCHEMA = SCHEMA.append(pa.field(CHECKSUM, pa.uint64()))
"""Columns of the items table with the checksum of each row."""
SPLITS_KEY = b"limner.splits"
"""Entry of the table's metadata with the number of items of each split, as JSON."""


WRITER_KEY = b"limner.writer"
"""Entry of the table's metadata with the process that wrote the version, in an object store."""


def stored_batch(items: list[Item]) -> Any:  # noqa: ANN401
    """Convert items to a batch of the stored table; CollectionError for impossible file names, boxes or sentences."""
    rows = [
        {
            **{name: getattr(item, name) for name in SCHEMA.names},
            "sentences": [
                {**sentence._asdict(), "phrases": [phrase._asdict() for phrase in sentence.phrases]}
                for sentence in item.sentences
            ],
            "regions": [region._asdict() for region in item.regions],
        }
        for item in items
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    stored = batch.to_pylist()
    for row in stored:
        _require_possible(row)
    checksums = pa.array([row_checksum(row) for row in stored], pa.uint64())
    return pa.RecordBatch.from_arrays([*batch.columns, checksums], schema=STORED_SCHEMA)


def row_checksum(row: dict[str, Any]) -> int:
    """Compute the checksum of the stored columns of an item, by name."""
    return checksum(json.dumps(row, check_circular=False).encode())


def item_of_row(row: dict[str, Any]) -> Item:
    """Convert a row, or some of its columns with the id and the split, to an item.

    Raises:
        CollectionError: a file name, a box or a sentence is impossible, as in a damaged row without a checksum.
    """
    _require_possible(row)
    return Item(
        id=row["id"],
        split=row["split"],
        image=row.get("image"),
        video=row.get("video"),
        audio=row.get("audio"),
        sentences=tuple([_sentence_of_row(s) for s in row.get("sentences") or ()]),
        regions=tuple([_region_of_row(region) for region in row.get("regions") or ()]),
        label=row.get("label"),
        track=tuple([tuple(box) for box in row.get("track") or ()]),
        frame_size=tuple(row.get("frame_size") or ()) or None,
        frame_labels=tuple(row.get("frame_labels") or ()),
    )


def _require_possible(row: dict[str, Any]) -> None:
    """Raise CollectionError if a row has a file name, a box or a sentence that no item can have."""
    if any(None in (sentence["lang"], sentence["text"]) for sentence in row.get("sentences") or ()):
        raise CollectionError(
            f"item '{row['id']}': expected sentences with a language and a text; correct the source, import it again"
        )
    names = [row.get("image"), row.get("video"), row.get("audio")]
    boxes = [*(region["box"] for region in row.get("regions") or ()), *(row.get("track") or ())]
    if any(name and "\0" in name for name in names) or not all(map(math.isfinite, chain.from_iterable(boxes))):
        raise CollectionError(
            f"item '{row['id']}': expected names of files without the character NUL, and boxes of finite numbers; "
            "correct the source, and import it again"
        )


def _sentence_of_row(row: dict[str, Any]) -> ItemSentence:
    phrases = tuple([Phrase(p["first"], p["text"], p["entity"], tuple(p["types"])) for p in row["phrases"] or ()])
    return ItemSentence(row["lang"], row["text"], row["group"], row.get("generated_by") or "", phrases)


def _region_of_row(row: dict[str, Any]) -> Region:
    return Region(tuple(row["box"]), row["text"], row.get("entity") or "", tuple(row.get("types") or ()))


class Changes(NamedTuple):
    """Numbers of items changed by a write."""

    added: int
    """Number of new items."""
    updated: int
    """Number of existing items whose contents changed."""
    unchanged: int
    """Number of existing items whose contents stayed the same."""


def merge_all(old: Item | None, new: Iterable[Item]) -> Item:
    """Merge versions of one item in their order; see `merge`."""
    versions = iter(new)
    return reduce(merge, versions, next(versions) if old is None else old)


def merge(old: Item, new: Item) -> Item:
    """Merge two versions of an item; `new` may change folders of files and fill empty fields only.

    Raises:
        CollectionError: the split, the label or a file name differs.
    """
    for name, old_value, new_value in (
        ("split", old.split, new.split),
        ("label", old.label, new.label),
        ("frame_labels", old.frame_labels or None, new.frame_labels or None),
        ("image", file_name(old.image), file_name(new.image)),
        ("video", file_name(old.video), file_name(new.video)),
        ("audio file", file_name(old.audio), file_name(new.audio)),
    ):
        if old_value != new_value and old_value is not None and new_value is not None:
            hint = " (repeat --split auto if it was used before)" if name == "split" else ""
            raise CollectionError(
                f"item '{old.id}': its {name} is '{old_value}' in the collection and '{new_value}' in the new items; "
                f"write to another collection, or correct the source{hint}"
            )
    return replace(
        old,
        image=new.image or old.image,
        video=new.video or old.video,
        audio=new.audio or old.audio,
        label=old.label if new.label is None else new.label,
        track=new.track or old.track,
        frame_size=new.frame_size or old.frame_size,
        frame_labels=new.frame_labels or old.frame_labels,
        sentences=_merge_sentences(old.sentences + new.sentences),
        regions=tuple(dict.fromkeys(old.regions + new.regions)),
    )


def _merge_sentences(sentences: Sequence[ItemSentence]) -> tuple[ItemSentence, ...]:
    human = {sentence[:3] for sentence in sentences if not sentence.generated_by}
    merged: dict[tuple[object, ...], ItemSentence] = {}
    for sentence in sentences:
        if sentence.generated_by and sentence[:3] in human:
            continue
        known = merged.setdefault(sentence[:4], sentence)
        if sentence.phrases != known.phrases:
            phrases = sorted(dict.fromkeys(known.phrases + sentence.phrases), key=lambda phrase: phrase.first)
            merged[sentence[:4]] = known._replace(phrases=tuple(phrases))
    return tuple(merged.values())


def file_name(path: str | None) -> str | None:
    """Return the last part of a stored path, which uses slashes on every system."""
    return None if path is None else path.rpartition("/")[2]
