"""The live driver in virtual time: one host for several event loops, and what a reader has not read yet."""

from __future__ import annotations

import anyio
from defects.asking import create, device
from watched import virtually

from disco import AsyncDisco, Disco
from disco.client.background_tasks import BackgroundTasks
from disco.dispatch import Preset


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
