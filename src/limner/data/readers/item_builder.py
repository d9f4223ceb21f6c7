"""Construction of items from entries of source files, with checks for contradictions and counts of skipped entries."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from limner.data.examples import Item, ItemSentence, Phrase, Region
from limner.data.tally import Tally
from limner.errors import CollectionError
from limner.media.image import IMAGE_SUFFIXES
from limner.storage.hashes import IdSet

READ_BUDGET = 256 << 20
"""Default memory of the items that are held while a source is read, in bytes."""
_ITEM_BYTES = 1200
_SENTENCE_BYTES = 500


class SourceLocation(NamedTuple):
    """File with a line number or, in a JSON file, the path of an entry."""

    path: Path
    position: int | str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.position}" if self.position else str(self.path)


@dataclass(frozen=True, slots=True)
class ReaderResult:
    """Items read from a source, with media paths that name the source files."""

    items: list[Item]
    tally: Tally = field(default_factory=Tally)
    """Counts of skipped entries and of oddities of the source."""


class _Draft(NamedTuple):
    location: SourceLocation
    split: str
    image: str | None
    label: str | None
    sentences: dict[ItemSentence, None]
    regions: dict[tuple[tuple[float, ...], str, str], Region]
    next_groups: Counter[str]  # by language


class ItemBuilder:
    """Collects items and their sentences while a source is read.

    Args:
        strict: whether an entry that would be skipped raises an error.
        sink: receives the collected items whenever they exceed the budget, and forgets them; entries of an item then
            have to follow each other. None to collect all items for `result`.
        budget: memory of the items in bytes.
    """

    def __init__(
        self, strict: bool, sink: Callable[[list[Item]], None] | None = None, budget: int = READ_BUDGET
    ) -> None:
        self._strict, self._sink, self._budget = strict, sink, budget
        self.store: Callable[[str, bytes], None] | None = None
        """Function that writes a media file into the collection, by its path there; None while there is none."""
        self.written = IdSet()
        """Paths of the files that were written into the collection."""
        self._bytes = 0
        self._passed_on = IdSet()
        self.passed = 0
        """Number of times that items were passed to `sink`."""
        self._names: dict[str, tuple[str, SourceLocation]] = {}
        self._drafts: dict[str, _Draft] = {}
        self._available: dict[str, None] = {}
        self.tally = Tally()
        """Counts of skipped entries and of oddities of the source."""

    def key(self, name: str, location: SourceLocation) -> str:
        """Item id of an image: its name without folders and suffix; CollectionError if another image has the same."""
        key = image_key(name)
        known, known_location = self._names.setdefault(key, (name, location))
        if not may_be_same_image(known, name):
            raise CollectionError(
                f"{location}: '{name}' has the item id '{key}', like '{known}' in {known_location}; rename one of the "
                "two images"
            )
        return key

    def add_item(
        self,
        id: str,
        location: SourceLocation,
        *,
        split: str,
        image: Path | str | None = None,
        label: str | None = None,
    ) -> None:
        """Add an item, or nothing if it is added again; CollectionError without id or split, or for other contents."""
        if not id or not split:
            raise CollectionError(f"{location}: the {'split' if id else 'id'} is empty; give every item both")
        path = None if image is None else str(image)
        known = self._drafts.get(id)
        if known is None:
            if id in self._passed_on:
                raise CollectionError(
                    f"{location}: the id '{id}' occurs again, {self._budget >> 20:,} MiB of other items after it; put "
                    "the entries of an item one after the other, or raise the memory (--memory)"
                )
            if self._sink is not None and self._bytes >= self._budget:
                self._pass_on(self._sink)
            self._bytes += _ITEM_BYTES
            self._drafts[id] = _Draft(location, split, path, label, {}, {}, Counter())
            return
        for name, before, value in (
            ("split", known.split, split),
            ("image", known.image, path),
            ("label", known.label, label),
        ):
            if before != value:
                raise CollectionError(
                    f"{location}: id '{id}' occurs twice: its {name} is {value!r} here and {before!r} in "
                    f"{known.location}; use different ids for the two items, or make them agree"
                )

    def add_sentence(
        self, id: str, location: SourceLocation, lang: str, text: str, group: int, phrases: Sequence[Phrase] = ()
    ) -> None:
        """Add a sentence to an item that was added before; empty sentences are skipped.

        A phrase whose text is not at its position in the sentence is skipped.

        Raises:
            CollectionError: the language is empty.
        """
        next_groups = self._drafts[id].next_groups
        next_groups[lang] = max(next_groups[lang], group + 1)
        stripped = text.strip()
        if len(lines := stripped.splitlines()) > 1:
            stripped = " ".join(line.strip() for line in lines)
        if not stripped:
            self.skip("empty sentences", id, location)
        elif not lang:
            raise CollectionError(f"{location}: the language of the sentence is empty; expected a code such as 'en'")
        else:
            valid = tuple(phrase for phrase in phrases if self._check_phrase(phrase, stripped, id, location))
            sentences, sentence = self._drafts[id].sentences, ItemSentence(lang, stripped, group, phrases=valid)
            if sentence in sentences:
                self.tally.note("sentences that repeat another sentence of their item and group", f"{id}: {stripped}")
            sentences[sentence] = None
            self._bytes += _SENTENCE_BYTES + 2 * len(stripped)

    def add_sentences(self, id: str, location: SourceLocation, lang: str, texts: Iterable[str]) -> None:
        """Add sentences to an item that was added before; each has the next free group of the item in its language."""
        for group, text in enumerate(texts, start=self._drafts[id].next_groups[lang]):
            self.add_sentence(id, location, lang, text, group)

    def add_region(self, id: str, region: Region) -> None:
        """Add a region to an item that was added before; the types of equal regions are united."""
        regions, key = self._drafts[id].regions, (region.box, region.text, region.entity)
        known = regions.setdefault(key, region)
        regions[key] = known._replace(types=tuple(dict.fromkeys(known.types + region.types)))

    def _check_phrase(self, phrase: Phrase, text: str, id: str, location: SourceLocation) -> bool:
        tokens, expected = text.split(), phrase.text.split()
        matches = bool(expected) and phrase.first >= 0
        matches = matches and tokens[phrase.first : phrase.first + len(expected)] == expected
        if not matches:
            self.skip("phrases that are not at their position in the sentence", f"{id}: {phrase.text}", location)
        return matches

    def skip(self, reason: str, name: str, location: SourceLocation) -> None:
        """Count a skipped entry by a reason such as 'sentences whose image is missing'; CollectionError if strict."""
        if self._strict:
            raise CollectionError(f"{location}: '{name}': {reason}; correct the source, or read it without 'strict'")
        self.tally.skip(reason, name)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a media file that the source holds into the collection, at a path relative to its folder."""
        self._bytes += len(name)
        self.written.add(name)
        if self.store is not None:
            self.store(name, data)

    def offer_files(self, paths: Iterable[Path]) -> None:
        """Register media files of the source; files without an item at the end are noted."""
        self._available |= {str(path): None for path in paths}

    def __contains__(self, id: str) -> bool:
        return id in self._drafts or id in self._passed_on

    def _pass_on(self, sink: Callable[[list[Item]], None]) -> None:
        """Pass the collected items to `sink` and keep only hashes of their ids."""
        items = self._items()
        for item in items:
            self._passed_on.add(item.id)
        self._drafts, self._bytes = {}, 0
        self.passed += 1
        sink(items)

    def result(self) -> ReaderResult:
        """Items in the order in which they were added, and the counts of skipped and odd entries."""
        items = self._items()
        used = {draft.image for draft in self._drafts.values()}
        for path in self._available:
            if path not in used:
                self.tally.note("files that no item of the source uses", path)
        return ReaderResult(items, self.tally)

    def _items(self) -> list[Item]:
        for id, draft in self._drafts.items():
            if not (draft.sentences or draft.regions or draft.label):
                self.tally.note("items without sentences", id)
        return [
            Item(
                id,
                draft.split,
                image=draft.image,
                sentences=tuple(draft.sentences),
                regions=tuple(draft.regions.values()),
                label=draft.label,
            )
            for id, draft in self._drafts.items()
        ]


def image_key(name: str) -> str:
    """Name of an image without folder and suffix, which is the same in all files of a corpus."""
    return _split_name(name)[1]


def may_be_same_image(name: str, other: str) -> bool:
    """Whether two names can denote the same image: equal, except that one may omit folders or the suffix."""
    (folder, key, suffix), (other_folder, other_key, other_suffix) = _split_name(name), _split_name(other)
    shorter, longer = sorted((f"/{folder}", f"/{other_folder}"), key=len)
    return key == other_key and longer.endswith(shorter) and (suffix == other_suffix or not (suffix and other_suffix))


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a name into folders with the last slash, key and lower-case suffix; other suffixes belong to the key."""
    folder, slash, last = name.rpartition("/")
    stem, suffix = os.path.splitext(last)
    key, suffix = (stem, suffix.lower()) if suffix.lower() in IMAGE_SUFFIXES else (last, "")
    return folder + slash, key, suffix
