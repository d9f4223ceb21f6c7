"""What all readers share: items gathered line by line, with every contradiction and every omission told."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from limner.data.examples import Item, Sentence
from limner.data.readers.image_names import key_of, may_be_one
from limner.errors import CollectionError

EXAMPLES_NAMED = 3


class SourceLocation(NamedTuple):
    """Where something was read: a file and a line of it, or an entry of a JSON file."""

    path: Path
    spot: int | str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.spot}" if self.spot else str(self.path)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader found: items whose `image` is still the path of the picture's file."""

    items: list[Item]
    skipped: Counter[str] = field(default_factory=Counter)
    """How many things were left out, by reason."""
    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """A few names of what was left out, by reason."""


class _Draft(NamedTuple):
    place: SourceLocation
    split: str
    image: str | None
    label: str | None
    sentences: dict[Sentence, None]


class Gathering:
    """Items in the making.

    Args:
        strict: refuse at the first thing that would be skipped.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._names: dict[str, tuple[str, SourceLocation]] = {}
        self._drafts: dict[str, _Draft] = {}
        self._skipped: Counter[str] = Counter()
        self._examples: defaultdict[str, list[str]] = defaultdict(list)

    def key(self, name: str, place: SourceLocation) -> str:
        """The id of an item that is named by its picture: the name without folders and ending.

        Raises:
            CollectionError: it was the key of another picture before; names both.
        """
        key = key_of(name)
        known, where = self._names.setdefault(key, (name, place))
        if not may_be_one(known, name):
            raise CollectionError(
                f"{place}: '{name}' is called '{key}' like '{known}' in {where}, and items are named so; rename one "
                "of the two pictures"
            )
        return key

    def item(
        self, id: str, place: SourceLocation, *, split: str, image: Path | str | None = None, label: str | None = None
    ) -> None:
        """Announce an item; it may be announced again as long as it is the same.

        Raises:
            CollectionError: the id or the split is empty, or the id was announced with other contents.
        """
        if not id or not split:
            raise CollectionError(f"{place}: the {'split' if id else 'id'} is empty; every item needs both")
        path = None if image is None else str(image)
        known = self._drafts.get(id)
        if known is None:
            self._drafts[id] = _Draft(place, split, path, label, {})
            return
        told = ("split", known.split, split), ("picture", known.image, path), ("label", known.label, label)
        for what, before, now in told:
            if before != now:
                raise CollectionError(
                    f"{place}: id '{id}' occurs twice: its {what} is {now!r} here and {before!r} in "
                    f"{known.place}; give the two items different ids or make them agree"
                )

    def sentence(self, id: str, place: SourceLocation, lang: str, text: str, group: int) -> None:
        """Add a sentence to an item that was announced; an empty one is skipped."""
        clean = text.strip()
        if len(parts := clean.splitlines()) > 1:
            clean = " ".join(part.strip() for part in parts)
        if not clean:
            self.skip("empty sentences", id, place)
        elif not lang:
            raise CollectionError(f"{place}: a sentence without a language; write its code, for example 'en'")
        else:
            self._drafts[id].sentences[Sentence(lang, clean, group)] = None

    def skip(self, reason: str, name: str, place: SourceLocation) -> None:
        """Count something left out, under a plural like 'sentences whose picture is not there'.

        Raises:
            CollectionError: reading is strict.
        """
        if self._strict:
            raise CollectionError(f"{place}: '{name}': {reason}; mend the source, or read it without 'strict'")
        self._skipped[reason] += 1
        examples = self._examples[reason]
        if len(examples) < EXAMPLES_NAMED and name not in examples:
            examples.append(name)

    def __contains__(self, id: str) -> bool:
        return id in self._drafts

    def reading(self) -> Reading:
        items = [
            Item(id, draft.split, image=draft.image, sentences=tuple(draft.sentences), label=draft.label)
            for id, draft in self._drafts.items()
        ]
        return Reading(items, self._skipped, {reason: tuple(names) for reason, names in self._examples.items()})
