"""Whatever happens to the model's process, the answer and the application go on, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest
from loops import by_turns, mostly

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp.runtime import child_process
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from tests.endpoints.conformance import next_event
from tests.endpoints.llamacpp.answers import ask, complete, drain, fails, fresh, until

pytestmark = [
    pytest.mark.real,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="it is killed by signals here"),
]

SEA = [{"role": "user", "content": "Tell me about the sea."}]
RIVER = "river " * 200 + "\nTell me about the sea."  # half a second or more of prefill


@pytest.fixture
async def device(process_model):
    """The shared process, with its back-off at the beginning."""
    await complete(process_model, ask(max_tokens=1))
    return process_model


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # Where nothing collects orphans, a dead one stays as a zombie.
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def kill(endpoint):
    pid = endpoint.process_id
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.parametrize(
    ("anyio_backend", "number", "why"),
    [
        ("trio", signal.SIGKILL, "was killed (SIGKILL)"),
        pytest.param("asyncio", signal.SIGABRT, "aborted (SIGABRT)", marks=pytest.mark.slow),
        ("asyncio", signal.SIGSTOP, "made no progress for 2 s"),
    ],
    indirect=["anyio_backend"],
)
async def test_another_endpoint_carries_on_in_mid_answer(llama_server, device, number, why, monkeypatch):
    monkeypatch.setattr(device._process, "_hang_s", 2.0)
    expected, _, _ = await complete(device, ask(SEA[0]["content"], max_tokens=10))
    off = {"migration": {"enabled": False}, "playback": {"pace_tps": 1000.0}}
    policy = Preset(dispatch={"policy": "device_only"}, **off)
    how = Continuation(method="completions", template=str(llama_server.gguf))
    base = {"base_url": llama_server.base_url, "api_key": "test-key", "continuation": how}
    async with AsyncDisco(local=device, policy=policy, **base) as client:
        stream = await client.chat.completions.create(
            model=llama_server.model, messages=SEA, stream=True, max_tokens=30, temperature=0
        )
        text, pid = "", None
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if pid is None and len(text) > 20:
                pid = device.process_id
                os.kill(pid, number)
    route = stream.route
    assert [piece.endpoint for piece in route.segments] == ["device", "server"]
    assert [one.failure for one in route.attempts] == ["crashed", None]
    assert (route.seamless, route.finish_reason) == (True, "length")
    assert route.segments[-1].end_char == len(text)
    assert text.startswith(expected[:20])
    device_text = text[: route.segments[0].end_char]
    assert text.count(device_text) == 1  # nothing was said again
    await until(lambda: not alive(pid))
    assert why in device._worker._backoff.why


@mostly("trio")
async def test_without_another_endpoint_the_answer_waits_for_the_new_process(device, anyio_backend):
    """Killed before the first token, and killed again in mid-answer."""
    async with AsyncDisco(local=device, policy="private") as client:
        # Tokens 0 and 2 would end the answer.
        asked = {"model": "m", "stream": True, "temperature": 0, "logit_bias": {"0": -100, "2": -100}}
        async with anyio.create_task_group() as group:
            group.start_soon(kill_while_it_reads, device)
            stream = await client.chat.completions.create(
                messages=[{"role": "user", "content": RIVER}], max_tokens=8, **asked
            )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert [one.failure for one in stream.route.attempts] == ["crashed", None]
        assert stream.route.attempts[0].prompt_tokens > 0
        stream = await client.chat.completions.create(messages=SEA, max_tokens=20, **asked)
        chunks = 0
        async for _ in stream:
            chunks += 1
            if chunks == 4:
                kill(device)
        assert [one.failure for one in stream.route.attempts] == ["crashed", None]
        assert (stream.route.finish_reason, stream.route.seamless) == ("length", True)
        assert stream.route.answer_tokens <= 20


async def kill_while_it_reads(device):
    heard = device._process._heard
    await until(lambda: device._process._heard > heard + 2)
    kill(device)


async def test_it_comes_back_by_itself_and_later_each_time(device):
    first = kill(device)
    await until(lambda: not device.capabilities().ready)
    failure = await fails(device, ask())
    assert (failure.kind, "takes requests again in" in str(failure.error)) == (FailureKind.CRASHED, True)
    assert 0 < failure.retry_after_s < 0.6
    await until(lambda: device.capabilities().ready)
    await device.warm_up()  # which is no answer
    # In mid-answer it is known what was used until then.
    attempt = device.open(ask(max_tokens=500))
    await next_event(attempt)
    assert kill(device) != first
    written = 1
    with pytest.raises(EndpointFailure) as caught:  # noqa: PT012 - it is told behind what was written
        async for event in attempt:
            written += sum(delta.tokens for delta in event)
    assert caught.value.kind is FailureKind.CRASHED
    assert caught.value.retry_after_s > 0.6
    assert isinstance(caught.value.error, LocalModelError)
    assert all(word in str(caught.value.error) for word in ("'device'", "memory"))
    assert attempt.usage.completion_tokens >= written
    assert attempt.usage.prompt_tokens > 10
    await attempt.aclose()
    await until(lambda: device.capabilities().ready)
    assert (await complete(device, ask(max_tokens=2)))[0]


async def test_a_death_while_loading_is_told_and_not_repeated_unasked():
    async with fresh(isolation="process") as endpoint:

        async def warm_up():
            with pytest.raises(LocalModelError, match="SIGKILL"):
                await endpoint.warm_up()

        async with anyio.create_task_group() as group:
            group.start_soon(warm_up)
            await until(lambda: endpoint.process_id is not None)
            kill(endpoint)
        await until(lambda: endpoint.process_id is None)
        # The pause began before the death was told.
        await until(lambda: endpoint._worker._backoff.left_s(time.monotonic()) == 0)
        await anyio.sleep(0.1)
        assert endpoint.process_id is None
        await endpoint.warm_up()
        assert endpoint.capabilities().ready


@mostly("asyncio")
async def test_a_process_that_cannot_be_stopped_is_ended(device, anyio_backend, monkeypatch):
    monkeypatch.setattr(child_process, "STOP_S", 0.2)
    attempt = device.open(ask(max_tokens=500))
    await next_event(attempt)
    pid = device.process_id
    os.kill(pid, signal.SIGSTOP)

    async def wait():
        await fails(device, ask("x" * 10**6))  # more than a pipe holds; no one must wait for it to be taken

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.01)
        with anyio.fail_after(20):
            await attempt.aclose()
        await until(lambda: not alive(pid))


@pytest.mark.parametrize(("doing", "anyio_backend"), by_turns(["reading", "loading", "hanging"]))
async def test_closing_leaves_neither_process_nor_thread(doing, anyio_backend, monkeypatch):
    monkeypatch.setattr(child_process, "STOP_S", 1000.0)  # closing is no stopping, and waits for none
    async with fresh(isolation="process", name="closing") as endpoint:
        attempt = endpoint.open(ask(RIVER if doing == "reading" else "Hello.", max_tokens=200))
        async with anyio.create_task_group() as group:
            if doing == "hanging":
                await next_event(attempt)
            else:
                group.start_soon(drain_in_vain, attempt)
            if doing == "reading":
                # Loaded, and two batches.
                await until(lambda: endpoint._process is not None and endpoint._process._heard > 3)
            await until(lambda: endpoint.process_id is not None)
            pid = endpoint.process_id
            if doing == "hanging":
                os.kill(pid, signal.SIGSTOP)
            with anyio.fail_after(20):  # 0.2 s on a machine that has nothing else to do
                await endpoint.aclose()
        assert not alive(pid)
        assert endpoint.process_id is None
        assert not endpoint.capabilities().ready
        assert [thread for thread in threading.enumerate() if "closing" in thread.name] == []
        assert (await fails(endpoint, ask())).kind is FailureKind.CRASHED
        await endpoint.aclose()
        await attempt.aclose()


async def drain_in_vain(attempt):
    with pytest.raises(EndpointFailure, match="crashed"):
        await drain(attempt)


PROGRAM = """
import sys, anyio
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.request import Request

