"""The endpoint contract as code: what can be observed of `disco/endpoints/contract.py`; here, stopping.

A check is an async function of a `Subject` and an endpoint that is idle; `test_conformance.py` runs each on every
endpoint. Others are in `conformance_writing`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from promptly import CPU_S, WITHIN_S, Since, cpu_s

from disco.endpoints.contract import Attempt, Endpoint
from disco.errors import EndpointFailure
from disco.events import Delta, DeltaKind, Ended, Parked, Progress, Started
from disco.request import Prefix, Request


@dataclass(frozen=True)
class Subject:
    """What is known of an endpoint under test."""

    context_tokens: int = 2048
    exact: bool = False  # the text is the same whatever was cached: no floating-point arithmetic is involved
    prompt_s: float = CPU_S  # how much work a cancelled attempt may still make, in seconds of processor time
    within_s: float = WITHIN_S  # how long it may go on, with room for a busy machine
    work_s: Callable[[], float] = cpu_s  # processor time used so far; when simulated, nothing works
    long_tokens: int = 1400  # of a prompt whose prefill is long enough to be cancelled in the middle
    # What the server, not the endpoint, gets wrong: it ignores "max_completion_tokens"; a prompt too long for its
    # "context" is an empty stream.
    limits: frozenset[str] = frozenset()


Check = Callable[[Subject, Endpoint], Awaitable[None]]
CHECKS: list[Check] = []
OF_DEVICES: list[Check] = []  # of endpoints with turns, warm followers and progress
_NUMBERS = itertools.count(1000)


def check(function: Check, of: list[Check] = CHECKS) -> Check:
    of.append(function)
    return function


def check_of_devices(function: Check) -> Check:
    return check(function, OF_DEVICES)


# ---------------------------------------------------------------- asking


def ask(text="Write a long story about a river and a mill.", max_tokens=12, **params) -> Request:
    params = {"temperature": 0.0, "seed": 1, "max_tokens": max_tokens, **params}
    return Request([{"role": "user", "content": text}], "smollm2-135m", params)


def fresh(rows=16, **params) -> Request:
    """A prompt that no earlier check has left in the cache."""
    return ask(f"{next(_NUMBERS)} " + "river mill water stone " * rows, **params)


def long_prompt(subject: Subject) -> Request:
    return fresh(subject.long_tokens // 4)


def endless(subject: Subject) -> Request:
    return ask(max_tokens=subject.context_tokens // 2)


async def collect(
    attempt: Attempt, progress: list[Progress] | None = None
) -> tuple[list[list[Delta]], Ended]:
    """Iterate to the end; the rules of iteration and of usage are checked on the way. `progress` gets what is told."""
    batches: list[list[Delta]] = []
    ended, first, before = None, True, attempt.usage
    async for event in attempt:
        assert ended is None, "something came after Ended"
        usage = attempt.usage
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens
        assert usage.completion_tokens >= max(before.completion_tokens, tokens_of(batches))
        if isinstance(event, Started):
            assert first, "Started is not the first event"
        elif isinstance(event, Ended):
            ended = event
            assert event.usage in (None, usage)
        elif isinstance(event, Progress):
            assert progress is not None, "progress that was not asked for"
            assert not batches, "progress behind text"
            progress.append(event)
        else:
            assert isinstance(event, list)
            assert event, "an empty batch"
            assert all(isinstance(delta, Delta) for delta in event)
            batches.append(event)
            assert usage.completion_tokens >= tokens_of(batches)
        assert usage.prompt_tokens > 0 or not batches
        first, before = False, usage
    assert ended is not None, "iteration stopped without Ended"
    for delta in itertools.chain(*batches):
        assert "\ufffd" not in delta.text
        delta.text.encode("utf-8", errors="strict")
    for _ in range(3):
        await it_has_stopped(attempt)
    assert attempt.usage == before
    return batches, ended


async def it_has_stopped(attempt: Attempt) -> None:
    with pytest.raises(StopAsyncIteration):
        await anext(attempt)


async def next_event(attempt: Attempt):
    """The next event that is not `Started`."""
    while isinstance(event := await anext(attempt), Started):
        pass
    return event


async def complete(endpoint: Endpoint, request: Request, prefix: Prefix | None = None):
    """Text, tokens, end and attempt of a whole answer."""
    async with endpoint.open(request) if prefix is None else endpoint.open(request, prefix) as attempt:
        batches, ended = await collect(attempt)
    return text_of(batches), tokens_of(batches), ended, attempt


def text_of(batches: list[list[Delta]]) -> str:
    return "".join(delta.text for batch in batches for delta in batch)


def tokens_of(batches: list[list[Delta]]) -> int:
    return sum(d.tokens for batch in batches for d in batch if d.kind is not DeltaKind.ROLE)


async def first_content(attempt: Attempt) -> None:
    while all(delta.kind is DeltaKind.ROLE for delta in await next_event(attempt)):
        pass


def same(subject: Subject, one: str, other: str) -> None:
    if subject.exact:
        assert one == other
    else:  # a cached prompt changes the arithmetic in its last digits, seldom the first word
        assert one.split()[:1] == other.split()[:1]


# ---------------------------------------------------------------- what is left


def resources() -> dict[str, int]:
    """What a forgotten attempt would leave behind, by kind."""
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


async def soon(subject: Subject, what: Callable[..., Awaitable[object]], *of: object, more_s=0.0) -> None:
    """It is done soon, or given up."""
    began = Since(subject.work_s, anyio.current_time)
    with anyio.fail_after(subject.within_s):
        await what(*of)
    began.check(subject.prompt_s + more_s, subject.within_s)


async def used(endpoint: Endpoint) -> dict[str, int]:
    """What there is once the endpoint has served a request and is idle again."""
    await complete(endpoint, ask(max_tokens=2))
    return resources()


async def prompt_next(subject: Subject, endpoint: Endpoint) -> None:
    """The next attempt works, and need not wait for what was cancelled."""
    await soon(subject, complete, endpoint, ask("Say hello.", max_tokens=2), more_s=1.0)


def follower(endpoint, request):
    attempt = endpoint.open(request)
    assert attempt.follow()
    return attempt


async def parked(attempt) -> Parked:
    event = await next_event(attempt)
    assert isinstance(event, Parked)
    return event


# ---------------------------------------------------------------- stopping: at once, whoever does it


async def read_until_closed(attempt):
    """Iterate an attempt that is ended from elsewhere."""
    with contextlib.suppress(EndpointFailure, anyio.ClosedResourceError):
        async for event in attempt:
            assert not isinstance(event, Ended)


async def cancelled(attempt):
    """The iterating task is cancelled."""
    with anyio.move_on_after(0.05) as scope:
        await read_until_closed(attempt)
    assert scope.cancelled_caught, "it was over before it was cancelled"
    await attempt.aclose()


async def parked_and_cancelled(attempt):
    assert attempt.park()
    await cancelled(attempt)


async def closed_under_cancellation(attempt):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await attempt.aclose()


async def closed_twice_by_other_tasks(attempt):
    async with anyio.create_task_group() as group:
        group.start_soon(read_until_closed, attempt)
        await anyio.sleep(0.05)
        group.start_soon(attempt.aclose)
        group.start_soon(attempt.aclose)


@check
async def stopping_before_the_first_token(subject, endpoint):
    before = await used(endpoint)
    cancel = parked_and_cancelled if endpoint.capabilities().parks else cancelled
    for stop in (cancel, closed_twice_by_other_tasks):
        attempt = endpoint.open(long_prompt(subject))
        await soon(subject, stop, attempt)
        await nothing_left(before, subject)
        assert attempt.usage.completion_tokens == 0, "the prompt is too short to be stopped in"
        await it_has_stopped(attempt)
        await prompt_next(subject, endpoint)


@check
async def stopping_in_mid_answer(subject, endpoint):
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


@check
async def closing_the_endpoint_stops_its_attempts(subject, endpoint):
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
