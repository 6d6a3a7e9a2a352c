"""The engine in a host: it answers as in this process, and whatever happens to it the application goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import anyio
import pytest

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.host import HostEndpoint, host_process
from disco.endpoints.restart_backoff import Backoff
from disco.errors import (
    ConfigurationError,
    ContextLengthError,
    EndpointFailure,
    FailureKind,
    LocalModelError,
)
from disco.request import Prefix
from disco.testing.asking import next_event
from tests.endpoints.llamacpp.answers import ask, complete, fails, until

pytestmark = [
    pytest.mark.real,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="it is killed by signals here"),
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def fresh(**options):
    """An endpoint of a test's own."""
    own = {"name": "device", "context_tokens": 512, "threads": 1, "runtime": "engine"}
    endpoint = HostEndpoint(**{**own, **options})
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


LOOK = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 5}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": LOOK}}


async def test_it_writes_what_it_writes_in_this_process(thread_model, engine_host):
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": LOOK}}
    prefix = Prefix("The sea is big, and beauti", tokens=7, withheld=" beauti")
    asked = [
        (ask(max_tokens=8, temperature=1.5, seed=3, stop=["zebra"], logit_bias={"5": -100}), Prefix()),
        (ask(max_tokens=2, logprobs=True, top_logprobs=2), Prefix()),
        (ask(max_tokens=12), prefix),
        (ask(response_format=shape), Prefix()),
        (ask(max_tokens=30, tools=[TOOL], tool_choice="required"), Prefix()),
        (ask("Repeat: 🎉🦜🎉🦜🎉🦜🎉🦜", max_tokens=8), Prefix()),
        (ask(response_format={**shape, "json_schema": {"name": "n", "schema": {"not": {}}}}), Prefix()),
        (ask("secret " * 3000), Prefix()),
        (ask("half a character: \ud83c"), Prefix()),
    ]
    outcomes = [[], []]
    for endpoint, found in zip((thread_model, engine_host), outcomes, strict=True):
        # It ends with an empty cache: both compute the same from here on.
        await endpoint.measure(prompt_tokens=(1,), depths=())
        for request, before in asked:
            try:
                _, deltas, ended = await complete(endpoint, request, before)
            except EndpointFailure as failure:
                found.append((failure.kind, type(failure.error), str(failure.error)))
            else:
                written = json.dumps([asdict(delta) for delta in deltas], sort_keys=True)
                found.append((ended, re.sub("call_[0-9a-zA-Z]+", "call", written)))  # drawn by lot
    assert outcomes[0] == outcomes[1]
    failed = [FailureKind.UNSERVED, FailureKind.CONTEXT_LENGTH, FailureKind.BAD_REQUEST]
    assert [kind for kind, *_ in outcomes[0][-3:]] == failed
    odd = {"type": "function", "function": {**TOOL["function"], "description": object()}}
    assert (await fails(engine_host, ask(tools=[odd]))).kind is FailureKind.BAD_REQUEST
    capabilities = engine_host.capabilities()
    assert (engine_host.parameters, capabilities.ready) == (134_515_008, True)
    assert capabilities.vocabulary.startswith("gguf:")
    assert os.getsid(engine_host.process_id) != os.getsid(0)  # out of Ctrl-C's reach


def test_the_back_off_doubles_up_to_a_bound_and_forgets():
    backoff, waits = Backoff(), []
    assert backoff.left_s(0.0) == 0
    for now in range(0, 1000, 10):
        backoff.lost("It died.", now)
        waits.append(backoff.left_s(now))
        assert backoff.left_s(now + 0.25) == waits[-1] - 0.25
        assert backoff.left_s(now + 30) == 0
    assert (waits[:8], waits[-1]) == ([0.5, 1, 2, 4, 8, 16, 30, 30], 30)
    backoff.served()
    backoff.lost("It died.", 2000)
    assert backoff.left_s(2000) == 0.5


async def test_loading_has_its_own_limit():
    async with fresh(load_within_s=0.1) as endpoint:
        with pytest.raises(LocalModelError, match=r"was still loading after 0\.1 s"):
            await endpoint.warm_up()


IMPOSTORS = {
    "import sys; sys.stdin.readline(); sys.stderr.write('my secret prompt\\nggml.c:7: GGML_ASSERT(a >= 0) failed\\n')\n"
    "sys.stderr.flush(); import os; os.abort()": r"aborted \(SIGABRT\) while it loaded its model",
    "import no_such_module_of_secrets": r"ended with exit code 1 \(ModuleNotFoundError: No module",
    "print('hello')": r"ended with exit code 0 while it loaded",
    "import os, time; os.kill(os.getpid(), 9)": r"killed \(SIGKILL\)",
}


@pytest.mark.parametrize("script", IMPOSTORS)
async def test_the_message_says_why_and_is_not_tried_again_unasked(script, monkeypatch):
    started = []

    def command(program):
        started.append(program)
        return [sys.executable, "-c", script]

    monkeypatch.setattr(host_process, "host_command", command)
    async with fresh() as endpoint:
        with anyio.fail_after(60), pytest.raises(LocalModelError, match=IMPOSTORS[script]) as caught:
            await endpoint.warm_up()
        await until(lambda: endpoint._process._backoff.left_s(time.monotonic()) == 0)
        await anyio.sleep(0.1)
        assert started == ["engine"]
    assert "secret prompt" not in str(caught.value)


async def test_a_mistake_of_the_users_keeps_its_type():
    async with fresh(chat_template="{% for") as endpoint:
        with pytest.raises(ConfigurationError, match="chat_template"):
            await endpoint.warm_up()
        assert endpoint._process._backoff.left_s(time.monotonic()) == 0


