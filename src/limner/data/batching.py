"""Order and size of batches, and a thread that prepares them in advance."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from limner.data.examples import Batch

T = TypeVar("T")


class Shards(Protocol):
    """Division of the batches of a split among processes, each of which computes the results of its own."""

    @property
    def first(self) -> bool:
        """Whether this is the process that computes what is not divided."""
        ...

    def own(self, batches: Sequence[T]) -> Sequence[T]:
        """Return the batches of this process."""
        ...

    def gather(self, results: Sequence[T]) -> list[T]:
        """Return the results of all batches in their order, given those of this process; every process calls it."""
        ...


class OneProcess:
    """All batches in this process."""

    first = True

    def own(self, batches: Sequence[T]) -> Sequence[T]:
        """Return all batches."""
        return batches

    def gather(self, results: Sequence[T]) -> list[T]:
        """Return the results."""
        return list(results)


ONE_PROCESS = OneProcess()


MAX_TOKENS_PER_EXAMPLE = 100
"""Average number of tokens per example, padding included, that a batch may have at most; longer batches are split."""


def bounded_batches(rows: Iterable[int], lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Group rows into batches of bounded memory, in the given order.

    Args:
        rows: row indices in the order of the batches.
        lengths: number of tokens of each row.
        batch_size: maximum number of rows in a batch. Batches whose padded size would exceed
            `batch_size * MAX_TOKENS_PER_EXAMPLE` tokens have fewer rows, at least one.
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


def epoch_order(lengths: Sequence[Any], size: int, bucket: int, seed: int, epoch: int) -> list[list[int]]:
    """Draw the batches of one epoch: shuffle the rows, sort them by length within buckets, shuffle the batches.

    Args:
        lengths: sort key of each row, usually its number of tokens.
        size: number of rows in a batch.
        bucket: number of batches whose rows are sorted together; 1 disables sorting.
        seed: random seed; together with `epoch` it determines the order.
        epoch: number of the epoch, from 0.

    Returns:
        Row indices of each batch; every row occurs once.
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


def prefetch(make_batch: Callable[[T], Batch], inputs: Iterable[T], depth: int) -> Iterator[Batch]:
    """Prepare batches in a background thread, at most `depth` in advance.

    A thread is used because Lance does not support forked processes and reading releases the GIL. An exception in the
    thread is raised in the caller; the thread ends when the iterator is closed.
    """
    ready: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
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
