"""Connections of uvicorn that are closed when a client does not send the head of a request in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 10.0
"""Time limit of the head of a request; that of its body is a setting."""

_Base: Any = AutoHTTPProtocol


class GuardedProtocol(_Base):  # type: ignore[misc]
    """The protocol of uvicorn with a time limit for the head of each request."""

    _guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401
        """Start to wait for the head of the first request."""
        super().connection_made(transport)
        self._start_guard()

    def data_received(self, data: bytes) -> None:
        """Read data, and wait for the rest of the head of a request that has begun."""
        super().data_received(data)
        if self._answers():
            self._stop_guard()
        else:
            self._start_guard()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop_guard()
        super().connection_lost(exc)

    def _answers(self) -> bool:
        """Whether a request is complete up to its body, and not yet answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_guard(self) -> None:
        if self._guard is None:
            self._guard = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._close_if_idle)

    def _stop_guard(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None

    def _close_if_idle(self) -> None:
        self._guard = None
        if not self._answers():
            self.transport.close()
