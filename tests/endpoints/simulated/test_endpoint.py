"""The simulated endpoint plays exactly its script, in virtual time, and takes turns as a device does."""

import dataclasses

import anyio
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import EndpointFailure
from disco.events import Started, Usage
from disco.request import Prefix
from tests.endpoints.simulated.playing import LIMITS, PROFILES, ask, limited, play, text_of

SECONDS = SimulatedProfile(ttft_s=1.0, decode_tps=10, answer_tokens=11)  # an answer takes two


def device(profile):
    return SimulatedEndpoint("d", profile, place="device")


def run(main):
    """Run an async function in virtual time; returns (its result, virtual seconds passed)."""

    async def timed():
        started = trio.current_time()
        result = await main()
        return result, trio.current_time() - started

    return trio.run(timed, clock=trio.testing.MockClock(autojump_threshold=0))


async def collect(attempt):
    """Every event of an attempt but `Started`, with its time from now."""
    started_at = anyio.current_time()
    seen = []
    try:
        async for event in attempt:
            if not isinstance(event, Started):
                seen.append((anyio.current_time() - started_at, event))  # noqa: PERF401 - kept if it fails
    except EndpointFailure as failure:
        seen.append((anyio.current_time() - started_at, failure))
    return seen


async def next_event(attempt):
    """The next event that is not `Started`."""
    while isinstance(event := await anext(attempt), Started):
        pass
    return event


@settings(max_examples=60)
@given(PROFILES, LIMITS, st.sampled_from(["device", "server"]))
def test_the_endpoint_plays_exactly_the_script(profile, limit, place):
    endpoint = SimulatedEndpoint("e", profile, place=place, seed=4)
    seen, _ = run(lambda: collect(endpoint.open(limited(limit))))
    expected = play(profile, limited(limit), seed=[4, 1], endpoint="e")
    assert [at for at, _ in seen] == pytest.approx([at for at, _ in expected])
    plain = [e.kind if isinstance(e, EndpointFailure) else e for _, e in seen]
    assert plain == [e.kind if isinstance(e, EndpointFailure) else e for _, e in expected]
    assert endpoint.busy == 0


async def side_by_side(attempts):
    """When each attempt, begun at once in this order, ended: {number: seconds}, in the order of their ends."""
    ends = {}
    began = anyio.current_time()

    async def consume(number, attempt):
        await collect(attempt)
        ends[number] = anyio.current_time() - began

    async with anyio.create_task_group() as group:
        for number, attempt in enumerate(attempts):
            group.start_soon(consume, number, attempt)
            await anyio.wait_all_tasks_blocked()
    return ends


@pytest.mark.parametrize(("place", "seconds"), [("device", [2, 4, 6]), ("server", [2, 2, 2])])
def test_a_device_is_one_at_a_time_in_order_and_a_server_is_not(place, seconds):
    endpoint = SimulatedEndpoint("e", SECONDS, place=place)
    ends, _ = run(lambda: side_by_side([endpoint.open(ask(str(i))) for i in range(3)]))
    assert sorted(ends) == [0, 1, 2]
    assert place == "server" or list(ends) == [0, 1, 2]
    assert list(ends.values()) == pytest.approx(seconds, abs=0.1)


def test_a_device_remembers_what_it_has_prefilled():
    endpoint = device(SimulatedProfile(prefill_tps=100, decode_tps=50, answer_tokens=20))
    request = ask("word " * 200)

    async def main():
        cold = await collect(endpoint.open(request))
        warm = await collect(endpoint.open(request))
        rest = await collect(endpoint.open(request, Prefix(text_of(cold)[:40], tokens=7)))
        return cold, warm, rest, await collect(endpoint.open(ask("Something else")))

    (cold, warm, rest, other), _ = run(main)
    assert cold[0][0] > 2.0
    assert cold[-1][1].usage.cached_tokens == 0
    assert warm[0][0] == pytest.approx(0.01)
    assert warm[-1][1].usage.cached_tokens == warm[-1][1].usage.prompt_tokens - 1
    assert rest[0][0] < 0.1
    assert other[-1][1].usage.cached_tokens == 1  # only the first message's header is the same


def test_usage_of_a_cancelled_prefill_is_what_was_done_and_is_kept():
    endpoint = device(SimulatedProfile(prefill_tps=100))
    request = ask("word " * 300)

    async def main():
        attempt = endpoint.open(request)
        with anyio.move_on_after(1.5):
            await next_event(attempt)
        again = endpoint.open(request)
        await next_event(again)
        await again.aclose()
        return attempt.usage, again.usage

    (first, second), _ = run(main)
    assert first == Usage(150, 0, 0)
    assert second.cached_tokens == 150


def test_parking_while_it_writes_stops_it_at_once():
    endpoint = device(SimulatedProfile(decode_tps=0.1))

    async def main():
        attempt = endpoint.open(ask())
        await next_event(attempt)

        async def park():
            await anyio.sleep(1)
            assert attempt.park()

        async with anyio.create_task_group() as group:
            group.start_soon(park)
            return await next_event(attempt)

    ended, seconds = run(main)
    assert (ended.finish_reason, ended.usage.completion_tokens) == ("parked", 1)
    assert seconds == pytest.approx(1)


def test_the_profile_can_be_replaced_for_attempts_to_come():
    endpoint = SimulatedEndpoint("s", SimulatedProfile(ttft_s=1.0, answer_tokens=1))

    async def main():
        before = endpoint.open(ask())
        endpoint.profile = dataclasses.replace(endpoint.profile, ttft_s=5.0)
        return (await collect(before))[0][0], (await collect(endpoint.open(ask())))[0][0]

    assert run(main)[0] == pytest.approx((1.0, 5.0))
