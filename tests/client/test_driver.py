"""The live driver on simulated endpoints, on trio's virtual clock: cancel anywhere, and nothing is left."""

from __future__ import annotations

import math

import anyio
import pytest
import trio
from hypothesis import given, settings
from situations import situations
from watched import virtually

from disco.client.background_tasks import BackgroundTasks
from disco.client.live_driver import LiveSession
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import DiscoError
from disco.plan import Candidate, Plan, Start
from disco.playback import Playback
from disco.rates import Rates
from disco.request import Request
from disco.session.machine import Session, SessionConfig
from disco.session.switching.migration_rule import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")


async def live_run(situation):
    profiles, pace = situation["profiles"], situation["pace"]
    endpoints = {
        name: SimulatedEndpoint(name, profile, place="device" if name == "device" else "server")
        for name, profile in profiles.items()
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
    finished = []
    live = LiveSession(session, endpoints, REQUEST, on_done=finished.append)
    host = BackgroundTasks()
    text = ""
    error = None
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


@settings(max_examples=75)
@given(situations())
def test_cancelled_anywhere_nothing_is_left_and_no_text_is_lost(situation):
    text, session, error = virtually(live_run, situation)
    assert session.transcript.text.startswith(text)
    if situation["cancel_at"] == math.inf:
        assert text == session.transcript.text
        assert (error is None) == (session.error is None)


def test_closing_the_client_ends_a_reader_that_still_waits():
    async def main():
        silent = SimulatedEndpoint("server", SimulatedProfile(ttft_s=math.inf))
        session = Session(
            Plan((Start("server"),)),
            {"server": Candidate("server", "any")},
            SessionConfig(1),
            Playback(None),
            AnswerLengths.geometric(10),
        )
        live = LiveSession(session, {"server": silent}, REQUEST)
        host = BackgroundTasks()
        await host.start(live.run)

        async def read():
            with pytest.raises(DiscoError, match="closed"):  # half an answer must not pass for a whole one
                await live.read()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.sleep(1)
            await host.aclose()
        assert silent.busy == 0

    virtually(main)


def test_one_client_serves_several_event_loops_in_a_row():
    host = BackgroundTasks()
    seen = []

    async def main():
        async def work():
            seen.append(1)

        await host.start(work)
        await anyio.sleep(0.01)

    for backend in ("asyncio", "asyncio", "trio"):
        anyio.run(main, backend=backend)
    assert seen == [1, 1, 1]
