"""A process that is stopped and goes on does not take its server for a silent one."""

from __future__ import annotations

import json
import signal
import sys

import anyio
import pytest
from defects.asking import prose
from scripted_server import STREAM_END, STREAM_HEAD, chunk, piece, scripted_server, sse

pytestmark = pytest.mark.real

WORDS = prose(45)
PAUSE_S, GAP_S = 2.5, 2.0
CLIENTS = 4  # of each kind; what is looked at first on waking, data or clock, is chance for each of them
CHILD = """
import json, sys
import anyio
from disco import AsyncDisco, Timeouts
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

base_url, backend, clients = sys.argv[1], sys.argv[2], int(sys.argv[3])
POLICY = Preset(dispatch={"policy": "server_only"}, migration={"enabled": False}, playback={"pace_tps": "off"})
CLOCKS = Timeouts(connect_s=30.0, first_content_s=30.0, gap_s=float(sys.argv[4]), total_s=None)
begun = 0

async def ask(local, seen):
    global begun
    text, error, route = "", None, None
    async with AsyncDisco(
        local=local, base_url=base_url, api_key="key", policy=POLICY, max_retries=0, continuation="trailing",
        timeouts=CLOCKS,
    ) as client:
        try:
            stream = await client.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": "The sea?"}], stream=True
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    begun += not text
                    text += chunk.choices[0].delta.content
                    if begun == 2 * clients:
                        begun += 1
                        print("begun", flush=True)
            route = stream.route
        except Exception as raised:
            error, route = repr(raised), getattr(raised, "route", None)
    tries = [(t.endpoint, t.failure) for t in route.attempts] if route else None
    seen.append({"text": text, "error": error, "attempts": tries})

async def main():
    seen = []
    async with anyio.create_task_group() as group:
        for i in range(2 * clients):
            local = None
            if i % 2:
                local = SimulatedEndpoint("device", SimulatedProfile(answer="Something else."), place="device")
            group.start_soon(ask, local, seen)
    print(json.dumps(seen), flush=True)

anyio.run(main, backend=backend)
"""


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def test_a_process_that_was_stopped_reads_what_waits_before_it_judges_silence(backend):
    """The server writes every 0.1 s; half of the clients have a device that would take over."""

    async def main():
        script = [STREAM_HEAD]
        for word in WORDS:
            script += [piece(sse(chunk(word), done=False)), 0.1]
        script += [piece(sse(chunk(finish="stop"))), STREAM_END]
        async with scripted_server(script) as server:
            command = [sys.executable, "-c", CHILD, server.base_url, backend, str(CLIENTS), str(GAP_S)]
            async with await anyio.open_process(command, stderr=None) as child:
                out = b""
                with anyio.fail_after(120):
                    while b"begun" not in out:
                        out += await child.stdout.receive()
                    child.send_signal(signal.SIGSTOP)
                    await anyio.sleep(PAUSE_S)
                    child.send_signal(signal.SIGCONT)
                    async for data in child.stdout:
                        out += data
        return json.loads(out.decode().splitlines()[-1])

    seen = anyio.run(main)
    assert len(seen) == 2 * CLIENTS
    for one in seen:
        assert one == {"text": "".join(WORDS), "error": None, "attempts": [["server", None]]}
