"""The queue in front of a local server. It is kept in disco, so that waiting does not look like prefill or silence.

A server on one machine works on one answer, or on a few, and queues the rest without reporting it. A prefill time
measured from outside would include that queue.
"""

from __future__ import annotations

from collections import deque

import anyio

from disco.errors import BUSY_RETRY_S, BusyError, EndpointFailure, FailureKind

__all__ = ["Turn", "Turns"]


class Turns:
    """First come, first served.

    Args:
        name: the endpoint's, for messages.
        at_once: answers that the server works on at the same time.
        max_waiting: requests that may wait; further ones are refused.

    Mutable: `at_once` (once the server has reported it), `_taken`, `_queue`.
    """

    def __init__(self, name: str, *, at_once: int, max_waiting: int) -> None:
        self.at_once = at_once
        self._name = name
        self._max_waiting = max_waiting
        self._taken = 0
        self._queue: deque[Turn] = deque()

    @property
    def waiting(self) -> int:
        """How many turns a new request would wait for; 0 where it would not wait."""
        return -(-(len(self._queue) + 1) // self.at_once) if self.is_full else 0

    @property
    def is_full(self) -> bool:
        """Whether a new request would have to wait."""
        return self._taken >= self.at_once

    def join(self) -> Turn:
        """Return a place at the end of the queue.

        Raises:
            EndpointFailure: RATE_LIMIT, the queue is full.
        """
        if self.is_full and len(self._queue) >= self._max_waiting:
            message = (
                f"Endpoint {self._name!r} is too busy: {len(self._queue)} requests wait for its server. "
                "Ask again later, or send fewer at a time."
            )
            raise EndpointFailure(FailureKind.RATE_LIMIT, BusyError(message), retry_after_s=BUSY_RETRY_S)
        turn = Turn(self)
        self._queue.append(turn)
        self.call()
        return turn

    def call(self) -> None:
        """Begin the turns for which the server has room."""
        while self._queue and not self.is_full:
            self._taken += 1
            self._queue.popleft().begin()

    def leave(self, turn: Turn) -> None:
        """Free a place, used or not."""
        if turn in self._queue:
            self._queue.remove(turn)
        else:
            self._taken -= 1
            self.call()


class Turn:
    """One request's place in the queue. Mutable: `_has_come`, `_left`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._has_come = anyio.Event()
        self._left = False

    def begin(self) -> None:
        """Mark that the request's turn has come."""
        self._has_come.set()

    async def wait(self) -> None:
        """Wait until the request's turn has come."""
        await self._has_come.wait()

    def leave(self) -> None:
        """Free the place for the next request. Idempotent."""
        if not self._left:
            self._left = True
            self._turns.leave(self)
