"""Nothing grows: not for a reader who does not read, not with the length of a life, not with what clients make up."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import anyio
import moved_clock
import pytest
from leaving import tasks, until
from loops import mostly
from scripted_server import STREAM_END, STREAM_HEAD, chunk, piece, scripted_server, sse, stream, usage
from serving import upstream

from disco import AsyncDisco
from disco.client.background_tasks import BackgroundTasks
from disco.client.live_driver import LiveSession
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Candidate, Plan, Start
from disco.playback import Pace, Playback
from disco.request import Request
from disco.session.machine import Session, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths

pytestmark = pytest.mark.real

HERE = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": "off"})
THERE = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
BOTH = Preset(dispatch={"policy": "race"}, playback={"pace_tps": "off"})
SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA, "stream": True}


# ---------------------------------------------------------------------- readers who do not read


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [moved_clock.virtual("trio")], ids=["virtual"])
@pytest.mark.parametrize("banking", [False, True], ids=["unread", "held for its pace"])
async def test_a_reader_who_pauses_for_an_hour_holds_the_writer_and_loses_nothing(banking):
    """And no clock runs out on a writer that is kept waiting."""
    limit, tokens = 20_000, 2_000
    server = SimulatedEndpoint("server", SimulatedProfile(decode_tps=500.0, answer_tokens=tokens))
    playback = Playback(Pace(tps=5.0) if banking else None)
    playback.banking = banking
    config = SessionConfig(10, pace_tps=5.0 if banking else None)
    session = Session(
        Plan((Start("server"),)),
        {"server": Candidate("server", "any")},
        config,
        playback,
        AnswerLengths.geometric(100),
    )
    request = Request(messages=SEA, model="m")
    live = LiveSession(session, {"server": server}, request, max_buffered_bytes=limit)
    host = BackgroundTasks()
    await host.start(live.run)
    read = len(await live.read())
    await anyio.sleep(60)
    waiting = live.buffered_tokens
    assert 10 < waiting < limit / 256 + 10
    await anyio.sleep(500)
    assert live.buffered_tokens == pytest.approx(waiting, abs=1)
    assert not session.error
    while batch := await live.read():
        read += sum(delta.tokens for delta in batch)
    assert read == tokens
    assert session.finish_reason == "stop"
    assert len(session.attempts) == 1
    await host.aclose()


@pytest.mark.anyio
async def test_a_server_that_writes_faster_than_anybody_reads_is_held():
    many = 20_000
    script = [STREAM_HEAD]
    for begin in range(0, many, 100):
        chunks = [chunk(f" {n}") for n in range(begin, begin + 100)]
        script.append(piece(sse(*chunks, done=False)))
    script += [piece(sse(chunk(finish="stop"))), STREAM_END]
    short = stream(sse(chunk("Hello."), chunk(finish="stop")))
    async with (
        scripted_server(script, short) as server,
        AsyncDisco(policy=THERE, base_url=server.base_url, api_key="x") as client,
    ):
        lazy = await client.chat.completions.create(**ASKED)
        live = lazy._live
        await until(lambda: live._held)
        assert live.buffered_tokens < many / 2
        answer = await client.chat.completions.create(**{**ASKED, "stream": False})
        assert answer.choices[0].message.content == "Hello."
        text = "".join([part.choices[0].delta.content or "" async for part in lazy])
    assert text == "".join(f" {n}" for n in range(many))


@pytest.mark.anyio
async def test_a_reader_who_does_not_read_keeps_the_model_from_nobody(device):
    """The model writes on for it, to the end of its context at most, and is the next one's then."""
    async with AsyncDisco(local=device, policy=HERE) as client:
        lazy = await client.chat.completions.create(**ASKED, max_tokens=50)
        answer = await client.chat.completions.create(**{**ASKED, "stream": False}, max_tokens=3)
        assert answer.choices[0].message.content
        assert [part async for part in lazy]


@pytest.mark.anyio
async def test_a_full_queue_at_the_model_is_the_servers_turn(device, monkeypatch):
    monkeypatch.setattr(device._worker, "_max_queue", 1)
    hedged = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": "off"})
    with upstream(stream(sse(chunk("From the server."), chunk(finish="stop")))) as server:
        async with AsyncDisco(local=device, policy=hedged, base_url=server.base_url, api_key="x") as client:
            await client.models.list()
            streams = []
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    streams.append(await client.chat.completions.create(**ASKED, max_tokens=60))

                for _ in range(4):
                    group.start_soon(ask)
            for one in streams:
                async for _ in one:
                    pass
            routes = [one.route for one in streams]
    assert max(route.winner for route in routes) == "server"
    busy = [route for route in routes if route.winner == "server"]
    assert all(route.attempts[0].failure == "rate_limit" for route in busy)


