"""Ctrl-C ends every answer, in every kind of client, and leaves no thread."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import openai
import pytest
from leaving import script, soon
from promptly import WITHIN_S
from serving import upstream

pytestmark = pytest.mark.real

PROGRAM = """
    import asyncio, signal, sys, threading, time
    # A test run in the background of a shell inherits that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import anyio
    from disco import AsyncDisco, Disco
    from disco.dispatch import Preset
    way, asked = sys.argv[1], {{"model": "m", "messages": [{{"role": "user", "content": "Hi"}}], "stream": True}}
    asked |= {{"max_tokens": 1500, "logit_bias": {{"0": -100, "2": -100}}}}
    given = {given}
    policy = Preset(dispatch={{"policy": {policy!r}}}, playback={{"pace_tps": "off"}})

    async def main():
        async with AsyncDisco(policy=policy, **given) as client:
            async for _ in await client.chat.completions.create(**asked):
                print("reading", flush=True)

    try:
        if way == "sync":
            with Disco(policy=policy, **given) as client:
                for _ in client.chat.completions.create(**asked):
                    print("reading", flush=True)
        else:
            anyio.run(main, backend=way)
    except KeyboardInterrupt:
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("disco")]
        print("interrupted", len(left), time.monotonic(), flush=True)
"""


USUAL = (("asyncio", "device"), ("sync", "server"))  # trio's is below
interrupting = pytest.mark.skipif(
    sys.platform == "win32", reason="there, processes are interrupted otherwise"
)


@interrupting
@pytest.mark.parametrize(
    ("way", "side"),
    [
        pytest.param(way, side, marks=() if (way, side) in USUAL else pytest.mark.slow)
        for way in ("asyncio", "trio", "sync")
        for side in ("device", "server")
    ],
)
def test_ctrl_c_ends_everything(way, side):
    with upstream(script("server writes")) as server:
        here = {"local": "smollm2-135m"}
        there = {"base_url": server.base_url, "api_key": "x"}
        policy = "device_only" if side == "device" else "server_only"
        program = textwrap.dedent(PROGRAM).format(given=here if side == "device" else there, policy=policy)
        if side == "server":  # the scripted answer to a warm-up
            with openai.OpenAI(base_url=server.base_url, api_key="x") as plain:
                plain.models.list()
        command, pipe = [sys.executable, "-c", program, way], subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as running:
            for _ in range(3):
                assert running.stdout.readline() == "reading\n", running.stderr.read()
            sent_at = time.monotonic()
            running.send_signal(signal.SIGINT)
            said, errors = running.communicate(timeout=60)
        word, threads, at = said.splitlines()[-1].split()
        assert (word, threads) == ("interrupted", "0")
        assert float(at) - sent_at < WITHIN_S
        assert running.returncode == 0
        assert errors == ""
        soon(lambda: not server.open)


@interrupting
def test_under_trio_ctrl_c_reaches_the_application_not_the_background():
    """Trio raises it in whatever task runs when it comes; in disco's own it would be trio's `TrioInternalError`."""
    program = """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import trio
        from disco import AsyncDisco
        from disco.endpoints.simulation.simulated_endpoint import SimulatedAttempt, SimulatedEndpoint
        from disco.endpoints.simulation.simulated_script import SimulatedProfile
        usual = SimulatedAttempt.__anext__
        async def interrupted(self):
            SimulatedAttempt.__anext__ = usual
            signal.raise_signal(signal.SIGINT)
            return await usual(self)
        SimulatedAttempt.__anext__ = interrupted
        async def main():
            device = SimulatedEndpoint("device", SimulatedProfile(), place="device")
            async with AsyncDisco(local=device, policy="private") as client:
                try:
                    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
                finally:
                    print(device.busy)
        try:
            trio.run(main)
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "0\ninterrupted\n", done.stderr[-2000:]
