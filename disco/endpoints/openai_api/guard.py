"""A deadline for one await that costs nothing when there is nothing to wait for.

Most reads of a fast stream return at once, out of bytes that came with an earlier read. A cancel scope
around each would cost more than everything else done for a chunk, and a scope cannot be opened once the
read turns out to wait, because the transport has its own scopes open by then. So on asyncio the awaitable
is driven by hand for its first step and a timer is armed only when that step did not finish. This is the
one place that knows about asyncio; other event loops get an anyio scope per read, which does the same.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import anyio

__all__ = ["DeadlineError", "Guard", "InterruptedWaitError"]

T = TypeVar("T")


class DeadlineError(Exception):
    """The awaited thing was not there in time; it has been cancelled."""


class InterruptedWaitError(Exception):
    """`Guard.interrupt` was called; the awaited thing has been cancelled."""


class Guard:
    """Awaits one thing after another, each under a deadline; can be interrupted from another task.

    Args:
        deadline: asked for the point in time, on `anyio.current_time`'s clock, when a wait begins;
            `inf` for none.
    """

    # Mutable: _stop cancels the wait in progress, None between waits; _interrupted.
    __slots__ = ("_deadline", "_interrupted", "_stop")

    def __init__(self, deadline: Callable[[], float]) -> None:
        self._deadline = deadline
        self._stop: Callable[[], object] | None = None
        self._interrupted = False

    @property
    def waiting(self) -> bool:
        """True while something is being awaited."""
        return self._stop is not None

    def interrupt(self) -> None:
        """Cancel the wait in progress, if any; it raises `InterruptedWaitError` in its own task."""
        self._interrupted = True
        if self._stop is not None:
            self._stop()

    def wait(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await `awaitable` under the deadline.

        Raises (when awaited):
            DeadlineError: the deadline passed.
            InterruptedWaitError: `interrupt` was called.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._wait_scoped(awaitable)
        return _Stepwise(self, awaitable)

    async def _wait_scoped(self, awaitable: Awaitable[T]) -> T:
        with anyio.CancelScope(deadline=self._deadline()) as scope:
            self._stop = scope.cancel
            try:
                return await awaitable
            finally:
                self._stop = None
        raise InterruptedWaitError if self._interrupted else DeadlineError


class _Stepwise(Awaitable[T]):
    """Drives an awaitable; arms the timer only after its first step did not finish it."""

    __slots__ = ("_awaitable", "_guard")

    def __init__(self, guard: Guard, awaitable: Awaitable[T]) -> None:
        self._guard = guard
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._awaitable.__await__()
        try:
            trap = steps.send(None)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        return (yield from self._finish(steps, trap))

    def _finish(self, steps: Generator[Any, Any, T], trap: Any) -> Generator[Any, Any, T]:
        guard = self._guard
        task = asyncio.current_task()
        if task is None:  # pragma: no cover - an await always runs in a task
            raise RuntimeError("not in a task")
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                task.cancel()

        deadline = guard._deadline()  # noqa: SLF001 - one unit with Guard
        timer = None if deadline == math.inf else task.get_loop().call_at(deadline, stop)
        guard._stop = stop  # noqa: SLF001
        try:
            while True:
                try:
                    sent = yield trap
                except BaseException as error:  # noqa: BLE001 - passed on to where it belongs
                    trap = steps.throw(error)
                else:
                    trap = steps.send(sent)
        except StopIteration as finished:
            if stopped:  # the cancellation came too late to be delivered: it is still due
                task.uncancel()
            return finished.value  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            # Someone else may have cancelled as well: then theirs is the one to pass on.
            if stopped and task.uncancel() == 0:
                raise (InterruptedWaitError if guard._interrupted else DeadlineError) from None  # noqa: SLF001
            raise
        except BaseException:
            if stopped:
                task.uncancel()
            raise
        finally:
            guard._stop = None  # noqa: SLF001
            if timer is not None:
                timer.cancel()
