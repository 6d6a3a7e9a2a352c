"""Moves without a pace, and what a loser of the race must have done to count as holding the prompt."""

from __future__ import annotations

import itertools
import math

import anyio
import pytest
from defects.asking import MemoryServer, ask, client, create, device, preset, prose, question, spoken
from defects.parts import ScriptedDevice
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture

from disco import LocalModelError, Timeouts
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, Ended, Usage
from disco.profiles import DeviceProfile

pytestmark = pytest.mark.anyio

WORDS = prose(300)
TEXT = "".join(WORDS)
SLOW = spoken(WORDS, first_s=0.2, gap_s=0.1)  # 30 s
FAST_DEVICE = DeviceProfile(name="fast", source="test", prefill_tps=1000.0, decode_tps=200.0, c_s=0.3)


async def unpaced(order: str, **profile):
    """An answer of a slow server that a fast, free device may go on with: its route, its text's times."""
    local = device(answer=TEXT, **{"ttft_s": 0.3, "decode_tps": 200.0, **profile})
    settings = {"timeouts": Timeouts(first_content_s=8.0), "device_profile": FAST_DEVICE}
    times, text = [], ""
    async with client(
        MemoryServer(SLOW), local=local, policy=preset("server_only", order=order), **settings
    ) as one:
        began_at = anyio.current_time()
        stream = await create(one, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                times.append(anyio.current_time() - began_at)
    assert text == TEXT
    return stream.route, times


async def test_without_a_pace_make_before_break_moves_the_answer_as_break_before_make_does():
    broken, broken_times = await unpaced("break_before_make")
    made, made_times = await unpaced("make_before_break")
    assert [[t.outcome for t in route.migrations] for route in (broken, made)] == [["switched"]] * 2
    assert broken_times[-1] < 6.0
    assert made_times[-1] < broken_times[-1] + 1.0
    assert [t.endpoint for t in made.attempts] == ["server", "device"]
    assert made.seamless


async def test_without_a_pace_a_target_that_never_comes_is_given_its_time_and_no_more():
    route, times = await unpaced("make_before_break", ttft_s=math.inf)
    assert route.migrations
    assert all(t.outcome != "switched" for t in route.migrations)
    tries = [t for t in route.attempts if t.endpoint == "device"]
    assert max(t.ended_s - t.started_s for t in tries) >= 0.3  # as long as it was expected to take
    assert max(b - a for a, b in itertools.pairwise(times)) < 12.0  # first_content_s is 8
    assert times[-1] < 30.0 + 12.0


PREFILL_TPS = 100.0


def loser(*, parks: bool = True, crashes_at_s: float = math.inf, goes_on: bool = True):
    """A device that loses the race; what becomes of its first attempt then is the test's."""
    crash = EndpointFailure(FailureKind.CRASHED, LocalModelError("Out of memory."))
    on = [0.2, [Delta(" and so on.")], 0.2, Ended("stop", Usage(400, 1))]

    def script(prefix):
        return on if prefix and goes_on else [crashes_at_s, crash]

    return ScriptedDevice(script, parks=parks, prompt_tokens=0)


@pytest.mark.parametrize(
    ("local", "outcomes"),
    [(loser(crashes_at_s=1.0), None), (loser(parks=False), ["switched"])],
    ids=["parked, and crashed", "cannot be parked, and is cancelled"],
)
async def test_a_loser_does_not_hold_the_prompt(local, outcomes):
    """The server wins; its answer is long and the device is free, so it is worth moving whenever that is possible."""
    slow = DeviceProfile(name="slow", source="test", prefill_tps=PREFILL_TPS, decode_tps=50.0, c_s=0.05)
    server = MemoryServer(spoken(prose(100), first_s=0.3, gap_s=0.05))
    policy = preset("race", order="break_before_make")
    async with client(server, local=local, policy=policy, device_profile=slow) as one:
        route = (await create(one, question(400))).route
    assert route.winner == "server"
    assert outcomes in (None, [t.outcome for t in route.migrations])
    for transfer in route.migrations:
        full_s = (route.prompt_tokens + transfer.cut_tokens) / PREFILL_TPS
        assert transfer.expected_s >= full_s > 3.0


async def test_the_breaker_hears_of_parked_losers_that_crash():
    late = DeviceProfile(name="late", source="test", prefill_tps=PREFILL_TPS, decode_tps=50.0, c_s=3.0)
    # Paced, and too short for the slack that a move needs: the loser is parked, and nothing moves.
    policy = preset("race", order="make_before_break", pace_tps=12.0)
    server = MemoryServer(spoken(prose(24), first_s=0.1, gap_s=0.05))
    local = loser(crashes_at_s=0.5, goes_on=False)
    async with client(server, local=local, policy=policy, device_profile=late) as one:
        answers = [await ask(one) for _ in range(10)]
    assert not any(answer.route.migrations for answer in answers)
    rested = [(r.endpoint, r.failure) for answer in answers for r in answer.route.deprioritised]
    assert ("device", "crashed") in rested
