"""Ends that come from outside one answer: threads, event loops, HTTP, and tasks that meet at one client."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
import time

import anyio
import moved_clock
import openai
import pytest
from defects.parts import ScriptedDevice
from leaving import LONG, generates, script, soon, tasks, until
from promptly import WITHIN_S
from scripted_server import WAIT_FOR_CLOSE
from serving import serving, upstream

from disco import AsyncDisco, Disco, DiscoError
from disco.client.background_tasks import BackgroundTasks
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.events import Delta

HERE = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": "off"})
THERE = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {
    "model": "m",
    "messages": SEA,
    "stream": True,
    "max_tokens": 1500,
    "logit_bias": {"0": -100, "2": -100},
}
FEATURES = frozenset({"logit_bias"})
WORDY = SimulatedProfile(decode_tps=50.0, answer_tokens=5_000, features=FEATURES)


def new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Those of disco's; a loop's own, which look names up, come and go."""
    return [one for one in set(threading.enumerate()) - before if one.name.startswith("disco")]


# ---------------------------------------------------------------------- tasks that meet at one client


@pytest.mark.anyio
async def test_first_requests_at_the_same_time_share_one_background_task():
    before = tasks()
    device = SimulatedEndpoint("device", WORDY, place="server")  # it writes any number of answers at once
    device.place = "device"
    client = AsyncDisco(local=device, policy=HERE)
    streams = []

    async def ask() -> None:
        streams.append(await client.chat.completions.create(**ASKED))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
    assert device.busy == 5
    await client.close()
    assert device.busy == 0
    assert tasks() == before
    assert all(stream.route.finish_reason == "cancelled" for stream in streams)


@pytest.mark.anyio
async def test_a_start_that_is_cancelled_leaves_a_host_that_others_can_use():
    before, seen = tasks(), []

    async def work() -> None:
        seen.append(1)

    host = BackgroundTasks()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await host.start(work)
    await host.start(work)
    await until(lambda: seen)
    await host.aclose()
    await host.start(work)  # it may be used again
    await until(lambda: len(seen) == 2)
    await host.aclose()
    assert tasks() == before


@pytest.mark.anyio
async def test_a_stream_closed_by_one_task_ends_for_another_that_reads_it():
    silent = SimulatedEndpoint("device", SimulatedProfile(gap_s=1000.0, features=FEATURES), place="device")
    async with AsyncDisco(local=silent, policy=HERE) as client:
        stream = await client.chat.completions.create(**ASKED)
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    async for _ in stream:
                        pass

                group.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                await stream.close()
        assert silent.busy == 0


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
async def test_whoever_waits_for_an_answer_of_a_closed_client_is_told_so():
    """Half an answer must not pass for a whole one."""
    client = AsyncDisco(local=SimulatedEndpoint("device", WORDY, place="device"), policy=HERE)
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(DiscoError, match="closed before the answer was complete"):
                await client.chat.completions.create(**{**ASKED, "stream": False})

        group.start_soon(ask)
        await until(lambda: client.router.local.busy)
        await client.close()


@pytest.mark.anyio
async def test_a_defect_ends_its_own_answer_only(monkeypatch, caplog):
    device = SimulatedEndpoint("device", WORDY, place="server")  # it writes any number of answers at once
    device.place = "device"
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
@pytest.mark.parametrize("moment", ["server writes", "last token came"])
def test_an_event_loop_that_ends_takes_the_answer_with_it(moment, backend):
    with upstream(script(moment)) as server:
        # The scripted answer to a warm-up is used up by asking for it.
        client = AsyncDisco(policy=THERE, base_url=server.base_url, api_key="x", max_retries=0)

        async def main() -> None:
            await client.models.list()
            stream = await client.chat.completions.create(**ASKED)
            await anext(stream)
            assert server.open
            return stream  # and keeps it

        kept = anyio.run(main, backend=backend)
        soon(lambda: not server.open)
        del kept


@pytest.mark.real
def test_an_event_loop_that_is_closed_over_running_tasks_stops_the_model(device):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    client = AsyncDisco(local=device, policy=HERE)

    async def main(client):
        stream = await client.chat.completions.create(**ASKED)
        await anext(stream)
        return stream

    stream = loop.run_until_complete(main(client))
    assert generates(device)
    loop.close()
    soon(lambda: not generates(device))
    with pytest.MonkeyPatch.context() as patched:  # what asyncio says of tasks that were left behind
        patched.setattr(sys, "unraisablehook", lambda unraisable: None)
        del stream, client
        gc.collect()


