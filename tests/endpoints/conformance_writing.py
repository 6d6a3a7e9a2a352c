"""The contract of devices: turns, parking, warm followers, progress; see `conformance`."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack

import anyio
import pytest

from disco.events import Started, Usage
from disco.request import Prefix
from disco.testing import stopping
from disco.testing.asking import (
    ask,
    collect,
    complete,
    endless,
    first_content,
    follower,
    fresh,
    it_has_stopped,
    long_prompt,
    next_event,
    parked,
    same,
    text_of,
)
from tests.endpoints.conformance import check_of_devices, needs

STORY = "Once upon a time there was a mill by the river, and the miller had three sons. "


@check_of_devices
async def an_attempt_that_waits_has_not_begun(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    async with AsyncExitStack() as stack:
        for _ in range(subject.slots):
            assert endpoint.capabilities().waiting in (0, None)
            first = await stack.enter_async_context(endpoint.open(endless(subject)))
            await first_content(first)
        assert endpoint.capabilities().waiting == 1
        async with endpoint.open(fresh()) as second:
            with anyio.move_on_after(0.1):
                await anext(second)
                pytest.fail("one more at once")
            assert second.usage == Usage()
            assert second.progress is None
    assert endpoint.capabilities().waiting in (0, 1)  # a job that was just stopped may still leave
    await stopping.prompt_next(subject, endpoint)


@check_of_devices
@needs("progress")
async def progress_is_told_while_it_reads(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    rows, seen = 50, []  # all of it is read here, in several batches
    async with endpoint.open(fresh(rows)) as attempt, anyio.create_task_group() as group:
        assert attempt.progress is None

        async def look():
            while True:
                seen.append(attempt.progress)
                await anyio.sleep(0.005)

        group.start_soon(look)
        began_at = anyio.current_time()
        await next_event(attempt)  # text, or an end: the model may have nothing to say
        took_s = anyio.current_time() - began_at
        group.cancel_scope.cancel()
        last = attempt.progress
    assert last.tokens_done == last.tokens_total > 4 * rows
    told = [one.tokens_done for one in seen if one is not None]
    assert told == sorted(told)
    assert len(set(told)) > 2
    assert last.prefill_tps > 0.5 * last.tokens_total / took_s


@check_of_devices
@needs("parks")
async def parking(subject, endpoint):
    request = fresh(45, max_tokens=5)  # so that there is a prefill to be parked in
    attempt, told = endpoint.open(request), []

    async def park():
        await anyio.sleep(0.01)
        told.append(attempt.park())

    async with attempt, anyio.create_task_group() as group:
        group.start_soon(park)
        batches, ended = await collect(attempt)
    assert (told, text_of(batches), ended.finish_reason) == ([True], "", "parked")
    assert attempt.usage.prompt_tokens > 100
    assert attempt.usage.completion_tokens == 0
    assert not attempt.park()
    _, _, _, warm = await complete(endpoint, request)
    assert warm.usage.cached_tokens >= 0.9 * warm.usage.prompt_tokens - 8  # its prefill was kept


@check_of_devices
@needs("follows")
async def a_follower_reads_once_and_never_writes(subject, endpoint):
    request = fresh(20)
    async with follower(endpoint, request) as attempt:  # it still reads when it has been told thrice
        started = await anext(attempt)
        for n in (1, 2, 3):
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))
        before = (await parked(attempt)).usage
        assert before == attempt.usage
        assert started == Started(before.cached_tokens)
        assert before.prompt_tokens > 120
        for n in (4, 5):
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))
            now = (await parked(attempt)).usage
            # The end of the old text may be cut into other tokens in the new one, and is read again then.
            assert 15 <= now.prompt_tokens - before.prompt_tokens <= 30
            assert now.cached_tokens <= before.cached_tokens + 1
            before = now
        progress = attempt.progress
        assert progress.tokens_done == progress.tokens_total
        assert abs(progress.tokens_total - now.prompt_tokens) <= 3
        assert now.completion_tokens == 0
        with anyio.move_on_after(0.1):
            await anext(attempt)
            pytest.fail("there was nothing more to read")
    assert attempt.usage == now
    assert not attempt.extend(Prefix("Once"))
    assert not attempt.follow()
    _, tokens, _, warm = await complete(endpoint, request, Prefix(STORY * 5, tokens=2))
    assert tokens > 0
    assert warm.usage.cached_tokens >= warm.usage.prompt_tokens - 1
    assert warm.usage.prompt_tokens == progress.tokens_total


@check_of_devices
@needs("follows", "parks")
async def an_attempt_can_become_a_follower_which_leaves_the_model_to_others_and_can_end(subject, endpoint):
    async with endpoint.open(ask("Tell me a long story. " * 6, max_tokens=500)) as attempt:
        await first_content(attempt)
        assert attempt.follow()
        first = (await parked(attempt)).usage
        with anyio.fail_after(subject.within_s):
            while endpoint.capabilities().waiting:  # noqa: ASYNC110 - it is another thread's state
                await anyio.sleep(0.005)
        await complete(endpoint, ask("Something else, so that the cache is taken.", max_tokens=4))
        assert attempt.extend(Prefix(STORY, tokens=20))
        again = (await parked(attempt)).usage
        assert attempt.park()
        assert (await collect(attempt))[1].finish_reason == "parked"
        if (
            subject.slots == 1
        ):  # all but the template's first tokens had to be computed again, and counts again
            assert again.prompt_tokens - again.cached_tokens > 1.7 * first.prompt_tokens - first.cached_tokens


@check_of_devices
@needs("follows")
async def a_follower_can_be_stopped_at_any_time(subject, endpoint):
    before = await stopping.used(endpoint)
    more = Prefix("river " * subject.long_tokens, tokens=5)
    cases = [  # the request, what a follower that waits is told, and who stops it
        (long_prompt(subject), None, stopping.cancelled),
        (ask(), Prefix(), stopping.cancelled),
        (ask(), Prefix(), stopping.closed_twice_by_other_tasks),
        (ask(), more, stopping.cancelled),
    ]
    for request, told, stop in cases:
        attempt = follower(endpoint, request)
        if told is not None:
            await parked(attempt)
        if told:
            attempt.extend(told)
        await stopping.soon(subject, stop, attempt)
        await attempt.aclose()
        await it_has_stopped(attempt)
        await stopping.nothing_left(before, subject)
    await stopping.prompt_next(subject, endpoint)


@check_of_devices
@needs("logp")
async def log_probabilities_are_given_to_those_who_want_them(subject, endpoint):
    texts = []
    for wants in (frozenset(), frozenset({"logp"})):
        async with endpoint.open(ask(max_tokens=10), wants=wants) as attempt:
            batches, _ = await collect(attempt)
        texts.append(text_of(batches))
        deltas = [delta for batch in batches for delta in batch if delta.tokens]
        assert [delta.logp and len(delta.logp) for delta in deltas] == [
            d.tokens if wants else None for d in deltas
        ]
        assert all(math.isfinite(one) and one <= 1e-5 for delta in deltas for one in delta.logp or ())
    same(subject, *texts)
