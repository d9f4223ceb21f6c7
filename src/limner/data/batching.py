"""Examples of a split, and the order in which they become batches."""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import Collection
from limner.data.examples import Batch, Example, Item, Seen, collate
from limner.errors import FeatureError, SettingsError, TrainingError
from limner.text.vocab import Tokenizer
from limner.vision.features import FeatureTable

T = TypeVar("T")

logger = logging.getLogger(__name__)


class PictureSource(Protocol):
    """Where the pictures of items are seen."""

    def take(self, items: Sequence[Item]) -> list[Seen | None]:
        """What is seen of each item's picture, None for items without one."""
        ...


class Pictures:
    """The feature tables a model looks at, as one: each table gives one form of picture."""

    def __init__(self, tables: Sequence[FeatureTable]) -> None:
        """Join tables; SettingsError where two give the same form, of which one would never be looked at."""
        self.tables = tuple(tables)
        names: dict[str, str] = {}
        for spec in (table.spec for table in tables):
            other = names.setdefault(spec.kind, spec.name)
            if other != spec.name:
                raise SettingsError(
                    f"visual.features: '{other}' and '{spec.name}' both are of the form '{spec.kind}'; "
                    "name one table of each form"
                )

    @classmethod
    def open(cls, collection: Collection, names: Sequence[str], cache_mib: int) -> Pictures:
        """Open the named feature tables of a collection.

        Args:
            collection: where they are.
            names: one for each form of picture.
            cache_mib: tables of up to this size are held in memory.

        Raises:
            FeatureError: there is none of that name.
            SettingsError: two tables give the same form.
        """
        return cls([FeatureTable.open(collection, name, cache_bytes=cache_mib << 20) for name in names])

    @property
    def forms(self) -> dict[str, tuple[int, ...]]:
        """Shape by form, as `build_model` wants it."""
        return {table.spec.kind: table.spec.shape for table in self.tables}

    def take(self, items: Sequence[Item]) -> list[Seen | None]:
        """Features of each item's picture or sound, None for items without one."""
        seen = [row for row, item in enumerate(items) if item.medium is not None]
        result: list[Seen | None] = [None] * len(items)
        for table in self.tables:
            values = table.take([items[row].id for row in seen])
            for row, value in zip(seen, values, strict=True):
                result[row] = {**(result[row] or {}), table.spec.kind: value}
        return result

    def knows(self, item: Item) -> bool:
        """Whether the item has no picture and no sound, or one that every table holds."""
        return item.medium is None or all(item.id in table for table in self.tables)


Control = Literal["right", "shuffled", "mean", "zero"]
"""Which picture a model is shown of an item: its own, or to learn what that is worth, one that says nothing of it."""


class ControlPictures:
    """Shows other pictures in place of the right ones: the random images of Kiros et al. (2014), for any model.

    Whoever has no picture has none here either.
    """

    def __init__(self, pictures: PictureSource, others: Mapping[str, Item], fixed: Seen | None = None) -> None:
        """Replace pictures.

        Args:
            pictures: the right ones.
            others: by id, the item whose picture is shown instead; items that are not there keep their own.
            fixed: what is shown of every picture, whatever `others` says.
        """
        self.pictures, self.others, self.fixed = pictures, others, fixed

    def take(self, items: Sequence[Item]) -> list[Seen | None]:
        """What is shown in place of each item's picture."""
        if self.fixed is not None:
            return [None if item.medium is None else self.fixed for item in items]
        return self.pictures.take([self.others.get(item.id, item) for item in items])

    @classmethod
    def shuffled(cls, pictures: PictureSource, items: Sequence[Item], seed: int) -> Self:
        """Show each item that has a picture another one's, and each picture once, by the seed.

        Raises:
            SettingsError: there is one picture only, so there is no other.
        """
        shown = [item for item in items if item.medium is not None]
        if len(shown) == 1:
            raise SettingsError(f"item '{shown[0].id}' has the only picture, so there is none to show in its place")
        ring = np.random.default_rng(seed).permutation(len(shown)).tolist()  # each gets the next one's: never its own
        return cls(pictures, {shown[a].id: shown[b] for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True)})


def mean_picture(pictures: PictureSource, items: Sequence[Item], at_once: int = 1024) -> Seen:
    """The mean of what is stored of the items' pictures, by form.

    Raises:
        SettingsError: none of them has a picture.
    """
    totals: dict[str, NDArray[np.float64]] = {}
    count = 0
    for begin in range(0, len(items), at_once):
        for seen in pictures.take(items[begin : begin + at_once]):
            if seen is None:
                continue
            count += 1
            for form, values in seen.items():
                if values is not None:
                    totals[form] = totals.get(form, 0) + values.astype(np.float64)
    if not count:
        raise SettingsError("the mean picture of the training split: there is no picture in it")
    return {form: (total / count).astype(np.float16) for form, total in totals.items()}


