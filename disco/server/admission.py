"""Admits requests: at most so many are answered at once, and none once the server closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from disco.server.api_errors import SERVER, Refusal

__all__ = ["AnswerLimiter", "closing"]


def closing() -> Refusal:
    """The refusal of requests that come, or are still open, when the server closes."""
    return Refusal(
        503, "The server is shutting down.", kind=SERVER, code="shutting_down", headers={"retry-after": "1"}
    )


class AnswerLimiter:
    """Admits requests.

    Mutable: `_open`, the scopes of all requests; `busy`, how many of them are being answered; `closed`.
    """

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self.closed = False
        self.busy = 0
        self._open: set[anyio.CancelScope] = set()

    @contextmanager
    def receive(self) -> Iterator[anyio.CancelScope]:
        """A scope for one request, from its first byte on, that `close` cancels.

        Raises:
            Refusal: the server is closing.
        """
        if self.closed:
            raise closing()
        with anyio.CancelScope() as work:
            self._open.add(work)
            try:
                yield work
            finally:
                self._open.discard(work)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """A place for one answer. Its request has been read: a body that never ends takes no place.

        Raises:
            Refusal: no place is free.
        """
        if self.busy >= self.max_concurrent:
            raise Refusal(
                429,
                f"{self.max_concurrent} requests are being answered, which is the limit. Try again in a second.",
                kind="requests",
                code="rate_limit_exceeded",
                headers={"retry-after": "1"},
            )
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def close(self) -> None:
        """Break off every request and take no more. Idempotent."""
        self.closed = True
        for work in list(self._open):
            work.cancel()
