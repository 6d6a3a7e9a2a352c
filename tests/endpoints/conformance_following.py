"""The endpoint contract about turns, warm followers, progress and log probabilities; see `conformance`."""

from __future__ import annotations

import math

import anyio
import pytest

from disco.events import Parked, Started, Usage
from disco.request import Prefix
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
    next_event,
    nothing_left,
    prompt_next,
    soon,
    text_of,
    used,
)
from tests.endpoints.conformance_stopping import (
    cancelled,
    closed,
    closed_twice_by_other_tasks,
    read_until_closed,
)
from tests.endpoints.conformance_writing import same

STORY = "Once upon a time there was a mill by the river, and the miller had three sons. "


@check
async def an_attempt_says_when_its_turn_came(subject, endpoint):
    announces = endpoint.capabilities().announces
    request = fresh()
    for cold in (True, False):
        async with endpoint.open(request) as attempt:
            events = [event async for event in attempt]
        started = [event for event in events if isinstance(event, Started)]
        if not announces:
            assert not started
            return
        assert isinstance(events[0], Started)
        assert len(started) == 1
        assert started[0].cached_tokens == attempt.usage.cached_tokens
        assert (started[0].cached_tokens < 60) is cold
    assert endpoint.capabilities().waiting == 0


@check
async def an_attempt_that_waits_has_not_begun(subject, endpoint):
    if not endpoint.capabilities().announces:
        pytest.skip("does not say when an attempt's turn has come")
    await complete(endpoint, ask(max_tokens=2))
    async with endpoint.open(endless(subject)) as first:
        await first_content(first)
        assert endpoint.capabilities().waiting == 1
        async with endpoint.open(fresh()) as second:
            with anyio.move_on_after(0.1):
                await anext(second)
                pytest.fail("two at once")
            assert second.usage == Usage()
            assert second.progress is None
    assert endpoint.capabilities().waiting in (0, 1)  # a job that was just stopped may still leave
    await prompt_next(subject, endpoint)


def follower(endpoint, request, prefix=None):
    attempt = endpoint.open(request) if prefix is None else endpoint.open(request, prefix)
    assert attempt.follow()
    return attempt


async def parked(attempt) -> Parked:
    event = await anext(attempt)
    if isinstance(event, Started):
        event = await anext(attempt)
    assert isinstance(event, Parked)
    return event


def skip_unless_it_follows(endpoint):
    if not endpoint.capabilities().follows:
        attempt = endpoint.open(ask())
        assert not attempt.follow()
        assert not attempt.extend(Prefix("Once"))
        pytest.skip("has no warm followers")


@check
async def a_follower_reads_and_never_writes(subject, endpoint):
    skip_unless_it_follows(endpoint)
    request, text = fresh(), ""
    async with follower(endpoint, request) as attempt:
        before = (await parked(attempt)).usage
        assert before == attempt.usage
        assert before.prompt_tokens > 60
        for _ in range(3):
            text += STORY
            assert attempt.extend(Prefix(text, tokens=len(text) // 4))
            now = (await parked(attempt)).usage
            # The end of the old text may be cut into other tokens in the new one, and is read again then.
            assert 15 <= now.prompt_tokens - before.prompt_tokens <= 30
            assert now.cached_tokens <= before.cached_tokens + 1
            before = now
        progress = attempt.progress
        assert progress is not None
        assert progress.tokens_done == progress.tokens_total
        assert abs(progress.tokens_total - now.prompt_tokens) <= 3
        assert now.completion_tokens == 0
    assert attempt.usage == now
    assert not attempt.extend(Prefix("Once"))
    assert not attempt.follow()
    prefix = Prefix(text, tokens=2)
    _, tokens, _, warm = await complete(endpoint, request, prefix)
    assert tokens > 0
    assert warm.usage.cached_tokens >= warm.usage.prompt_tokens - 1
    assert warm.usage.prompt_tokens == progress.tokens_total


@check
async def what_a_follower_is_told_while_it_reads_is_read_once(subject, endpoint):
    skip_unless_it_follows(endpoint)
    async with follower(endpoint, fresh(20)) as attempt:  # it still reads when it has been told thrice
        assert isinstance(await anext(attempt), Started)
        for n in (1, 2, 3):
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))
        await parked(attempt)
        with anyio.move_on_after(0.1):
            await anext(attempt)
            pytest.fail("there was nothing more to read")


