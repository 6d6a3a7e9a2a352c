"""The endpoint contract as code: every promise of `disco/endpoints/contract.py` that can be observed.

A check is an async function of a `Subject` and an endpoint that is idle. Those of `conformance_writing`,
`conformance_stopping` and `conformance_following` are added to `CHECKS` when these are imported; `test_conformance.py`
runs each on every endpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import sniffio
from promptly import CPU_S, WITHIN_S, Since, cpu_s

from disco.endpoints.contract import Attempt, Endpoint
from disco.events import Delta, DeltaKind, Ended, Started
from disco.request import Prefix, Request


@dataclass(frozen=True)
class Subject:
    """What is known of an endpoint under test.

    Attributes:
        context_tokens: prompt and answer together.
        exact: the text is the same whatever was cached: no floating-point arithmetic is involved.
        prompt_s: how much work a cancelled attempt may still make, in seconds of processor time.
        within_s: how long it may go on, with room for a busy machine.
        work_s: seconds of processor time the endpoint has used so far; with a simulated one, nothing works.
        long_tokens: length of a prompt whose prefill is long enough to be cancelled in the middle.
        limits: what the model's server (not the endpoint) is known to get wrong: "max_completion_tokens" (it
            ignores it), "context" (a prompt too long for it is an empty stream).
    """

    context_tokens: int = 2048
    exact: bool = False
    prompt_s: float = CPU_S
    within_s: float = WITHIN_S
    work_s: Callable[[], float] = cpu_s
    long_tokens: int = 1400
    limits: frozenset[str] = frozenset()


Check = Callable[[Subject, Endpoint], Awaitable[None]]
CHECKS: list[Check] = []
_NUMBERS = itertools.count(1000)


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


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


async def collect(attempt: Attempt) -> tuple[list[list[Delta]], Ended]:
    """Iterate to the end; the rules of iteration are checked on the way."""
    batches: list[list[Delta]] = []
    ended = None
    first = True
    async for event in attempt:
        assert ended is None, "something came after Ended"
        if isinstance(event, Started):
            assert first, "Started is not the first event"
        elif isinstance(event, Ended):
            ended = event
        else:
            assert isinstance(event, list)
            assert event, "an empty batch"
            assert all(isinstance(delta, Delta) for delta in event)
            batches.append(event)
        first = False
    assert ended is not None, "iteration stopped without Ended"
    for _ in range(3):
        await it_has_stopped(attempt)
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
    event = await next_event(attempt)
    while all(delta.kind is DeltaKind.ROLE for delta in event):
        event = await next_event(attempt)


# ---------------------------------------------------------------- what is left


def resources() -> dict[str, int]:
    """What a forgotten attempt would leave behind, by kind."""
    # The loops' own workers (asyncio looks host names up in one) belong to no attempt.
    loops = ("asyncio_", "Trio thread", "AnyIO worker")
    found = {"threads": sum(not thread.name.startswith(loops) for thread in threading.enumerate())}
    if sniffio.current_async_library() == "trio":
        import trio

        found["tasks"] = trio.lowlevel.current_statistics().tasks_living
    else:
        import asyncio

        found["tasks"] = len(asyncio.all_tasks())
    with contextlib.suppress(OSError):
        found["sockets"] = sum(_is_socket(fd) for fd in Path("/proc/self/fd").iterdir())
    return found


def _is_socket(path: Path) -> bool:
    try:
        return str(path.readlink()).startswith("socket:")
    except OSError:
        return False


async def nothing_left(before: dict[str, int], subject: Subject) -> None:
    """Wait until no more is there than before; a closed socket may take the loop a moment."""
    began = since(subject)
    while any(resources()[kind] > before[kind] for kind in before):
        left = f"left running: {resources()}, before: {before}"
        began.check(subject.prompt_s, subject.within_s, left)
        await anyio.sleep(0.02)


def since(subject: Subject) -> Since:
    """A stopwatch of what the subject does from now on."""
    return Since(subject.work_s, anyio.current_time)


async def soon(subject: Subject, what: Callable[[], Awaitable[object]]) -> None:
    """It is done soon, or given up."""
    began = since(subject)
    with anyio.fail_after(subject.within_s):
        await what()
    began.check(subject.prompt_s, subject.within_s)


async def used(endpoint: Endpoint) -> dict[str, int]:
    """What there is once the endpoint has served a request and is idle again."""
    await complete(endpoint, ask(max_tokens=2))
    return resources()


async def prompt_next(subject: Subject, endpoint: Endpoint) -> None:
    """The next attempt works, and need not wait for what was cancelled."""
    began = since(subject)
    _, tokens, ended, _ = await complete(endpoint, ask("Say hello.", max_tokens=2))
    assert tokens <= 2
    assert ended.finish_reason in ("stop", "length")
    began.check(subject.prompt_s + 1.0, subject.within_s)
