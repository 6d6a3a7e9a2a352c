"""Checks of stopping: at once, whoever does it, and with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from disco.endpoints.contract import Attempt, Endpoint
from disco.errors import EndpointFailure
from disco.events import Ended
from disco.testing.asking import (
    ask,
    complete,
    endless,
    first_content,
    follower,
    it_has_stopped,
    long_prompt,
    parked,
)
from disco.testing.stopwatch import Since
from disco.testing.subject import Check, Subject

__all__ = [
    "STOPPING",
    "cancelled",
    "closed_twice_by_other_tasks",
    "closed_under_cancellation",
    "nothing_left",
    "prompt_next",
    "read_until_closed",
    "resources",
    "soon",
    "used",
]


# ---------------------------------------------------------------- what is left


def resources() -> dict[str, int]:
    """Return what a forgotten attempt would leave behind, by kind. Sockets are counted on Linux only."""
    loops = ("asyncio_", "Trio thread", "AnyIO worker")  # their own workers belong to no attempt
    return {
        "threads": sum(not thread.name.startswith(loops) for thread in threading.enumerate()),
        "tasks": len(anyio.get_running_tasks()),
        "sockets": sum("socket:" in os.path.realpath(fd) for fd in Path("/proc/self/fd").glob("*")),
    }


async def nothing_left(before: dict[str, int], subject: Subject) -> None:
    """Wait until no more is there than before; a closed socket may take the loop a moment."""
    began = Since(subject.work_s, anyio.current_time)
    while any(resources()[kind] > before[kind] for kind in before):
        left = f"left running: {resources()}, before: {before}"
        began.check(subject.prompt_s, subject.within_s, left)
        await anyio.sleep(0.02)


async def soon(
    subject: Subject, what: Callable[..., Awaitable[object]], *of: object, more_s: float = 0.0
) -> None:
    """Do it; check that it is done soon, or given up."""
    began = Since(subject.work_s, anyio.current_time)
    with anyio.fail_after(subject.within_s):
        await what(*of)
    began.check(subject.prompt_s + more_s, subject.within_s)


async def used(endpoint: Endpoint) -> dict[str, int]:
    """Return what there is once the endpoint has served a request and is idle again."""
    await complete(endpoint, ask(max_tokens=2))
    return resources()


async def prompt_next(subject: Subject, endpoint: Endpoint) -> None:
    """Check that the next attempt works, and need not wait for what was cancelled."""
    await soon(subject, complete, endpoint, ask("Say hello.", max_tokens=2), more_s=1.0)


# ---------------------------------------------------------------- who stops it


async def read_until_closed(attempt: Attempt) -> None:
    """Iterate an attempt that is ended from elsewhere."""
    with contextlib.suppress(EndpointFailure, anyio.ClosedResourceError):
        async for event in attempt:
            assert not isinstance(event, Ended)


async def cancelled(attempt: Attempt) -> None:
    """Cancel the iterating task."""
    with anyio.move_on_after(0.05) as scope:
        await read_until_closed(attempt)
    assert scope.cancelled_caught, "it was over before it was cancelled"
    await attempt.aclose()


async def parked_and_cancelled(attempt: Attempt) -> None:
    """Cancel the iterating task of an attempt that was told to park."""
    assert attempt.park()
    await cancelled(attempt)


async def closed_under_cancellation(attempt: Attempt) -> None:
    """Close it in a scope that is cancelled already."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await attempt.aclose()


async def closed_twice_by_other_tasks(attempt: Attempt) -> None:
    """Close it while another task iterates it."""
    async with anyio.create_task_group() as group:
        group.start_soon(read_until_closed, attempt)
        await anyio.sleep(0.05)
        group.start_soon(attempt.aclose)
        group.start_soon(attempt.aclose)


# ---------------------------------------------------------------- the checks


async def stopping_before_the_first_token(subject: Subject, endpoint: Endpoint) -> None:
    """A prompt that is still read is given up at once, and what was not written is not charged."""
    before = await used(endpoint)
    cancel = parked_and_cancelled if endpoint.capabilities().parks else cancelled
    for stop in (cancel, closed_twice_by_other_tasks):
        attempt = endpoint.open(long_prompt(subject))
        await soon(subject, stop, attempt)
        await nothing_left(before, subject)
        assert attempt.usage.completion_tokens == 0, "the prompt is too short to be stopped in"
        await it_has_stopped(attempt)
        await prompt_next(subject, endpoint)


async def stopping_in_mid_answer(subject: Subject, endpoint: Endpoint) -> None:
    """An answer is given up at once; what was read and written is charged, and stays so."""
    before = await used(endpoint)
    for stop in (cancelled, closed_under_cancellation, closed_twice_by_other_tasks):
        attempt = endpoint.open(endless(subject))
        await first_content(attempt)
        await soon(subject, stop, attempt)
        await soon(subject, attempt.aclose)
        charged = attempt.usage
        assert charged.prompt_tokens > 0
        assert charged.completion_tokens > 0
        await nothing_left(before, subject)
        await it_has_stopped(attempt)
        await prompt_next(subject, endpoint)
        assert attempt.usage == charged


async def closing_the_endpoint_stops_its_attempts(subject: Subject, endpoint: Endpoint) -> None:
    """Nothing runs on, and closing is idempotent. The endpoint cannot be used afterwards."""
    before = resources()
    followers = [follower(endpoint, ask())] if endpoint.capabilities().follows else []
    for attempt in followers:
        await parked(attempt)
    writing = endpoint.open(endless(subject))
    await first_content(writing)
    with anyio.fail_after(subject.within_s):
        async with anyio.create_task_group() as group:
            for attempt in followers:
                group.start_soon(read_until_closed, attempt)
            await anyio.sleep(0.05)
            await soon(subject, endpoint.aclose)
        await endpoint.aclose()
        await read_until_closed(writing)
    for attempt in (writing, *followers):
        await attempt.aclose()
    await nothing_left(before, subject)


STOPPING: tuple[Check, ...] = (
    stopping_before_the_first_token,
    stopping_in_mid_answer,
    closing_the_endpoint_stops_its_attempts,
)
"""In the order in which they are run."""
