"""Who is being answered: at most so many at once, and nobody any more once the server closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from disco.server.api_errors import SERVER, Refusal

__all__ = ["AnswerLimiter", "closing"]


def closing() -> Refusal:
    """What those are told who come, or are still here, when the server closes."""
    return Refusal(
        503, "The server is shutting down.", kind=SERVER, code="shutting_down", headers={"retry-after": "1"}
    )


class AnswerLimiter:
    """Admits requests. Mutable: `_work` and `closed`."""

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self.closed = False
        self._work: set[anyio.CancelScope] = set()

    @property
    def busy(self) -> int:
        """Requests being answered."""
        return len(self._work)

    @contextmanager
    def admit(self) -> Iterator[anyio.CancelScope]:
        """A place for one request, in a scope that `close` cancels.

        Raises:
            Refusal: no place is free, or the server is closing.
        """
        if self.closed:
            raise closing()
        if self.busy >= self.max_concurrent:
            raise Refusal(
                429,
                f"{self.max_concurrent} requests are being answered, which is the limit. Try again in a second.",
                kind="requests",
                code="rate_limit_exceeded",
                headers={"retry-after": "1"},
            )
        with anyio.CancelScope() as work:
            self._work.add(work)
            try:
                yield work
            finally:
                self._work.discard(work)

    def close(self) -> None:
        """Break off what is being answered and admit nobody any more. Idempotent."""
        self.closed = True
        for work in list(self._work):
            work.cancel()
