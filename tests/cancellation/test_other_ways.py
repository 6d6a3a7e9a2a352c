"""Ends that come from outside one answer: threads, event loops, Ctrl-C, and tasks that meet at one client."""

from __future__ import annotations

import asyncio
import gc
import math
import subprocess
import sys
import textwrap
import threading

import anyio
import moved_clock
import openai
import pytest
from leaving import generates, script, soon, tasks, until
from scripted_device import ScriptedDevice
from serving import upstream

from disco import AsyncDisco, Disco, DiscoError
from disco.dispatch import Preset
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.events import Delta

HERE, THERE = (
    Preset(dispatch={"policy": policy}, playback={"pace_tps": "off"})
    for policy in ("device_only", "server_only")
)
ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "stream": True,
    "max_tokens": 1500,
    "logit_bias": {"0": -100, "2": -100},
}


def wordy(**more) -> SimulatedEndpoint:
    """It writes any number of answers at once, for ever."""
    profile = {"decode_tps": 50.0, "answer_tokens": 5_000, "features": frozenset({"logit_bias"}), **more}
    made = SimulatedEndpoint("device", SimulatedProfile(**profile), place="server")
    made.place = "device"
    return made


# ---------------------------------------------------------------------- tasks that meet at one client


@pytest.mark.anyio
async def test_answers_that_begin_at_once_share_one_background_task_and_it_outlives_a_cancelled_start():
    before, seen, host = tasks(), [], BackgroundTasks()

    async def work() -> None:
        seen.append(1)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await host.start(work)
    for _ in range(2):  # it may be used again
        seen.clear()
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(host.start, work)
        await until(lambda: len(seen) == 5)
        await host.aclose()
    assert tasks() == before


@pytest.mark.anyio
async def test_a_stream_closed_by_one_task_ends_for_another_that_reads_it():
    async with AsyncDisco(local=wordy(gap_s=1000.0), policy=HERE) as client:
        stream = await client.chat.completions.create(**ASKED)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    with pytest.raises(openai.APIConnectionError, match="closed"):  # as the SDK's
                        async for _ in stream:
                            pass

                group.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                await stream.close()
        assert client.router.local.busy == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [moved_clock.virtual("trio")], ids=["virtual"])
@pytest.mark.parametrize("closing_s", [0.5, math.inf])
async def test_a_client_that_is_closed_closes_its_attempts_to_the_end_but_waits_for_none_for_ever(closing_s):
    local = ScriptedDevice(lambda _: [[Delta("The sea")], math.inf], closing_s=closing_s)
    client = AsyncDisco(local=local, policy=HERE)
    stream = await client.chat.completions.create(**ASKED)
    await anext(stream)
    with anyio.fail_after(60):
        await client.close()
    assert local.closed == (closing_s < math.inf)
    assert stream.route.finish_reason == "cancelled"


@pytest.mark.anyio
async def test_a_defect_ends_its_own_answer_only(monkeypatch, caplog):
    device = wordy()
    async with AsyncDisco(local=device, policy=HERE) as client:
        good = await client.chat.completions.create(**ASKED)
        with monkeypatch.context() as patched:
            patched.setattr("disco.session.machine.Session.start", lambda self, now: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await client.chat.completions.create(**ASKED)
        assert "ZeroDivisionError in disco itself" in caplog.text
        await anext(good)
        assert device.busy == 1


# ---------------------------------------------------------------------- event loops that end


@pytest.mark.real
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_that_ends_takes_the_answer_with_it(backend):
    with upstream(script("server writes")) as server:
        client = AsyncDisco(policy=THERE, base_url=server.base_url, api_key="x", max_retries=0)

        async def main():
            await client.models.list()  # uses up the scripted answer to a warm-up
            stream = await client.chat.completions.create(**ASKED)
            await anext(stream)
            assert server.open
            return stream  # and keeps it

        kept = anyio.run(main, backend=backend)
        soon(lambda: not server.open)
        del kept


@pytest.mark.real
def test_an_event_loop_that_is_closed_over_running_tasks_stops_the_model(thread_model):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    client = AsyncDisco(local=thread_model, policy=HERE)

    async def main(client):
        stream = await client.chat.completions.create(**ASKED)
        await anext(stream)
        return stream

    stream = loop.run_until_complete(main(client))
    assert generates(thread_model)
    loop.close()
    soon(lambda: not generates(thread_model))
    with pytest.MonkeyPatch.context() as patched:  # what asyncio says of tasks that were left behind
        patched.setattr(sys, "unraisablehook", lambda unraisable: None)
        del stream, client
        gc.collect()


# ---------------------------------------------------------------------- threads


@pytest.mark.parametrize("way", ["close", "drop", "break", "deadline", "client"])
def test_leaving_a_synchronous_stream_stops_its_answer_and_leaves_no_thread(way):
    before, device = set(threading.enumerate()), wordy()
    with Disco(local=device, policy=HERE) as client:
        limit = {"extra_body": {"disco": {"deadline_s": 0.1}}} if way == "deadline" else {}
        stream = client.chat.completions.create(**ASKED, **limit)
        assert device.busy
        gc.disable()  # what lies in a circle would only be found by the collector
        try:
            next(stream)
            if way == "close":
                stream.close()
            elif way == "break":
                for _ in stream:
                    break
            elif way == "deadline":
                with pytest.raises(openai.APITimeoutError):
                    list(stream)
            elif way == "client":
                client.close()
            del stream
            soon(lambda: not device.busy)
        finally:
            gc.enable()
    # A loop's own threads, which look names up, come and go.
    soon(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("disco")])


def test_closing_the_synchronous_client_tells_those_who_wait_in_other_threads():
    """Half an answer must not pass for a whole one."""
    told, device = [], wordy()
    client = Disco(local=device, policy=HERE)

    def ask() -> None:
        try:
            client.chat.completions.create(**{**ASKED, "stream": False})
        except DiscoError as error:
            told.append(str(error))

    waiting = threading.Thread(target=ask)
    waiting.start()
    soon(lambda: device.busy)
    client.close()
    waiting.join(60)
    assert told == ["The client was closed before the answer was complete."]
    assert not device.busy


@pytest.mark.skipif(sys.platform == "win32", reason="there, processes are interrupted otherwise")
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