class Examples:
    """The (picture, sentence) pairs of some items, tokenised once; pictures are read batch by batch."""

    def __init__(
        self,
        items: Sequence[Item],
        tokenizer: Tokenizer,
        lang: str,
        pictures: PictureSource | None,
        max_words: int,
    ) -> None:
        """Tokenise the sentences of a language.

        Args:
            items: items in the order wanted.
            tokenizer: turns sentences into ids.
            lang: language of the sentences.
            pictures: where features come from; None for a model without pictures.
            max_words: longer sentences are left out (`left_out` counts them).
        """
        self.items, self.lang, self.pictures = items, lang, pictures
        pairs = [(row, text) for row, item in enumerate(items) for text in item.texts(lang)]
        encoded = [tokenizer.encode(text) for _, text in pairs]
        kept = [k for k, ids in enumerate(encoded) if len(ids) <= max_words]
        self.left_out = len(pairs) - len(kept)
        self.owners = [pairs[k][0] for k in kept]
        self.texts = [pairs[k][1] for k in kept]
        self.targets = [encoded[k] for k in kept]

    def __len__(self) -> int:
        return len(self.targets)

    def showing(self, pictures: PictureSource | None) -> Self:
        """The same pairs, with other pictures."""
        other = copy.copy(self)
        other.pictures = pictures
        return other

    def batch(self, rows: Sequence[int]) -> Batch:
        """Collate the pairs of these rows."""
        items = [self.items[self.owners[row]] for row in rows]
        visuals = self.pictures.take(items) if self.pictures is not None else [None] * len(items)
        return collate(
            [
                Example(item.id, self.targets[row], visual=visual)
                for row, item, visual in zip(rows, items, visuals, strict=True)
            ]
        )

    def order(self, size: int) -> list[list[int]]:
        """All rows once, in batches of sentences of like length."""
        rows = sorted(range(len(self)), key=lambda row: len(self.targets[row]))
        return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def epoch_order(lengths: Sequence[int], size: int, bucket: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of one epoch: shuffled, then sorted by length within buckets, then the batches shuffled.

    Args:
        lengths: words of each example.
        size: examples a batch.
        bucket: how many batches are sorted by length together; 1 sorts nothing.
        seed: with the epoch, the only source of chance.
        epoch: counted from 0.

    Returns:
        Rows of each batch; every row once.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    span = size * bucket
    batches: list[list[int]] = []
    for begin in range(0, len(order), span):
        rows = order[begin : begin + span].tolist()
        if bucket > 1:
            rows.sort(key=lambda row: lengths[row])
        batches += [rows[k : k + size] for k in range(0, len(rows), size)]
    return [batches[k] for k in random.permutation(len(batches))]


def prefetch(make: Callable[[T], Batch], wanted: Iterable[T], depth: int) -> Iterator[Batch]:
    """Make batches in a thread, up to `depth` ahead (Lance is not safe to fork, and reading releases the GIL).

    An error in the thread is raised here; leaving the loop early stops the thread.
    """
    ready: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(depth)  # taken before a batch is made, so that no more than `depth` are held
    stop = threading.Event()

    def work() -> None:
        try:
            for one in wanted:
                room.acquire()
                if stop.is_set():
                    return
                ready.put(make(one))
            ready.put(None)
        except BaseException as error:  # handed to the reader, who raises it
            ready.put(error)

    thread = threading.Thread(target=work, name="limner-prefetch", daemon=True)
    thread.start()
    try:
        while (value := ready.get()) is not None:
            if isinstance(value, BaseException):
                raise value
            room.release()
            yield value
    finally:
        stop.set()
        room.release()
        thread.join()


def split_examples(
    collection: Collection,
    split: str,
    tokenizer: Tokenizer,
    lang: str,
    pictures: Pictures | None,
    max_words: int,
    leave_out: bool = False,
) -> Examples:
    """The pairs of one split; items without a sentence in that language are passed over.

    Args:
        collection: where the split is.
        split: its name.
        tokenizer: turns sentences into ids.
        lang: language of the sentences.
        pictures: where features come from; None for a model without pictures.
        max_words: longer sentences are left out.
        leave_out: whether items whose picture has no features are left out as well, instead of refused.

    Raises:
        CollectionError: the collection has no such split.
        TrainingError: the split has no sentence in that language.
        FeatureError: a picture of the split was never looked at.
    """
    everything = collection.items(split)
    items = [item for item in everything if item.texts(lang)]
    unseen = [item.id for item in items if pictures is not None and not pictures.knows(item)]
    if unseen and leave_out:
        logger.warning("split '%s': %d pictures without features are left out", split, len(unseen))
        without = set(unseen)
        items = [item for item in items if item.id not in without]
    elif pictures is not None and unseen:
        names = ", ".join(table.spec.name for table in pictures.tables)
        raise FeatureError(
            f"{collection.path}: {len(unseen)} pictures of split '{split}' have no features '{names}', the first "
            f"is '{unseen[0]}'; 'limner features' adds them, and says which pictures cannot be read and why; "
            "visual.missing=leave_out trains without them"
        )
    examples = Examples(items, tokenizer, lang, pictures, max_words)
    if not len(examples):
        known = sorted({sentence.lang for item in everything for sentence in item.sentences})
        length = f" of at most {max_words} words" if examples.left_out else ""
        remedy = f"; train with data.lang={known[0]}" if known and lang not in known else ""
        raise TrainingError(
            f"{collection.path}: split '{split}' has no sentence{length} in '{lang}' "
            f"(languages there: {', '.join(known) or 'none'}){remedy}"
        )
    return examples
