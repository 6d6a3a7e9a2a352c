"""The live driver on simulated endpoints, in virtual time: cancel anywhere, and nothing is left."""

from __future__ import annotations

import math

import anyio
import trio
from defects.asking import create, device
from hypothesis import given, settings
from situations import situations
from watched import virtually

from disco import AsyncDisco, Disco
from disco.client.background_tasks import BackgroundTasks
from disco.client.live_driver import LiveSession
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.plan import Candidate
from disco.playback import Playback
from disco.rates import Rates
from disco.request import Request
from disco.session.machine import Session, SessionConfig
from disco.session.switching.migration_rule import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")


async def live_run(situation):
    profiles, pace = situation["profiles"], situation["pace"]
    places = {name: "device" if name == "device" else "server" for name in profiles}
    endpoints = {
        name: SimulatedEndpoint(name, profile, place=places[name]) for name, profile in profiles.items()
    }
    candidates = {
        name: Candidate(
            name=name,
            reach="device" if name == "device" else "any",
            rates=Rates(situation["costs"][name] / 10, situation["costs"][name]),
            overhead_s=0.3,
            decode_tps=profile.decode_tps,
            continues=profile.continues,
        )
        for name, profile in profiles.items()
    }
    config = SessionConfig(
        prompt_tokens=20, streams=situation["streams"], pace_tps=pace.tps if pace else None
    )
    session = Session(situation["plan"], candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    finished, host, text, error = [], BackgroundTasks(), "", None
    live = LiveSession(session, endpoints, REQUEST, on_done=finished.append)
    tasks_before = trio.lowlevel.current_statistics().tasks_living
    await host.start(live.run)
    with anyio.move_on_after(min(situation["cancel_at"], 1e6)):
        try:
            while batch := await live.read():
                text += "".join(d.text for d in batch)
        except Exception as raised:  # noqa: BLE001
            error = raised
    live.cancel()
    await live.wait_done()
    assert finished == [session]
    assert all(a.stopped for a in session.attempts)
    assert all(endpoint.busy == 0 for endpoint in endpoints.values()), "a generation was left running"
    await host.aclose()
    assert trio.lowlevel.current_statistics().tasks_living == tasks_before, "a task was left running"
    return text, session, error


@settings(max_examples=50)
@given(situations())
def test_cancelled_anywhere_nothing_is_left_and_no_text_is_lost(situation):
    text, session, error = virtually(live_run, situation)
    assert session.transcript.text.startswith(text)
    if situation["cancel_at"] == math.inf:
        assert text == session.transcript.text
        assert (error is None) == (session.error is None)


def test_one_client_serves_several_event_loops_in_a_row():
    host, seen = BackgroundTasks(), []

    async def main():
        async def work():
            seen.append(1)

        await host.start(work)
        await anyio.sleep(0.01)

    for backend in ("asyncio", "asyncio", "trio"):
        anyio.run(main, backend=backend)
    assert seen == [1, 1, 1]


def test_tokens_that_came_together_or_are_held_for_a_steady_pace_are_counted_down_as_they_are_read():
    slow = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": 20, "max_hold_s": 0.4})

    async def main(local, policy):
        async with AsyncDisco(local=local, policy=policy) as client:
            stream = await create(client, stream=True)
            return [stream.buffered_tokens, *[stream.buffered_tokens async for c in stream if c.choices]]

    burst = virtually(main, device(answer_tokens=12, packet_tokens=12), "private")
    assert burst[0] == 12
    assert sorted(set(burst), reverse=True) == list(range(12, -1, -1))
    held = virtually(main, device(answer_tokens=40, decode_tps=200.0), slow)
    assert 5 < max(held) <= 40
    assert held[-1] == 0
    settings = {"local": device(answer_tokens=12, packet_tokens=12), "policy": "private"}
    with Disco(**settings) as client, create(client, stream=True) as stream:
        assert stream.buffered_tokens == 12
