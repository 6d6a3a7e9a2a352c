"""One answer of a local server: the attempt waits for its turn, then runs like any server's attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from disco.endpoints.contract import Attempt, Event
from disco.endpoints.local_server.turn_queue import Turn, Turns
from disco.errors import EndpointFailure
from disco.events import Ended, SeamReport, Started, Traffic, Usage

__all__ = ["LocalServerAttempt"]

_CLOSE_S = 1.0


class LocalServerAttempt(Attempt):
    """See `Attempt`. Made by `LocalServerEndpoint.open`.

    Args:
        turns: the server's queue.
        begin: makes the attempt at the server once its turn has come, and returns the share of the prompt that is
            cached, if known; may query the server first.
        explained: converts a failure into the one that the session sees.
        on_close: called once when the attempt has ended; its argument is whether the answer is complete.
    """

    # Mutable: everything below the blank line.

    def __init__(
        self,
        *,
        turns: Turns,
        begin: Callable[[], Awaitable[tuple[Attempt, float]]],
        explained: Callable[[EndpointFailure], EndpointFailure],
        on_close: Callable[[LocalServerAttempt, bool], object],
    ) -> None:
        self._turns = turns
        self._begin = begin
        self._explained = explained
        self._on_close = on_close

        self._turn: Turn | None = None
        self._inner: Attempt | None = None
        self._cached_share = 0.0
        self._asked_at: float | None = None  # on the event loop's clock
        self._beginning = anyio.CancelScope()  # lets `aclose` end the wait
        self._idle: anyio.Event | None = None  # set when the wait ends; None before the wait
        self._closed = False
        self._over = False
        self._finished = False
        self._reported = False

    async def __anext__(self) -> Event:
        if self._over or self._closed:
            self._release()
            raise StopAsyncIteration
        try:
            if self._inner is None:
                return await self._wait_and_begin()
            event = await self._inner.__anext__()
        except EndpointFailure as failure:
            self._release()
            raise self._explained(failure) from failure
        except BaseException:
            self._release()
            raise
        if isinstance(event, Ended):
            self._finished = True
            await self._inner.aclose()  # close its connection before the next attempt's turn
            self._release()
            if event.usage is not None:
                return replace(event, usage=self._with_cached(event.usage))
        return event

    async def _wait_and_begin(self) -> Started:
        self._idle = anyio.Event()
        try:
            with self._beginning:
                self._turn = self._turns.join()
                await self._turn.wait()
                self._inner, self._cached_share = await self._begin()
                self._asked_at = anyio.current_time()
        finally:
            self._idle.set()
        if self._inner is not None and not self._closed:
            return Started()
        if self._inner is not None:
            await self._inner.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed = True
        if self._inner is not None:
            await self._inner.aclose()
        elif self._idle is not None:
            self._beginning.cancel()
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._idle.wait()
        self._release()

    @property
    def usage(self) -> Usage:
        return Usage() if self._inner is None else self._with_cached(self._inner.usage)

    def _with_cached(self, usage: Usage) -> Usage:
        """Return the usage with the estimate of cached tokens, where the server does not report them."""
        if usage.cached_tokens or not self._cached_share:
            return usage
        return replace(usage, cached_tokens=int(usage.prompt_tokens * self._cached_share))

    @property
    def traffic(self) -> Traffic:
        return Traffic() if self._inner is None else self._inner.traffic

    @property
    def seam(self) -> SeamReport | None:
        return None if self._inner is None else self._inner.seam

    @property
    def unanswered_s(self) -> float:
        """How long the attempt has waited for the first byte from its server, s; 0 where one has come."""
        if self._asked_at is None or self._inner is None or self._inner.traffic.bytes_down:
            return 0.0
        return anyio.current_time() - self._asked_at

    def _release(self) -> None:
        self._over = True
        if self._turn is not None:
            self._turn.leave()
        if not self._reported:
            self._reported = True
            self._on_close(self, self._finished)