async def main(stays, *isolations):
    for isolation in isolations:
        endpoint = LlamaCppEndpoint(context_tokens=2048, threads=1, isolation=isolation)
        attempt = endpoint.open(Request([{"role": "user", "content": "Hello."}], "m", {"max_tokens": 2000}))
        await anext(attempt)
        await anext(attempt)  # behind the word that its turn has come
    if stays == "stays":
        await attempt.aclose()  # so that it has nothing to say, and must notice all the same
    print(endpoint.process_id, flush=True)
    if stays == "stays":
        await anyio.sleep(60)

anyio.run(main, *sys.argv[1:])
"""


def test_a_program_that_forgets_to_close_ends_quietly_and_wholly():
    command = [sys.executable, "-c", PROGRAM, "ends", "thread", "process"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert not alive(int(done.stdout))


def test_a_program_that_is_killed_leaves_no_process():
    command = [sys.executable, "-c", PROGRAM, "stays", "process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        pid = int(program.stdout.readline())
        assert alive(pid)
        program.kill()
    anyio.run(until, lambda: not alive(pid))


def test_the_client_starts_one_and_ends_it():
    with Disco(local="smollm2-135m", isolation="process", policy="private") as client:
        answer = client.chat.completions.create(model="m", messages=SEA, max_tokens=2)
        assert answer.choices[0].message.content
        pid = client.routed.router.local.process_id
        assert alive(pid)
    assert not alive(pid)
