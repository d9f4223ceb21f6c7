"""Merging new items into those of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from limner.data.examples import Item, Sentence
from limner.errors import CollectionError


class Changes(NamedTuple):
    """Numbers of items changed by a write."""

    added: int
    """Number of new items."""
    updated: int
    """Number of existing items whose contents changed."""
    unchanged: int
    """Number of existing items whose contents stayed the same."""


def normalised(item: Item) -> Item:
    """Remove the repetitions of sentences and regions of an item."""
    return merge(item, item)


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


def _merge_sentences(sentences: Sequence[Sentence]) -> tuple[Sentence, ...]:
    human = {sentence[:3] for sentence in sentences if not sentence.generated_by}
    merged: dict[tuple[object, ...], Sentence] = {}
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
