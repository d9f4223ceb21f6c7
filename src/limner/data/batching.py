"""Token ids of many sentences, order and size of batches, and a thread that prepares them in advance."""

from __future__ import annotations

import queue
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np

T = TypeVar("T")
BatchT = TypeVar("BatchT")


class Shards:
    """Division of the batches of a split among processes; in this base class, one process computes all of them."""

    @property
    def first(self) -> bool:
        """Whether this process computes the undivided work."""
        return True

    def local(self, batches: Sequence[T]) -> Sequence[T]:
        """Return the batches of this process."""
        return batches

    def gather(self, results: Sequence[T]) -> list[T]:
        """Return the results of all batches in order, given the results of this process; all processes call it."""
        return list(results)


ONE_PROCESS = Shards()

MAX_TOKENS_PER_EXAMPLE = 100
"""Average number of tokens per example, padding included, that a batch may have at most; longer batches are split."""


def bounded_batches(rows: Iterable[int], lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Group rows into batches of bounded memory, in the given order.

    Batches whose padded size would exceed `batch_size * MAX_TOKENS_PER_EXAMPLE` tokens, by the lengths of the rows,
    have fewer rows, at least one.
    """
    batch: list[int] = []
    longest = 0
    for row in rows:
        longest = max(longest, lengths[row])
        padded_size = (len(batch) + 1) * longest
        if batch and (len(batch) == batch_size or padded_size > batch_size * MAX_TOKENS_PER_EXAMPLE):
            yield batch
            batch, longest = [], lengths[row]
        batch.append(row)
    if batch:
        yield batch


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group the rows of some lengths into `bounded_batches` of similar length, the shortest first."""
    return list(bounded_batches(sorted(range(len(lengths)), key=lengths.__getitem__), lengths, batch_size))


def epoch_order(lengths: Sequence[Any], size: int, bucket: int, seed: int, epoch: int) -> list[list[int]]:
    """Draw the batches of one epoch: shuffle the rows, sort them by length within buckets, shuffle the batches.

    Args:
        lengths: sort key of each row, usually its number of tokens.
        size: number of rows in a batch.
        bucket: number of batches whose rows are sorted together; 1 disables sorting.
        seed: random seed; together with `epoch` it determines the order.
        epoch: number of the epoch, from 0.
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


def prefetch(make_batch: Callable[[T], BatchT], inputs: Iterable[T], depth: int) -> Iterator[BatchT]:
    """Prepare batches in a background thread, at most `depth` in advance.

    A thread is used because Lance does not support forked processes and reading releases the GIL. An exception in the
    thread is raised in the caller; the thread ends when the iterator is closed.
    """
    ready: queue.SimpleQueue[BatchT | BaseException | None] = queue.SimpleQueue()
    slots = threading.Semaphore(depth)  # acquired before a batch is made, so that at most `depth` batches wait
    stop = threading.Event()

    def work() -> None:
        try:
            for value in inputs:
                slots.acquire()
                if stop.is_set():
                    return
                ready.put(make_batch(value))
            ready.put(None)
        except BaseException as error:  # raised again by the consumer
            ready.put(error)

    thread = threading.Thread(target=work, name="limner-prefetch", daemon=True)
    thread.start()
    try:
        while (batch := ready.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            slots.release()
            yield batch
    finally:
        stop.set()
        slots.release()
        thread.join()


class TokenLists(Sequence[list[int]]):
    """Lists of token ids, in four bytes a token and eight a list."""

    def __init__(self) -> None:
        self._tokens, self._ends = array("i"), array("q", [0])

    def append(self, tokens: Sequence[int]) -> None:
        """Add a list."""
        self._tokens.extend(tokens)
        self._ends.append(len(self._tokens))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        """Return the token ids of one row, or of each row of a slice."""
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        return self._tokens[self._ends[row] : self._ends[row + 1]].tolist()

    def length(self, row: int) -> int:
        """Return the number of tokens of a list."""
        return self._ends[row + 1] - self._ends[row]
