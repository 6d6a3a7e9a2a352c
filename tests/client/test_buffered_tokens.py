"""`stream.buffered_tokens`: how far the writing is ahead of what the application was given."""

from __future__ import annotations

import pytest

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Tell me about the sea."}], "stream": True}
SLOW = Preset(name="slow", dispatch={"policy": "device_only"}, playback={"pace_tps": 20, "max_hold_s": 0.4})


def device(**profile) -> SimulatedEndpoint:
    return SimulatedEndpoint("device", SimulatedProfile(**profile), place="device")


@pytest.mark.anyio
async def test_what_came_together_is_counted_down_as_it_is_read():
    burst = device(answer_tokens=12, packet_tokens=12)
    async with AsyncDisco(local=burst, policy="private") as client:
        stream = await client.chat.completions.create(**ASKED)
        before = stream.buffered_tokens
        left = [stream.buffered_tokens async for chunk in stream if chunk.choices[0].delta.content]
    assert before == 12
    assert left == list(range(11, -1, -1))


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
@pytest.mark.anyio
async def test_what_is_held_for_a_steady_pace_is_counted(kind):
    client = kind(local=device(answer_tokens=40, decode_tps=200.0), policy=SLOW)
    if kind is AsyncDisco:
        async with client:
            stream = await client.chat.completions.create(**ASKED)
            levels = [stream.buffered_tokens async for _ in stream]
    else:
        with client:
            stream = client.chat.completions.create(**ASKED)
            levels = [stream.buffered_tokens for _ in stream]
    assert 5 < max(levels) <= 40
    assert levels[-1] == 0