# ---------------------------------------------------------------------- threads


@pytest.mark.real
@pytest.mark.parametrize("way", ["with", "close", "drop", "break"])
def test_leaving_a_stream_of_the_synchronous_client(device, way):
    with Disco(local=device, policy=HERE) as client:
        stream = client.chat.completions.create(**ASKED)
        assert generates(device)
        gc.disable()  # what lies in a circle would only be found by the collector
        try:
            next(stream)
            if way == "with":
                with stream:
                    pass
            elif way == "close":
                stream.close()
            elif way == "break":
                for _ in stream:
                    break
            del stream
            soon(lambda: not generates(device))
        finally:
            gc.enable()


@pytest.mark.real
def test_closing_the_synchronous_client_ends_those_who_wait_in_other_threads():
    before = set(threading.enumerate())
    told = []
    with upstream([WAIT_FOR_CLOSE]) as server:
        client = Disco(policy=THERE, base_url=server.base_url, api_key="x", max_retries=0)

        def ask() -> None:
            try:
                client.chat.completions.create(**ASKED)
            except DiscoError as error:
                told.append(error)

        client.models.list()
        waiting = threading.Thread(target=ask)
        waiting.start()
        soon(server.asked.is_set)
        soon(lambda: len(server.requests) == 2)
        client.close()
        waiting.join(WITHIN_S)
        assert len(told) == 1
        soon(lambda: not server.open)
    soon(lambda: not new_threads(before))


@pytest.mark.real
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_client_with_its_own_model_leaves_no_thread(backend):
    before = set(threading.enumerate())

    async def main() -> None:
        async with AsyncDisco(local="smollm2-135m", policy=HERE) as client:
            stream = await client.chat.completions.create(**ASKED)
            await anext(stream)
        assert not new_threads(before)

    anyio.run(main, backend=backend)


@pytest.mark.real
def test_a_deadline_ends_a_synchronous_answer(device):
    with Disco(local=device, policy=HERE) as client, pytest.raises(openai.APITimeoutError):
        for _ in client.chat.completions.create(**ASKED, extra_body={"disco": {"deadline_s": 0.3}}):
            pass
    soon(lambda: not generates(device))


# ---------------------------------------------------------------------- HTTP


@pytest.mark.real
@pytest.mark.parametrize(
    ("moment", "stream"),
    [
        ("before headers", True),
        ("before the first token", False),
        ("server writes", True),
        ("server writes", False),
        ("last token came", True),
    ],
)
def test_a_client_of_the_http_server_that_hangs_up(moment, stream):
    with upstream(script(moment)) as server:
        address = {"base_url": server.base_url, "api_key": "x", "max_retries": 0}
        with serving(lambda on_route: AsyncDisco(policy=THERE, on_route=on_route, **address)) as served:
            raw = served.open("/v1/chat/completions", {**ASKED, "stream": stream})
            served.until(lambda: len(server.requests) == 2)  # the first was the warm-up
            if stream and moment in ("server writes", "last token came"):
                got = b""
                while b"word2" not in got:
                    got += raw.recv(65536)
            assert server.open
            raw.close()
            served.until(lambda: not server.open and served.routes, WITHIN_S)
            answered = moment == "last token came"
            assert served.routes[0].finish_reason in ("cancelled", *(["stop"] if answered else []))
            assert served.ask("/health").status == 200


@pytest.mark.real
def test_a_client_of_the_http_server_that_hangs_up_while_the_model_reads_its_prompt(device):
    long = [{"role": "user", "content": f"{time.monotonic_ns()}: {LONG}"}]
    with serving(lambda on_route: AsyncDisco(local=device, policy=HERE, on_route=on_route)) as served:
        raw = served.open("/v1/chat/completions", {"model": "m", "messages": long, "max_tokens": 20})
        soon(lambda: getattr(device._worker._running, "prompt_tokens", 0) > 0)
        raw.close()
        soon(lambda: not generates(device))
