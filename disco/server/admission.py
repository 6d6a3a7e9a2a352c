"""Admission of requests: a limit on answers at the same time, and none once the server closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from disco.server.api_errors import SERVER, Refusal

__all__ = ["AnswerLimiter", "closing"]


def closing() -> Refusal:
    """Return the refusal of requests that arrive, or are still open, when the server closes."""
    return Refusal(
        503, "The server is shutting down.", kind=SERVER, code="shutting_down", headers={"retry-after": "1"}
    )


class AnswerLimiter:
    """Limits how many requests are answered at the same time.

    Mutable: `_open`, the scopes of all requests; `busy`, how many requests are being answered; `closed`.
    """

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self.closed = False
        self.busy = 0
        self._open: set[anyio.CancelScope] = set()

    @contextmanager
    def receive(self) -> Iterator[anyio.CancelScope]:
        """Yield a cancel scope for one request, from its first byte on. `close` cancels the scope.

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
        """Hold a place for one answer. Its request has been read, so a body that never ends takes no place.

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
        """Cancel every request and admit no more. Idempotent."""
        self.closed = True
        for work in list(self._open):
            work.cancel()
