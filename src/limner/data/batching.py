"""Examples of a split, and the order in which they become batches."""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import Collection
from limner.data.examples import Batch, Example, Item, Seen, collate
from limner.errors import FeatureError, SettingsError, TrainingError
from limner.text.vocab import Tokenizer
from limner.vision.features import FeatureTable

T = TypeVar("T")

TOKENS_A_ROW = 100
"""A batch of so many rows has so many times that many tokens at most, padding included; few sentences are longer."""

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


class Source(NamedTuple):
    """The language a model translates from."""

    lang: str
    tokenizer: Tokenizer
    synthetic: float = 0.0
    """Share of the pairs of an epoch whose source sentence a model wrote; 0 leaves these out."""


class Query(NamedTuple):
    """What a model is asked to say: something of a picture, or a sentence in another language."""

    item: Item
    source: str | None
    references: tuple[str, ...]
    """What people said."""


class Examples:
    """The (picture, sentence) or (source, picture, sentence) examples of some items, tokenised once.

    Pictures are read batch by batch.
    """

    def __init__(
        self,
        items: Sequence[Item],
        tokenizer: Tokenizer,
        lang: str,
        pictures: PictureSource | None,
        max_words: int,
        source: Source | None = None,
    ) -> None:
        """Tokenise the sentences of a language, and of the one they are translated from.

        Args:
            items: items in the order wanted.
            tokenizer: turns sentences into ids.
            lang: language of the sentences.
            pictures: where features come from; None for a model without pictures.
            max_words: longer sentences are left out, with what they translate (`left_out` counts them).
            source: where the sentences are translations.
        """
        self.items, self.lang, self.pictures, self.source = items, lang, pictures, source
        pairs = [(row, *pair) for row, item in enumerate(items) for pair in texts_to_learn(item, lang, source)]
        encoded = [tokenizer.encode(text) for _, _, text, _ in pairs]
        read = [() if source is None else source.tokenizer.encode(text) for _, text, _, _ in pairs]
        kept = [k for k in range(len(pairs)) if max(len(encoded[k]), len(read[k])) <= max_words]
        self.left_out = len(pairs) - len(kept)
        self.owners = [pairs[k][0] for k in kept]
        self.texts = [pairs[k][2] for k in kept]
        self.targets = [encoded[k] for k in kept]
        self.sources = None if source is None else [read[k] for k in kept]
        self.synthetic = [k for k, row in enumerate(kept) if pairs[row][3]]
        self.without_features = 0
        """Items that `split_examples` left out, since their picture has no features."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Words of each example's sentence and of what it translates: what batches are sorted by."""
        if self.sources is None:
            return [(len(target), 0) for target in self.targets]
        return [(len(target), len(source)) for target, source in zip(self.targets, self.sources, strict=True)]

    def epoch_rows(self, seed: int, epoch: int) -> list[int]:
        """The examples of an epoch: all, but of those with a source that a model wrote just their share."""
        if self.source is None or not self.synthetic:
            return list(range(len(self)))
        share, written = self.source.synthetic, set(self.synthetic)
        people = [row for row in range(len(self)) if row not in written]
        wanted = min(len(written), round(len(people) * share / (1 - share))) if people else len(written)
        drawn = np.random.default_rng([seed, epoch, 1]).choice(self.synthetic, wanted, replace=False)
        return sorted([*people, *drawn.tolist()])

    def queries(self) -> list[Query]:
        """What a model is asked to say: of each item something, or each sentence that people wrote in other words."""
        if self.source is None:
            return [Query(item, None, tuple(item.texts(self.lang))) for item in self.items]
        asked: list[Query] = []
        for item in self.items:
            answers: dict[tuple[str, int], list[str]] = {}
            for source, target in item.pairs(self.source.lang, self.lang):
                if not source.made_by:
                    answers.setdefault((source.text, source.group), []).append(target.text)
            asked += [Query(item, text, tuple(references)) for (text, _), references in answers.items()]
        return asked

    def showing(self, pictures: PictureSource | None) -> Self:
        """The same pairs, with other pictures."""
        other = copy.copy(self)
        other.pictures = pictures
        return other

    def batch(self, rows: Sequence[int]) -> Batch:
        """Collate the pairs of these rows."""
        items = [self.items[self.owners[row]] for row in rows]
        visuals = self.pictures.take(items) if self.pictures is not None else [None] * len(items)
        sources = [None] * len(rows) if self.sources is None else [self.sources[row] for row in rows]
        return collate(
            [
                Example(item.id, self.targets[row], source, visual)
                for row, item, source, visual in zip(rows, items, sources, visuals, strict=True)
            ]
        )

    def order(self, size: int) -> list[list[int]]:
        """All rows once, in batches of sentences of like length, see `cut`."""
        lengths = self.lengths
        rows = sorted(range(len(self)), key=lengths.__getitem__)
        return list(cut(rows, [max(pair) for pair in lengths], size))


def cut(rows: Iterable[int], lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Cut rows into batches of at most `size`; of fewer where one is so long that padding would fill the memory.

    Args:
        rows: in the order wanted.
        lengths: tokens of every row.
        size: rows a batch; with the longest of them that makes at most `size` * `TOKENS_A_ROW` tokens, or one row.
    """
    batch: list[int] = []
    longest = 0
    for row in rows:
        longest = max(longest, lengths[row])
        if batch and (len(batch) == size or (len(batch) + 1) * longest > size * TOKENS_A_ROW):
            yield batch
            batch, longest = [], lengths[row]
        batch.append(row)
    if batch:
        yield batch


def texts_to_learn(item: Item, lang: str, source: Source | None) -> list[tuple[str, str, bool]]:
    """Of each sentence to learn: what it translates (or nothing), itself, and whether a model wrote the former."""
    if source is None:
        return [("", text, False) for text in item.texts(lang)]
    pairs = item.pairs(source.lang, lang)
    return [(read.text, said.text, bool(read.made_by)) for read, said in pairs if source.synthetic or not read.made_by]


def epoch_order(lengths: Sequence[Any], size: int, bucket: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of one epoch: shuffled, then sorted by length within buckets, then the batches shuffled.

    Args:
        lengths: words of each example, or anything to sort by.
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
    source: Source | None = None,
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
        source: where the sentences are translations; items without such a pair are passed over.

    Raises:
        CollectionError: the collection has no such split.
        TrainingError: the split has no sentence in that language.
        FeatureError: a picture of the split was never looked at.
    """
    everything = collection.items(split)
    items = [item for item in everything if texts_to_learn(item, lang, source)]
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
    examples = Examples(items, tokenizer, lang, pictures, max_words, source)
    examples.without_features = len(unseen)
    if not len(examples):
        length = f" of at most {max_words} words" if examples.left_out else ""
        raise TrainingError(f"{collection.path}: split '{split}' {_nothing_to_learn(everything, lang, source, length)}")
    return examples


def _nothing_to_learn(items: Sequence[Item], lang: str, source: Source | None, length: str) -> str:
    known = sorted({sentence.lang for item in items for sentence in item.sentences})
    there = f"(languages there: {', '.join(known) or 'none'})"
    if source is None:
        remedy = f"; train with data.lang={known[0]}" if known and lang not in known else ""
        return f"has no sentence{length} in '{lang}' {there}{remedy}"
    written = any(read.made_by for item in items for read, _ in item.pairs(source.lang, lang))
    people = " that people wrote; what a model wrote is left out here" if written and not source.synthetic else ""
    return f"has no sentence{length} in '{lang}' that translates one in '{source.lang}'{people} {there}"
