"""The contract of what assisted answers need: reports of a prefill, agreement, pauses; see `conformance`."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from disco.endpoints.contract import PAUSE_HOLD_S
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Parked, Progress, Started
from disco.request import Prefix
from disco.testing import stopping
from disco.testing.answering import rises
from disco.testing.asking import (
    ask,
    collect,
    complete,
    endless,
    first_content,
    follower,
    fresh,
    it_has_stopped,
    parked,
    same,
    text_of,
    tokens_of,
)
from tests.endpoints.conformance import check_of_devices, needs
from tests.endpoints.conformance_writing import STORY

REPORTS, LOGP = frozenset({"progress"}), frozenset({"logp"})


@check_of_devices
@needs("follows", "progress")
async def a_follower_reports_each_text_that_it_reads(subject, endpoint):
    async with endpoint.open(fresh(20), wants=REPORTS) as attempt:
        assert attempt.follow()
        assert isinstance(await anext(attempt), Started)
        for n in (1, 5):
            told = []
            while isinstance(event := await anext(attempt), Progress):
                told.append(event)
            assert isinstance(event, Parked)
            rises(told)
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))


# ---------------------------------------------------------------- agreement


async def agreement(endpoint, *prefixes, between=False):
    """What a follower says of each prefix: the log probabilities of its new tokens."""
    found = []
    async with endpoint.open(ask(), wants=LOGP) as attempt:
        assert attempt.follow()
        assert (await parked(attempt)).logp == ()
        for text in prefixes:
            if between:
                await complete(endpoint, ask("Something else, so that the cache is taken.", max_tokens=2))
            assert attempt.extend(Prefix(text))
            found.append((await parked(attempt)).logp)
    return found


def joined(found):
    return [one for some in found for one in some]


@check_of_devices
@needs("follows", "logp")
async def a_follower_says_of_each_new_token_once_how_probable_it_is(subject, endpoint):
    near = {"abs": 1e-9 if subject.exact else 0.5}  # the sizes of batches change the arithmetic
    async with endpoint.open(ask(max_tokens=24), wants=LOGP) as attempt:
        batches, _ = await collect(attempt)
    own = joined(delta.logp for batch in batches for delta in batch if delta.tokens)
    text = text_of(batches)
    (read,) = await agreement(endpoint, text)
    assert list(read) == pytest.approx(own[: len(read)], **near)
    assert len(read) in (len(own), len(own) - 1)  # an end token is no text

    words = [STORY[:at] for at, char in enumerate(STORY) if char == " "]
    (whole,) = await agreement(endpoint, words[-1])
    for between in (False, True):
        pieces = joined(await agreement(endpoint, words[5], words[6], words[-1], between=between))
        assert pieces == pytest.approx(whole, **near)
    inside = await agreement(endpoint, STORY[:8], STORY[:15], STORY[:40], words[-1])
    assert 0 < len(joined(inside)) <= len(whole) + 3  # a cut inside a word may divide a token
    # Of text that was taken back, what remains counts no second time.
    kept = words[4]
    _, other = await agreement(endpoint, words[-1], f"{kept} fell into the water")
    _, same = await agreement(endpoint, kept, f"{kept} fell into the water")
    assert len(other) >= 3  # the space before "fell" is in both texts
    assert list(other) == pytest.approx(same[-len(other) :], **near)

    async with endpoint.open(ask(), wants=LOGP) as attempt:  # it gets more while it reads
        assert attempt.follow()
        assert isinstance(await anext(attempt), Started)
        for text in (*words[::3], words[-1]):
            assert attempt.extend(Prefix(text))
        assert list((await parked(attempt)).logp) == pytest.approx(whole, **near)


@check_of_devices
@needs("follows")
async def a_follower_with_more_text_than_context_fails_as_such(subject, endpoint):
    async with follower(endpoint, ask()) as attempt:
        assert (await parked(attempt)).logp is None
        assert attempt.extend(Prefix("river " * subject.context_tokens))
        with pytest.raises(EndpointFailure) as failure:
            await parked(attempt)
        assert failure.value.kind is FailureKind.CONTEXT_LENGTH
        assert not attempt.extend(Prefix("Once"))
    await stopping.prompt_next(subject, endpoint)


# ---------------------------------------------------------------- pauses


class Reading:
    """An answer that is read in the background."""

    def __init__(self, attempt):
        self.attempt, self.batches, self.ended = attempt, [], None
        self.begun = anyio.Event()

    async def run(self):
        async for event in self.attempt:
            if isinstance(event, list):
                self.batches.append(event)
                self.begun.set()
            elif isinstance(event, Ended):
                self.ended = event


@asynccontextmanager
async def paused(endpoint, request):
    """An answer that was paused in its beginning; on leaving, it is read to its end."""
    async with endpoint.open(request) as attempt, anyio.create_task_group() as group:
        reading = Reading(attempt)
        group.start_soon(reading.run)
        await reading.begun.wait()
        assert attempt.pause()
        await anyio.sleep(0.3)  # what was written before still comes
        assert reading.ended is None, "the answer is too short to be paused in"
        yield reading


@check_of_devices
@needs("pauses")
async def a_paused_answer_goes_on_as_if_it_had_not_been(subject, endpoint):
    for params in ({"temperature": 0.0}, {"temperature": 1.2, "seed": 5, "frequency_penalty": 0.5}):
        request = ask(max_tokens=24, **params)
        await complete(endpoint, ask(max_tokens=2))  # so that both answers find the same in the cache
        expected, _, ended, whole = await complete(endpoint, request)
        async with paused(endpoint, request) as reading:
            before, usage = text_of(reading.batches), reading.attempt.usage
            await anyio.sleep(0.2)
            assert (text_of(reading.batches), reading.attempt.usage) == (before, usage)
            assert endpoint.capabilities().waiting == (subject.slots == 1)
            assert reading.attempt.resume()
        assert text_of(reading.batches) == expected
        assert (reading.ended, reading.attempt.usage) == (ended, whole.usage)


@check_of_devices
@needs("pauses")
async def a_paused_attempt_keeps_the_model_for_a_while_and_then_gives_way(subject, endpoint):
    request = ask(max_tokens=40)
    expected, tokens, _, whole = await complete(endpoint, request)
    async with paused(endpoint, request) as reading, AsyncExitStack() as stack:
        before = tokens_of(reading.batches)
        began_at = anyio.current_time()
        for number in range(subject.slots - 1):  # nobody waits for the model yet
            text = f"Tell me {number + 2} stories of the sea."
            other = await stack.enter_async_context(
                endpoint.open(ask(text, max_tokens=subject.context_tokens // 2))
            )
            await first_content(other)
        await complete(endpoint, ask("Something else, so that the cache is taken.", max_tokens=4))
        assert anyio.current_time() - began_at > PAUSE_HOLD_S - 0.5  # it was paused 0.3 s before
        await stack.aclose()
        with anyio.fail_after(subject.within_s):
            while endpoint.capabilities().waiting:  # noqa: ASYNC110 - it is another thread's state
                await anyio.sleep(0.005)
        assert tokens_of(reading.batches) == before
        assert reading.attempt.resume()
    same(subject, text_of(reading.batches), expected)
    assert abs(tokens_of(reading.batches) - tokens) <= (0 if subject.exact else 30)
    # What was displaced, the question and the text so far, was read again, and counts again.
    assert reading.attempt.usage.prompt_tokens >= whole.usage.prompt_tokens + before + 8


@check_of_devices
@needs("pauses", "parks", "follows")
async def a_paused_attempt_can_be_stopped_or_told_otherwise_at_any_time(subject, endpoint):
    before = await stopping.used(endpoint)
    for stop in (
        stopping.cancelled,
        stopping.closed_under_cancellation,
        stopping.closed_twice_by_other_tasks,
    ):
        attempt = endpoint.open(endless(subject))
        await first_content(attempt)
        assert attempt.pause()
        await anyio.sleep(0.1)
        await stopping.soon(subject, stop, attempt)
        await attempt.aclose()
        assert attempt.usage.completion_tokens > 0
        await stopping.nothing_left(before, subject)
        await it_has_stopped(attempt)
        assert not attempt.resume()
        await stopping.prompt_next(subject, endpoint)
    for turn in ("park", "follow"):
        async with endpoint.open(endless(subject)) as attempt:
            await first_content(attempt)
            assert attempt.pause()
            await anyio.sleep(0.1)
            assert getattr(attempt, turn)()
            assert not attempt.pause()
            if turn == "park":
                assert (await collect(attempt))[1].finish_reason == "parked"
            else:
                await parked(attempt)
                assert attempt.extend(Prefix(STORY))
                await parked(attempt)


@check_of_devices
@needs("pauses")
async def closing_the_endpoint_ends_a_paused_attempt(subject, endpoint):
    before = stopping.resources()
    attempt = endpoint.open(endless(subject))
    await first_content(attempt)
    assert attempt.pause()
    await anyio.sleep(0.1)
    await stopping.soon(subject, endpoint.aclose)
    with anyio.fail_after(subject.within_s):
        await stopping.read_until_closed(attempt)
    await attempt.aclose()
    await stopping.nothing_left(before, subject)