SEA = [{"role": "user", "content": "Tell me about the sea."}]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # Where nothing collects orphans, a dead one stays as a zombie.
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


KILLED, STOPPED = (signal.SIGKILL, "was killed (SIGKILL)"), (signal.SIGSTOP, "made no progress for 1 s")


@pytest.mark.parametrize(("anyio_backend", "blow"), [("trio", KILLED), ("asyncio", STOPPED)])
async def test_another_endpoint_carries_on_in_mid_answer(llama_server, anyio_backend, blow):
    number, why = blow
    async with fresh(context_tokens=2048, hang_s=1.0) as device:
        await carries_on(llama_server, device, number, why)


async def carries_on(llama_server, device, number, why):
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
    failure, none = [one.failure for one in route.attempts]
    # On a busy machine the session may find the silence too long before the supervisor does.
    assert failure == "crashed" or (number == signal.SIGSTOP and failure == "stalled")
    assert none is None
    assert (route.seamless, route.finish_reason) == (True, "length")
    first, last = route.segments
    assert (first.endpoint, last.endpoint, last.end_char) == ("device", "server", len(text))
    assert text.startswith(expected[:20])
    assert text.count(text[: first.end_char]) == 1  # nothing was said again
    await until(lambda: not alive(pid))
    assert why in device._process._backoff.why


@pytest.mark.slow
async def test_it_comes_back_by_itself_and_later_each_time(engine_host):
    device = engine_host
    await complete(device, ask(max_tokens=1))  # its back-off is at the beginning
    first = device.process_id
    os.kill(first, signal.SIGKILL)
    await until(lambda: not device.capabilities().ready)
    failure = await fails(device, ask())
    assert (failure.kind, "takes requests again in" in str(failure.error)) == (FailureKind.CRASHED, True)
    assert 0 < failure.retry_after_s < 0.6
    await until(lambda: device.capabilities().ready)
    await device.warm_up()  # which is no answer
    # In mid-answer it is known what was used until then.
    attempt = device.open(ask(max_tokens=500))
    await next_event(attempt)
    assert device.process_id != first
    os.kill(device.process_id, signal.SIGKILL)
    written = 1
    with pytest.raises(EndpointFailure) as caught:  # noqa: PT012 - it is told behind what was written
        async for event in attempt:
            written += sum(delta.tokens for delta in event)
    assert caught.value.kind is FailureKind.CRASHED
    assert caught.value.retry_after_s > 0.6
    assert isinstance(caught.value.error, LocalModelError)
    assert all(word in str(caught.value.error) for word in ("'device'", "memory"))
    assert (attempt.usage.completion_tokens >= written, attempt.usage.prompt_tokens > 10) == (True, True)
    await attempt.aclose()
    await until(lambda: device.capabilities().ready)
    assert (await complete(device, ask(max_tokens=2)))[0]


@pytest.mark.parametrize(("doing", "anyio_backend"), [("loading", "trio"), ("hanging", "asyncio")])
async def test_closing_leaves_neither_process_nor_thread(doing, anyio_backend):
    async with fresh(name="closing") as endpoint:
        attempt = endpoint.open(ask("Hello.", max_tokens=200))

        async def read():
            with pytest.raises(StopAsyncIteration):
                await next_event(attempt)

        async with anyio.create_task_group() as group:
            if doing == "hanging":
                await next_event(attempt)
                os.kill(endpoint.process_id, signal.SIGSTOP)
            else:
                group.start_soon(read)
                await until(lambda: endpoint.process_id is not None)
            pid = endpoint.process_id
            with anyio.fail_after(20):  # 0.2 s on a machine that has nothing else to do
                await endpoint.aclose()
        assert not alive(pid)
        assert (endpoint.process_id, endpoint.capabilities().ready) == (None, False)
        assert [thread for thread in threading.enumerate() if "closing" in thread.name] == []
        assert (await fails(endpoint, ask())).kind is FailureKind.CRASHED
        await endpoint.aclose()
        await attempt.aclose()


PROGRAM = """
import sys, anyio
from disco import AsyncDisco
from disco.endpoints.host import HostEndpoint

async def main(stays):
    endpoint = HostEndpoint(context_tokens=2048, threads=1, runtime="engine")
    client = AsyncDisco(local=endpoint, preset="private", state=False)
    hello = [{"role": "user", "content": "Hello."}]
    stream = await client.chat.completions.create(model="m", messages=hello, max_tokens=2000, stream=True)
    await anext(stream)
    print(endpoint.process_id, flush=True)
    if stays == "stays":
        await stream.close()  # so that it has nothing to say, and must notice all the same
        await anyio.sleep(60)

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.slow
def test_a_program_that_forgets_to_close_ends_quietly_and_one_that_is_killed_leaves_no_process():
    command = [sys.executable, "-c", PROGRAM, "ends"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    anyio.run(until, lambda: not alive(int(done.stdout)))
    command = [sys.executable, "-c", PROGRAM, "stays"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        pid = int(program.stdout.readline())
        assert alive(pid)
        program.kill()
    anyio.run(until, lambda: not alive(pid))


async def test_a_text_that_is_too_long_is_named_and_not_the_messages():
    endpoint = HostEndpoint(name="device", runtime="engine", context_tokens=512, threads=1)
    try:
        with pytest.raises(ContextLengthError) as refused:
            await endpoint.log_probabilities(ask(), ["river " * 500, "a"])
    finally:
        await endpoint.aclose()
    assert refused.value.param == "texts"
    assert "messages and texts" in str(refused.value)