# ---------------------------------------------------------------------- long lives


def descriptors() -> int:
    if not sys.platform.startswith("linux"):
        return 0
    return len(list(Path("/proc/self/fd").iterdir()))


async def grows(requests: int, warm_up: int) -> float:
    """Blocks of memory that stay per request, of answers that race, are read, left, and forgotten."""
    answer = stream(sse(*[chunk(f" {n}") for n in range(10)], chunk(finish="stop"), usage(9, 10)))
    profile = SimulatedProfile(decode_tps=50_000.0, answer_tokens=12, ttft_s=0.0005)
    device = SimulatedEndpoint("device", profile, place="device")
    with upstream(answer) as server:
        async with AsyncDisco(local=device, policy=BOTH, base_url=server.base_url, api_key="x") as client:
            await client.models.list()

            async def ask(number: int) -> None:
                if number % 4 == 0:
                    await client.chat.completions.create(**{**ASKED, "stream": False})
                    return
                got = await client.chat.completions.create(**ASKED)
                if number % 4 == 1:
                    await got.close()
                elif number % 4 == 2:
                    await anext(got)  # and dropped
                else:
                    async for _ in got:
                        pass

            def held() -> tuple[int, int, int]:
                server.requests.clear()  # the server lives in this process, too
                gc.collect()
                return descriptors(), threading.active_count(), len(tasks())

            for number in range(warm_up):
                await ask(number)
            await until(lambda: device.busy == 0)
            before, blocks = held(), sys.getallocatedblocks()
            for number in range(requests):
                await ask(number)
            await until(lambda: device.busy == 0)
            after, grown = held(), sys.getallocatedblocks() - blocks
            # A connection more or less is kept open for the next one.
            assert abs(after[0] - before[0]) <= 4
            assert after[1] <= before[1] + 6  # the loop's own threads look names up, and come and go
            assert after[2] == before[2]
            assert not client.server._attempts
            return grown / requests


@mostly("asyncio")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("requests", "warm_up", "blocks"),
    [(400, 200, 6.0), pytest.param(9_000, 1_000, 0.3, marks=pytest.mark.slow)],
)
async def test_requests_leave_nothing_behind(requests, warm_up, blocks):
    """But the lengths of the last 1,000 answers, which are remembered."""
    assert await grows(requests, warm_up) < blocks


@mostly("asyncio")
@pytest.mark.anyio
async def test_made_up_models_are_forgotten():
    device = SimulatedEndpoint("device", SimulatedProfile(answer_tokens=1, decode_tps=1e5), place="device")
    async with AsyncDisco(local=device, policy=HERE, api_key="x") as client:
        for number in range(260):
            await client.chat.completions.create(**{**ASKED, "stream": False, "model": f"made-up-{number}"})
        router = client.router
        assert len(router._dispatchers) <= 257
        assert len(router.statistics.endpoints) <= 257


# ---------------------------------------------------------------------- long answers


async def read_long(tokens: int) -> float:
    """Blocks of memory a token, while the answer is still held."""
    profile = SimulatedProfile(decode_tps=1e9, answer_tokens=tokens, packet_tokens=50)
    device = SimulatedEndpoint("device", profile, place="device")
    async with AsyncDisco(local=device, policy=HERE) as client:
        gc.collect()
        blocks = sys.getallocatedblocks()
        got = await client.chat.completions.create(**ASKED)
        read = 0
        async for part in got:
            read += bool(part.choices[0].delta.content)
        gc.collect()
        held = sys.getallocatedblocks() - blocks
        assert read == tokens
        assert got.route.finish_reason == "stop"
        assert len(got._live.session.transcript.segments) == 1
        return held / tokens


@mostly("asyncio")
@pytest.mark.anyio
async def test_a_long_answer_takes_memory_in_proportion():
    await read_long(1_000)
    short, long = await read_long(2_000), await read_long(8_000)
    assert long < 1.3 * short


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_very_long_answer_takes_memory_in_proportion():
    assert await read_long(200_000) < 20
