"""Nothing grows: not for a reader who does not read, not with the length of a life, not with what clients make up."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import anyio
import moved_clock
import pytest
from faults.in_memory import MemoryServer
from leaving import tasks, until
from scripted_server import chunk, sse, stream, usage
from serving import upstream
from session.plays import SERVER_ALONE, session_of

from disco import AsyncDisco
from disco.client.live_driver import LiveSession
from disco.dispatch import Preset
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.playback import Pace
from disco.request import Request

pytestmark = pytest.mark.anyio

HERE, BOTH = (
    Preset(dispatch={"policy": policy}, playback={"pace_tps": "off"}) for policy in ("device_only", "race")
)
SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA, "stream": True}


@pytest.fixture
def anyio_backend():
    return "asyncio"


virtual = pytest.mark.parametrize("anyio_backend", [moved_clock.virtual("asyncio")], ids=["virtual"])


@virtual
@pytest.mark.parametrize("banking", [False, True], ids=["unread", "held for its pace"])
async def test_a_reader_who_pauses_for_an_hour_holds_the_writer_and_loses_nothing(banking):
    """And no clock runs out on a writer that is kept waiting."""
    limit, tokens = 20_000, 2_000
    profile = SimulatedProfile(decode_tps=500.0, answer_tokens=tokens)
    server = SimulatedEndpoint("server", profile)
    session = session_of({"server": profile}, SERVER_ALONE, pace=Pace(tps=5.0) if banking else None)
    session.transcript.playback.banking = banking
    live = LiveSession(
        session, {"server": server}, Request(messages=SEA, model="m"), max_buffered_bytes=limit
    )
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


# ---------------------------------------------------------------------- long lives


async def grows(requests: int, warm_up: int) -> float:
    """Blocks of memory that stay per request, of answers that race, are read, left, and forgotten."""
    answer = stream(sse(*[chunk(f" {n}") for n in range(10)], chunk(finish="stop"), usage(9, 10)))
    profile = SimulatedProfile(decode_tps=50_000.0, answer_tokens=12, ttft_s=0.0005)
    device = SimulatedEndpoint("device", profile, place="device")
    with upstream(answer) as server:
        async with AsyncDisco(local=device, policy=BOTH, base_url=server.base_url, api_key="x") as client:
            await client.models.list()

            async def ask(numbers: int) -> None:
                for number in range(numbers):
                    got = await client.chat.completions.create(**{**ASKED, "stream": number % 4 > 0})
                    if number % 4 == 1:
                        await got.close()
                    elif number % 4 == 2:
                        await anext(got)  # and dropped
                    elif number % 4 == 3:
                        async for _ in got:
                            pass
                await until(lambda: device.busy == 0)
                server.requests.clear()  # the server lives in this process, too

            def held() -> tuple[int, int, int]:
                gc.collect()
                descriptors = Path("/proc/self/fd")
                opened = len(list(descriptors.iterdir())) if descriptors.exists() else 0
                return opened, threading.active_count(), len(tasks())

            await ask(warm_up)
            before, blocks = held(), sys.getallocatedblocks()
            await ask(requests)
            # On a busy machine the last ones are still closing.
            await until(lambda: len(tasks()) <= before[2])
            after, grown = held(), sys.getallocatedblocks() - blocks
            # A connection more or less is kept open for the next one.
            assert abs(after[0] - before[0]) <= 4
            assert after[1] <= before[1] + 6  # the loop's own threads look names up, and come and go
            assert after[2] <= before[2]
            assert not client.server._attempts
            return grown / requests


@pytest.mark.real
@pytest.mark.parametrize(
    ("requests", "warm_up", "blocks"),
    [(160, 80, 6.0), pytest.param(9_000, 1_000, 0.3, marks=pytest.mark.slow)],
)
async def test_requests_leave_nothing_behind(requests, warm_up, blocks):
    """But the lengths of the last 1,000 answers, which are remembered."""
    assert await grows(requests, warm_up) < blocks


async def test_made_up_models_are_forgotten():
    device = SimulatedEndpoint("device", SimulatedProfile(answer_tokens=1, decode_tps=1e5), place="device")
    async with AsyncDisco(local=device, policy=HERE, base_url=MemoryServer.base_url, api_key="x") as client:
        for number in range(260):
            await client.chat.completions.create(**{**ASKED, "stream": False, "model": f"made-up-{number}"})
        assert len(client.router._dispatchers._kept) <= 257
        assert len(client.router.statistics.endpoints) <= 257


async def read_long(tokens: int) -> float:
    """Blocks of memory a token, while the answer is still held."""
    profile = SimulatedProfile(decode_tps=1e9, answer_tokens=tokens, packet_tokens=50)
    device = SimulatedEndpoint("device", profile, place="device")
    async with AsyncDisco(local=device, policy=HERE) as client:
        gc.collect()
        blocks = sys.getallocatedblocks()
        got = await client.chat.completions.create(**ASKED)
        assert sum([bool(part.choices[0].delta.content) async for part in got]) == tokens
        gc.collect()
        held = sys.getallocatedblocks() - blocks
        assert got.route.finish_reason == "stop"
        assert len(got._live.session.transcript.segments) == 1
        return held / tokens


@pytest.mark.slow
async def test_a_long_answer_takes_memory_in_proportion():
    await read_long(500)
    short, long = await read_long(1_000), await read_long(4_000)
    assert long < min(20, 1.3 * short)
