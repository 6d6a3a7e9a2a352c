"""The endpoint contract about stopping: at once, whoever does it, and leaving nothing behind; see `conformance`."""

from __future__ import annotations

import contextlib

import anyio
import pytest

from disco.errors import EndpointFailure
from disco.events import Ended
from tests.endpoints.conformance import (
    ask,
    check,
    collect,
    complete,
    endless,
    first_content,
    fresh,
    it_has_stopped,
    long_prompt,
    nothing_left,
    prompt_next,
    resources,
    soon,
    text_of,
    used,
)


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


async def closed(attempt):
    await attempt.aclose()


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
    for stop in (cancelled, closed_twice_by_other_tasks):
        attempt = endpoint.open(long_prompt(subject))
        await soon(subject, lambda: stop(attempt))  # noqa: B023 - called at once
        await nothing_left(before, subject)
        assert attempt.usage.completion_tokens == 0, "the prompt is too short to be stopped in"
        await it_has_stopped(attempt)
        await prompt_next(subject, endpoint)


@check
async def stopping_in_mid_answer(subject, endpoint):
    before = await used(endpoint)
    for stop in (cancelled, closed, closed_under_cancellation, closed_twice_by_other_tasks):
        attempt = endpoint.open(endless(subject))
        await first_content(attempt)
        await soon(subject, lambda: stop(attempt))  # noqa: B023 - called at once
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
    attempt = endpoint.open(endless(subject))
    await first_content(attempt)
    await soon(subject, endpoint.aclose)
    await endpoint.aclose()
    with anyio.fail_after(subject.within_s):
        await read_until_closed(attempt)
    await attempt.aclose()
    await nothing_left(before, subject)


# ---------------------------------------------------------------- parking


@check
async def parking(subject, endpoint):
    if not endpoint.capabilities().parks:
        attempt = endpoint.open(ask(max_tokens=3))
        assert not attempt.park()
        await collect(attempt)
        assert not attempt.park()
        return
    request = fresh(45, max_tokens=5)  # so that there is a prefill to be parked in
    async with endpoint.open(request) as attempt:
        parked: list[bool] = []

        async def park():
            await anyio.sleep(0.01)
            parked.append(attempt.park())

        async with anyio.create_task_group() as group:
            group.start_soon(park)
            batches, ended = await collect(attempt)
        assert parked == [True]
        assert ended.finish_reason == "parked"
        assert not text_of(batches)
        assert attempt.usage.prompt_tokens > 100
        assert attempt.usage.completion_tokens == 0
        assert not attempt.park()
    _, tokens, _, warm = await complete(endpoint, request)
    assert 1 <= tokens <= 5
    assert warm.usage.cached_tokens >= 0.9 * warm.usage.prompt_tokens - 8  # its prefill was kept


@check
async def a_parked_attempt_can_be_closed(subject, endpoint):
    if not endpoint.capabilities().parks:
        pytest.skip("servers do not park")
    before = await used(endpoint)
    attempt = endpoint.open(long_prompt(subject))
    attempt.park()
    with anyio.move_on_after(0.1):
        await collect(attempt)
    await soon(subject, attempt.aclose)
    await nothing_left(before, subject)
    await prompt_next(subject, endpoint)
