"""Has a local server load its model, on a connection that belongs to no request.

Such a server loads a model for the first request that names it, and some (Ollama) drop the load when that request's
client leaves. Who waits for an answer leaves early: another endpoint was faster, or its clock ran out. So the load is
asked for by a task of its own, which goes on when nobody waits any more.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.lowlevel

from disco.endpoints.background_tasks import BackgroundTasks
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["LOAD_WITHIN_S", "ModelLoad"]

LOAD_WITHIN_S: Final = 600.0
"""A load that takes longer is given up: the SDK's own patience with a request."""


class ModelLoad:
    """The load of one endpoint's model: at most one at a time, shared by all who wait for it.

    Mutable: `since`, `took_s`, `_running`.

    Attributes:
        since: when the load began that is under way, on the clock of `time.monotonic`; None: none is.
        took_s: how long the last whole load took, s; None before it.

    Args:
        load: asks the server, and returns once the model is loaded; raises `EndpointFailure`.
        name: the endpoint's, for messages.
    """

    def __init__(self, load: Callable[[], Awaitable[None]], *, name: str) -> None:
        self.since: float | None = None
        self.took_s: float | None = None
        self._load = load
        self._name = name
        self._tasks = BackgroundTasks()
        self._running: _Running | None = None

    async def ready(self) -> None:
        """Make ready to `begin` in this event loop."""
        await self._tasks.begin()

    def begin(self) -> None:
        """Begin to load, unless that is under way. Call `ready` before, in the same event loop."""
        if self._is_running() or not self._tasks.is_open:
            return
        running = self._running = _Running()
        self.since = time.monotonic()
        self._tasks.start_soon(self._run, running)

    async def wait(self) -> None:
        """Wait until the model is loaded; begin to load it unless that is under way.

        Raises:
            EndpointFailure: the server cannot load it, or was given up.
        """
        await self.ready()
        self.begin()
        running = self._running
        assert running is not None
        await running.over.wait()
        if running.failure is not None:
            # One for each who waits: a session may change its own.
            why = running.failure
            raise EndpointFailure(
                why.kind,
                why.error,
                retry_after_s=why.retry_after_s,
                may_retry=why.may_retry,
                account=why.account,
            )

    async def aclose(self) -> None:
        """Give up the load, if one is under way. Idempotent."""
        await self._tasks.aclose()

    def _is_running(self) -> bool:
        running = self._running
        return running is not None and not running.over.is_set() and running.is_here

    async def _run(self, running: _Running) -> None:
        began_at = time.monotonic()
        running.failure = EndpointFailure(
            FailureKind.TIMEOUT,
            LocalModelError(f"Endpoint {self._name!r} was closed before its server had loaded the model."),
            may_retry=False,
        )
        try:
            with anyio.move_on_after(LOAD_WITHIN_S) as scope:
                await self._load()
                running.failure, self.took_s = None, time.monotonic() - began_at
            if scope.cancelled_caught:
                message = f"The server of endpoint {self._name!r} has not loaded its model within {LOAD_WITHIN_S:g} s."
                running.failure = EndpointFailure(
                    FailureKind.TIMEOUT, LocalModelError(message), may_retry=False
                )
        except EndpointFailure as failure:
            running.failure = failure
        except Exception as error:  # noqa: BLE001 - a task in the background must not raise; who waits does
            running.failure = EndpointFailure(FailureKind.CRASHED, error)
        finally:
            if self._running is running:
                self.since = None
            running.over.set()


class _Running:
    """One load. Mutable: `failure`, why it ended without a model; None: it did not."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.failure: EndpointFailure | None = None
        self._token = anyio.lowlevel.current_token()

    @property
    def is_here(self) -> bool:
        """Whether it is of the event loop that runs now: those of a loop that has ended never end themselves."""
        return self._token == anyio.lowlevel.current_token()
