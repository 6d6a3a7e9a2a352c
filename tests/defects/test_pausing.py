"""A device that pauses while a server begins to go on with its answer, live: on a client, in virtual time."""

from __future__ import annotations

import math

import pytest
from defects.asking import ask, client, preset, prose
from faults.in_memory import MemoryServer, anyio_backend, spoken  # noqa: F401 - a fixture
from faults.proxy_server.origin import begun_by
from scripted_device import ScriptedDevice

from disco.events import Delta, Ended, Usage
from disco.profiles import DeviceProfile, FlopsPerToken

pytestmark = pytest.mark.anyio

WORDS = prose(60)
DEAR = DeviceProfile(
    name="dear",
    source="test",
    prefill_tps=1000.0,
    decode_tps=20.0,
    flops=FlopsPerToken(prompt_tokens=(128.0,), prefill=(1e9,), decode=1e9),
)


def writing(_prefix):
    for word in WORDS:
        yield 0.05
        yield [Delta(word)]
    yield Ended("stop", Usage(10, len(WORDS)))


def beginning(first_s: float):
    """A server that goes on with an answer after that time."""

    def reply(body):
        begun = begun_by(body)
        return spoken(
            [w for i, w in enumerate(WORDS) if len("".join(WORDS[: i + 1])) > len(begun)], first_s=first_s
        )

    return MemoryServer(reply)


@pytest.mark.parametrize(("first_s", "outcome"), [(0.4, "switched"), (math.inf, "late")])
async def test_a_device_writes_nothing_while_it_is_paused_and_goes_on_if_the_server_is_late(first_s, outcome):
    local = ScriptedDevice(writing, pauses=True)
    policy = preset("device_only", order="auto", rate=1e6, pace_tps=5.0)
    async with client(beginning(first_s), local=local, policy=policy, device_profile=DEAR) as one:
        answer = await ask(one)
    assert answer.text == "".join(WORDS)
    assert answer.route.seamless
    assert answer.route.pace.late_tokens == 0
    assert {move.outcome for move in answer.route.migrations} == {outcome}
    wrote = answer.route.attempts[0]
    if outcome == "switched":
        (move,) = answer.route.migrations
        assert move.paused_s == pytest.approx(move.took_s)
        assert move.paused_s == pytest.approx(first_s, abs=0.1)
        # The word at the cut, and the one that was on its way.
        assert wrote.tokens == wrote.kept_tokens + move.wasted_tokens
        assert move.wasted_tokens <= 2
    else:
        assert wrote.kept_tokens == len(WORDS)
        assert all(move.paused_s > 0.3 for move in answer.route.migrations)
        # The time of a pause is no part of the device's speed.
        (known,) = [k for k in one.router.catalog.statistics.endpoints.values() if k.line is not None]
        assert known.decode_tps == pytest.approx(20.0, rel=0.1)