@check
async def a_follower_leaves_the_model_to_others(subject, endpoint):
    skip_unless_it_follows(endpoint)
    request = fresh()
    async with follower(endpoint, request) as attempt:
        first = (await parked(attempt)).usage
        with anyio.fail_after(subject.within_s):
            while endpoint.capabilities().waiting:  # noqa: ASYNC110 - it is another thread's state
                await anyio.sleep(0.005)
        await complete(endpoint, ask("Something else, so that the cache is taken.", max_tokens=4))
        assert attempt.extend(Prefix(STORY, tokens=20))
        again = (await parked(attempt)).usage
        # All but the template's first tokens had to be computed again, and counts again.
        assert again.prompt_tokens - again.cached_tokens > 1.7 * first.prompt_tokens - first.cached_tokens


@check
async def an_attempt_can_become_a_follower_and_a_follower_end(subject, endpoint):
    skip_unless_it_follows(endpoint)
    async with endpoint.open(endless(subject)) as attempt:
        await first_content(attempt)
        assert attempt.follow()
        assert isinstance(await anext(attempt), Parked)
        assert attempt.extend(Prefix(STORY, tokens=20))
        await parked(attempt)
        assert attempt.park()
        _, ended = await collect(attempt)
        assert ended.finish_reason == "parked"
    await prompt_next(subject, endpoint)


@check
async def a_follower_can_be_stopped_at_any_time(subject, endpoint):
    skip_unless_it_follows(endpoint)
    before = await used(endpoint)
    more = Prefix("river " * subject.long_tokens, tokens=5)
    cases = [  # the request, what a follower that waits is told, and who stops it
        (long_prompt(subject), None, cancelled),
        (ask(), Prefix(), cancelled),
        (ask(), Prefix(), closed),
        (ask(), Prefix(), closed_twice_by_other_tasks),
        (ask(), more, cancelled),
    ]
    for request, told, stop in cases:
        attempt = follower(endpoint, request)
        if told is not None:
            await parked(attempt)
        if told:
            attempt.extend(told)
        await soon(subject, lambda: stop(attempt))  # noqa: B023 - called at once
        await attempt.aclose()
        await it_has_stopped(attempt)
        await nothing_left(before, subject)
    await prompt_next(subject, endpoint)


@check
async def closing_the_endpoint_ends_a_follower(subject, endpoint):
    skip_unless_it_follows(endpoint)
    attempt = follower(endpoint, ask())
    await parked(attempt)
    with anyio.fail_after(subject.within_s):
        async with anyio.create_task_group() as group:
            group.start_soon(read_until_closed, attempt)
            await anyio.sleep(0.05)
            await endpoint.aclose()
    await attempt.aclose()


@check
async def progress_is_told_while_it_reads(subject, endpoint):
    if not endpoint.capabilities().announces:
        pytest.skip("does not know")
    await complete(endpoint, ask(max_tokens=2))
    rows = 50  # all of it is read here, in several batches
    async with endpoint.open(fresh(rows)) as attempt:
        assert attempt.progress is None
        seen = []
        async with anyio.create_task_group() as group:

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
    assert last is not None
    assert last.tokens_done == last.tokens_total > 4 * rows
    told = [one.tokens_done for one in seen if one is not None]
    assert told == sorted(told)
    assert len(set(told)) > 2
    assert last.prefill_tps > 0.5 * last.tokens_total / took_s


@check
async def log_probabilities_are_given_to_those_who_want_them(subject, endpoint):
    request = ask(max_tokens=10)
    texts = []
    for wants in (frozenset(), frozenset({"logp"})):
        async with endpoint.open(request, wants=wants) as attempt:
            batches, _ = await collect(attempt)
        texts.append(text_of(batches))
        deltas = [delta for batch in batches for delta in batch if delta.tokens]
        if not wants or not endpoint.capabilities().logp:
            assert all(delta.logp is None for delta in deltas)
            continue
        for delta in deltas:
            assert delta.logp is not None
            assert len(delta.logp) == delta.tokens
            assert all(math.isfinite(one) and one <= 1e-5 for one in delta.logp)
    same(subject, *texts)
