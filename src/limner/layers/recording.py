"""Whether a model is being recorded as a graph, which has to hold for inputs other than those of the example.

Layers then take the path that is right for any values, in place of one that depends on the values of a tensor, and the
plain form of what they have an optimised form of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_recorded: ContextVar[bool] = ContextVar("_recorded", default=False)


def is_recorded() -> bool:
    """Whether the calls of this thread are recorded as a graph."""
    return _recorded.get()


@contextmanager
def recording() -> Iterator[None]:
    """Mark the layers within the block as recorded."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)
