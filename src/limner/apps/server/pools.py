"""Threads for work outside of the event loop: each kind has its own, and none waits for another kind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar, get_args

import torch

Kind = Literal["image", "text", "language", "score", "embed", "explain", "search", "file"]
"""Kinds of work: reading images and texts of requests that generate, detecting languages, and requests that are
computed alone."""
Result = TypeVar("Result")


class Pools:
    """Threads by kind of work: one of each kind, and one for each core that read images."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        self._pools = {
            kind: ThreadPoolExecutor(
                cores if kind == "image" else 1, kind, initializer=_use_threads, initargs=(torch.get_num_threads(),)
            )
            for kind in get_args(Kind)
        }

    async def run(self, kind: Kind, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function in a thread of its kind; a call that has not begun can be cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._pools[kind], function, *arguments)

    def stop(self) -> None:
        """End the threads, without waiting for what they do."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def _use_threads(count: int) -> None:
    torch.get_num_threads()  # else the first operation takes the number that any thread has set last
    torch.set_num_threads(count)
