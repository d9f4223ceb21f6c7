"""Examples of a split, and the order in which they become batches."""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from limner.data.collection import Collection
from limner.data.examples import Batch, Example, Item, collate
from limner.errors import FeatureError, TrainingError
from limner.features.sources import FeatureSource, FeatureStore
from limner.text.vocab import Tokenizer

T = TypeVar("T")

MAX_TOKENS_PER_ROW = 100
"""A batch of so many rows has so many times that many tokens at most, padding included; few sentences are longer."""

logger = logging.getLogger(__name__)


class SourceLanguage(NamedTuple):
    """The language a model translates from."""

    lang: str
    tokenizer: Tokenizer
    synthetic: float = 0.0
    """Share of the pairs of an epoch whose source sentence a model wrote; 0 leaves these out."""


class GenerationInput(NamedTuple):
    """What a model is asked to say: something of a picture, or a sentence in another language."""

    item: Item
    source: str | None
    references: tuple[str, ...]
    """What people said."""


class Examples:
    """The (picture, sentence) or (source, picture, sentence) examples of some items, tokenised once.

    FeatureStore are read batch by batch.
    """

    def __init__(
        self,
        items: Sequence[Item],
        tokenizer: Tokenizer,
        lang: str,
        pictures: FeatureSource | None,
        max_words: int,
        source: SourceLanguage | None = None,
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

    def queries(self) -> list[GenerationInput]:
        """What a model is asked to say: of each item something, or each sentence that people wrote in other words."""
        if self.source is None:
            return [GenerationInput(item, None, tuple(item.texts(self.lang))) for item in self.items]
        asked: list[GenerationInput] = []
        for item in self.items:
            answers: dict[tuple[str, int], list[str]] = {}
            for source, target in item.pairs(self.source.lang, self.lang):
                if not source.generated_by:
                    answers.setdefault((source.text, source.group), []).append(target.text)
            asked += [GenerationInput(item, text, tuple(references)) for (text, _), references in answers.items()]
        return asked

    def showing(self, pictures: FeatureSource | None) -> Self:
        """The same pairs, with other pictures."""
        other = copy.copy(self)
        other.pictures = pictures
        return other

    def batch(self, rows: Sequence[int]) -> Batch:
        """Collate the pairs of these rows."""
        items = [self.items[self.owners[row]] for row in rows]
        images = self.pictures.take(items) if self.pictures is not None else [None] * len(items)
        sources = [None] * len(rows) if self.sources is None else [self.sources[row] for row in rows]
        return collate(
            [
                Example(item.id, self.targets[row], source, image)
                for row, item, source, image in zip(rows, items, sources, images, strict=True)
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
        size: rows a batch; with the longest of them that makes at most `size` * `MAX_TOKENS_PER_ROW` tokens, or one row.
    """
    batch: list[int] = []
    longest = 0
    for row in rows:
        longest = max(longest, lengths[row])
        if batch and (len(batch) == size or (len(batch) + 1) * longest > size * MAX_TOKENS_PER_ROW):
            yield batch
            batch, longest = [], lengths[row]
        batch.append(row)
    if batch:
        yield batch


def texts_to_learn(item: Item, lang: str, source: SourceLanguage | None) -> list[tuple[str, str, bool]]:
    """Of each sentence to learn: what it translates (or nothing), itself, and whether a model wrote the former."""
    if source is None:
        return [("", text, False) for text in item.texts(lang)]
    pairs = item.pairs(source.lang, lang)
    return [
        (read.text, said.text, bool(read.generated_by))
        for read, said in pairs
        if source.synthetic or not read.generated_by
    ]


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
    pictures: FeatureStore | None,
    max_words: int,
    leave_out: bool = False,
    source: SourceLanguage | None = None,
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
            "features.missing=leave_out trains without them"
        )
    examples = Examples(items, tokenizer, lang, pictures, max_words, source)
    examples.without_features = len(unseen)
    if not len(examples):
        length = f" of at most {max_words} words" if examples.left_out else ""
        raise TrainingError(f"{collection.path}: split '{split}' {_nothing_to_learn(everything, lang, source, length)}")
    return examples


def _nothing_to_learn(items: Sequence[Item], lang: str, source: SourceLanguage | None, length: str) -> str:
    known = sorted({sentence.lang for item in items for sentence in item.sentences})
    there = f"(languages there: {', '.join(known) or 'none'})"
    if source is None:
        remedy = f"; train with data.lang={known[0]}" if known and lang not in known else ""
        return f"has no sentence{length} in '{lang}' {there}{remedy}"
    written = any(read.generated_by for item in items for read, _ in item.pairs(source.lang, lang))
    people = " that people wrote; what a model wrote is left out here" if written and not source.synthetic else ""
    return f"has no sentence{length} in '{lang}' that translates one in '{source.lang}'{people} {there}"
