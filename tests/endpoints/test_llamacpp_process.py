"""The model in a process of its own: whatever happens to that process, the answer and the application go on."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from loops import by_turns, mostly
from servers import smollm2_gguf

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.runtime import child_process
from disco.endpoints.llamacpp.runtime.restart_backoff import Backoff
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, LocalModelError, ModelFileError
from disco.events import Ended, Started
from disco.request import Prefix, Request
from tests.endpoints.conformance import next_event

pytest.importorskip("llama_cpp")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="it is killed by signals here"),
]

SEA = [{"role": "user", "content": "Tell me about the sea."}]
RIVER = [
    {"role": "user", "content": "river " * 200 + "\nTell me about the sea."}
]  # half a second or more of prefill
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "maxLength": 9}},
            "required": ["at"],
        },
    },
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def make(**options):
    options = {"name": "device", "context_tokens": 2048, "threads": 1, **options}
    return LlamaCppEndpoint(isolation="process", **options)


@pytest.fixture(scope="module")
def shared():
    """For tests that leave it as they found it, or let it come back."""
    endpoint = make()
    yield endpoint
    anyio.run(endpoint.aclose)


@pytest.fixture
async def device(shared):
    """The same, ready, and with its back-off at the beginning."""
    await until(lambda: shared._worker._thread is None or shared.capabilities().ready)
    await complete(shared, ask(max_tokens=1))
    return shared


@asynccontextmanager
async def fresh(**options):
    endpoint = make(**options)
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


def ask(messages=SEA, max_tokens=20, **params):
    return Request(list(messages), "m", {"temperature": 0, "max_tokens": max_tokens, **params})


async def complete(endpoint, request, prefix=None):
    deltas = []
    async with endpoint.open(request, prefix or Prefix()) as attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                return deltas, event
            if not isinstance(event, Started):
                deltas += event
    raise AssertionError("no Ended")


async def drain(attempt):
    async for _ in attempt:
        pass


async def until(what, within_s=60.0):
    with anyio.fail_after(within_s):
        while not what():  # noqa: ASYNC110 - it is another process's state
            await anyio.sleep(0.01)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # Where nobody collects orphans, a dead one stays as a zombie.
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


# ---------------------------------------------------------------------- the same as in a thread


async def test_it_writes_what_the_thread_writes(device):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    prefix = Prefix("The sea is big, and beauti", tokens=7, withheld=" beauti")
    asked = [
        (ask(max_tokens=12, temperature=1.5, seed=3, stop=["zebra"], logit_bias={"5": -100}), None),
        (ask(max_tokens=4, logprobs=True, top_logprobs=2), None),
        (ask(max_tokens=12), prefix),
        (ask(max_tokens=20, response_format=shape), None),
        (ask(max_tokens=40, tools=[TOOL], tool_choice="required"), None),
        (ask([{"role": "user", "content": "Repeat: 🎉🦜🎉🦜\ud83c"}], max_tokens=12), None),
    ]
    thread = LlamaCppEndpoint(name="device", context_tokens=2048, threads=1)
    try:
        for endpoint in (thread, device):
            await complete(endpoint, ask(max_tokens=1))  # so that their caches are alike from here on
        for request, before in asked:
            outcomes = []
            for endpoint in (thread, device):
                try:
                    deltas, ended = await complete(endpoint, request, before)
                except EndpointFailure as failure:
                    outcomes.append((failure.kind, type(failure.error), str(failure.error)))
                else:
                    outcomes.append(([plain(delta) for delta in deltas], ended))
            assert outcomes[0] == outcomes[1]
        assert outcomes[0][0] is FailureKind.BAD_REQUEST  # half a character
    finally:
        await thread.aclose()


def plain(delta):
    fields = dataclasses.asdict(delta)
    for call in fields["tool_calls"]:
        call.pop("id")  # drawn by lot
    return fields


async def test_facts_and_measurements_arrive(device):
    steps = []
    measured = await device.measure(
        prompt_tokens=(8, 10**6), depths=(8,), decode_tokens=2, progress=lambda *step: steps.append(step)
    )
    assert [one.tokens for one in measured.prefill] == [8]
    assert measured.decode[0].tps > 0
    assert measured.load_s > 0.1  # starting an interpreter alone takes that long
    assert steps == [(1, 2), (2, 2)]
    assert device.parameters == 134_515_008
    capabilities = device.capabilities()
    assert capabilities.ready
    assert capabilities.vocabulary.startswith("gguf:")
    assert os.getsid(device.process_id) != os.getsid(0)  # out of Ctrl-C's reach


async def test_refusals_and_errors_cross_the_border(device):
    with pytest.raises(EndpointFailure) as caught:
        await complete(device, ask([{"role": "user", "content": "secret " * 3000}]))
    assert caught.value.kind is FailureKind.CONTEXT_LENGTH
    assert "2,048" in str(caught.value.error)
    assert "secret" not in str(caught.value.error)
    odd = {"type": "function", "function": {**TOOL["function"], "description": object()}}
    with pytest.raises(EndpointFailure) as caught:
        await complete(device, ask(tools=[odd]))
    assert caught.value.kind is FailureKind.BAD_REQUEST
    async with fresh(chat_template="{% for") as endpoint:
        with pytest.raises(ConfigurationError, match="chat_template"):
            await endpoint.warm_up()
        assert endpoint.process_id is None
        with pytest.raises(ConfigurationError, match="chat_template"):  # no back-off: it did not crash
            await endpoint.warm_up()


# ---------------------------------------------------------------------- dying


def routed(llama_server, endpoint):
    return AsyncDisco(
        local=endpoint,
        policy=Preset(
            dispatch={"policy": "device_only"}, playback={"pace_tps": 1000.0}, migration={"enabled": False}
        ),
        base_url=llama_server.base_url,
        api_key="test-key",
        continuation=Continuation(method="completions", template=str(llama_server.gguf)),
    )


@pytest.mark.parametrize(
    ("anyio_backend", "number", "why"),
    [
        ("trio", signal.SIGKILL, "was killed (SIGKILL)"),
        pytest.param("asyncio", signal.SIGABRT, "aborted (SIGABRT)", marks=pytest.mark.slow),
        ("asyncio", signal.SIGSTOP, "did nothing for 2 s"),
    ],
    indirect=["anyio_backend"],
)
async def test_another_endpoint_carries_on_in_mid_answer(llama_server, device, number, why, monkeypatch):
    monkeypatch.setattr(device._process, "_hang_s", 2.0)
    expected = "".join(delta.text for delta in (await complete(device, ask(max_tokens=10)))[0])
    async with routed(llama_server, device) as client:
        stream = await client.chat.completions.create(
            model=llama_server.model, messages=SEA, stream=True, max_tokens=40, temperature=0
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
    assert route.seamless
    assert route.finish_reason == "length"
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
            stream = await client.chat.completions.create(messages=RIVER, max_tokens=8, **asked)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text
        assert [one.failure for one in stream.route.attempts] == ["crashed", None]
        assert stream.route.attempts[0].prompt_tokens > 0
        stream = await client.chat.completions.create(messages=SEA, max_tokens=30, **asked)
        chunks = 0
        async for _ in stream:
            chunks += 1
            if chunks == 4:
                os.kill(device.process_id, signal.SIGKILL)
        assert [one.failure for one in stream.route.attempts] == ["crashed", None]
        assert stream.route.finish_reason == "length"
        assert stream.route.seamless
        assert stream.route.answer_tokens <= 30


async def kill_while_it_reads(device):
    heard = device._process._heard
    await until(lambda: device._process._heard > heard + 2)
    os.kill(device.process_id, signal.SIGKILL)


async def test_what_was_used_is_known_after_a_death(device):
    attempt = device.open(ask(max_tokens=500))
    await next_event(attempt)
    os.kill(device.process_id, signal.SIGKILL)
    written, failure = 1, None
    try:
        async for event in attempt:
            written += sum(delta.tokens for delta in event)
    except EndpointFailure as raised:
        failure = raised
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert isinstance(failure.error, LocalModelError)
    assert "'device'" in str(failure.error)
    assert "memory" in str(failure.error)
    assert 0.3 < failure.retry_after_s < 0.7
    assert attempt.usage.completion_tokens >= written
    assert attempt.usage.prompt_tokens > 10
    await attempt.aclose()


async def test_it_comes_back_by_itself_and_later_each_time(device):
    first = device.process_id
    os.kill(first, signal.SIGKILL)  # with nobody there who would notice
    await until(lambda: not device.capabilities().ready)
    for _ in range(2):
        with pytest.raises(EndpointFailure, match="crashed") as caught:
            await complete(device, ask())
        assert "takes requests again in" in str(caught.value.error)
        assert 0 < caught.value.retry_after_s < 0.6
    await until(lambda: device.capabilities().ready)
    second = device.process_id
    assert second != first
    await device.warm_up()  # which is no answer
    os.kill(second, signal.SIGKILL)
    await until(lambda: not device.capabilities().ready)
    with pytest.raises(EndpointFailure) as caught:
        await complete(device, ask())
    assert caught.value.retry_after_s > 0.6
    await until(lambda: device.capabilities().ready)
    assert (await complete(device, ask(max_tokens=2)))[0]


def test_the_back_off_doubles_up_to_a_bound_and_forgets():
    backoff = Backoff()
    assert backoff.left_s(0.0) == 0
    waits = []
    for now in range(0, 1000, 10):
        backoff.lost("It died.", now)
        waits.append(backoff.left_s(now))
        assert backoff.left_s(now + 0.25) == waits[-1] - 0.25
        assert backoff.left_s(now + 30) == 0
    assert waits[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert waits[-1] == 30
    backoff.served()
    backoff.lost("It died.", 2000)
    assert backoff.left_s(2000) == 0.5


async def test_a_death_while_loading_is_told_and_not_repeated_unasked():
    async with fresh() as endpoint:

        async def warm_up():
            with pytest.raises(LocalModelError, match="SIGKILL"):
                await endpoint.warm_up()

        async with anyio.create_task_group() as group:
            group.start_soon(warm_up)
            await until(lambda: endpoint.process_id is not None)
            os.kill(endpoint.process_id, signal.SIGKILL)
        await until(lambda: endpoint.process_id is None)
        # The pause began before the death was told.
        await until(lambda: endpoint._worker._backoff.left_s(time.monotonic()) == 0)
        await anyio.sleep(0.1)
        assert endpoint.process_id is None
        await endpoint.warm_up()
        assert endpoint.capabilities().ready


async def test_loading_has_its_own_limit():
    async with fresh(load_within_s=0.1) as endpoint:
        with pytest.raises(LocalModelError, match=r"loaded nothing for 0\.1 s"):
            await endpoint.warm_up()


IMPOSTORS = {
    "import sys; sys.stdin.readline(); sys.stderr.write('my secret prompt\\nggml.c:7: GGML_ASSERT(a >= 0) failed\\n')\n"
    "sys.stderr.flush(); import os; os.abort()": r"aborted \(SIGABRT\) after GGML_ASSERT\(a >= 0\) failed\.",
    "import no_such_module_of_secrets": r"ended with exit code 1 after ModuleNotFoundError\.",
    "print('hello'); import time; time.sleep(60)": r"sent something unreadable \(JSONDecodeError\)",
    "import os, time; os.close(1); time.sleep(60)": r"killed \(SIGKILL\)",
}


@pytest.mark.parametrize("script", IMPOSTORS)
async def test_the_message_says_why_and_quotes_nothing(script, monkeypatch):
    def start():
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)

    monkeypatch.setattr(child_process, "_start", start)
    async with fresh() as endpoint:
        with pytest.raises(LocalModelError, match=IMPOSTORS[script]) as caught:
            await endpoint.warm_up()
    assert "secret" not in str(caught.value)


async def test_a_process_may_end_before_its_last_thread_has_started(monkeypatch):
    """On a busy machine a thread's start takes longer than a process's whole life."""

    class Slow(threading.Thread):
        def start(self):
            super().start()
            time.sleep(0.5)

    def start():
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", "print('hello')"], stdin=pipe, stdout=pipe, stderr=pipe
        )

    monkeypatch.setattr(child_process, "_start", start)
    monkeypatch.setattr(child_process.threading, "Thread", Slow)
    async with fresh() as endpoint:
        with anyio.fail_after(30), pytest.raises(LocalModelError, match="sent something unreadable"):
            await endpoint.warm_up()


# ---------------------------------------------------------------------- stopping


@mostly("asyncio")
async def test_a_process_that_cannot_be_stopped_is_ended(device, anyio_backend, monkeypatch):
    monkeypatch.setattr(child_process, "STOP_S", 0.2)
    attempt = device.open(ask(max_tokens=500))
    await next_event(attempt)
    pid = device.process_id
    os.kill(pid, signal.SIGSTOP)
    # More than a pipe holds; nobody must wait for it to be taken.
    waiting = device.open(ask([{"role": "user", "content": "x" * 10**6}]))
    async with anyio.create_task_group() as group:

        async def wait():
            with pytest.raises(EndpointFailure):
                await next_event(waiting)

        group.start_soon(wait)
        await anyio.sleep(0.01)
        with anyio.fail_after(20):
            await attempt.aclose()
        await until(lambda: not alive(pid))


@pytest.mark.parametrize(
    ("doing", "anyio_backend"), by_turns(["nothing", "generating", "reading", "loading", "hanging"])
)
async def test_closing_leaves_neither_process_nor_thread(doing, anyio_backend, monkeypatch):
    monkeypatch.setattr(child_process, "STOP_S", 1000.0)  # closing is no stopping, and waits for none
    endpoint = make(name="closing")
    attempt = endpoint.open(ask(RIVER if doing == "reading" else SEA, max_tokens=500))
    if doing == "loading":
        async with anyio.create_task_group() as group:
            group.start_soon(warm_up_in_vain, endpoint)
            await until(lambda: endpoint.process_id is not None)
            pid = endpoint.process_id
            await endpoint.aclose()
    else:
        await endpoint.warm_up()
        pid = endpoint.process_id
        async with anyio.create_task_group() as group:
            if doing in ("generating", "hanging"):
                await next_event(attempt)
            if doing == "reading":
                group.start_soon(drain_in_vain, attempt)
                await until(lambda: endpoint._process._heard > 3)  # loaded, and two batches
            if doing == "hanging":
                os.kill(pid, signal.SIGSTOP)
            with anyio.fail_after(20):  # 0.2 s on a machine that has nothing else to do
                await endpoint.aclose()
    assert not alive(pid)
    assert endpoint.process_id is None
    assert not endpoint.capabilities().ready
    assert [thread for thread in threading.enumerate() if "closing" in thread.name] == []
    with pytest.raises(EndpointFailure, match="crashed"):
        await drain(endpoint.open(ask()))
    await endpoint.aclose()
    await attempt.aclose()


async def warm_up_in_vain(endpoint):
    with pytest.raises(LocalModelError, match="closed"):
        await endpoint.warm_up()


async def drain_in_vain(attempt):
    with pytest.raises(EndpointFailure):
        await drain(attempt)


PROGRAM = """
import sys, anyio
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.request import Request

async def main():
    endpoint = LlamaCppEndpoint(context_tokens=2048, threads=1, isolation="process")
    attempt = endpoint.open(Request([{"role": "user", "content": "Hello."}], "m", {"max_tokens": 2000}))
    await anext(attempt)
    await anext(attempt)  # behind the word that its turn has come
    if sys.argv[1:]:
        await attempt.aclose()  # so that it has nothing to say, and must notice all the same
    print(endpoint.process_id, flush=True)
    if sys.argv[1:]:
        await anyio.sleep(60)

anyio.run(main)
"""


def test_a_program_that_forgets_to_close_ends_quietly_and_wholly():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not alive(int(done.stdout))


def test_a_program_that_is_killed_leaves_no_process():
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, "stay"], stdout=subprocess.PIPE, text=True)
    with program:
        pid = int(program.stdout.readline())
        assert alive(pid)
        program.kill()
    anyio.run(until, lambda: not alive(pid))


# ---------------------------------------------------------------------- configuring


async def test_a_broken_file_costs_no_process(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(child_process, "_start", lambda: started.append(1))  # it fails then, too
    path = tmp_path / "half.gguf"
    path.write_bytes(smollm2_gguf().read_bytes()[:-1000])
    async with fresh(model=path) as endpoint:
        with pytest.raises(ModelFileError, match=r"half\.gguf.*truncated"):
            await endpoint.warm_up()
    assert started == []


async def test_what_cannot_be_is_refused_at_once(monkeypatch):
    for options, says in (
        ({"isolation": "fork"}, '"thread" or "process", not \'fork\''),
        ({"isolation": "process", "hang_s": 0.0}, "hang_s"),
        ({"load_within_s": -1}, "load_within_s"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            LlamaCppEndpoint(**options)
    for client in (AsyncDisco, Disco):
        with pytest.raises(ConfigurationError, match="thread"):
            client(local="smollm2-135m", isolation="fork")
        with pytest.raises(ConfigurationError, match="give isolation to it"):
            client(local=LlamaCppEndpoint(), isolation="process")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigurationError, match='Use isolation="thread"'):
        LlamaCppEndpoint(isolation="process")


def test_the_client_hands_it_on():
    with Disco(local="smollm2-135m", isolation="process", policy="private") as client:
        answer = client.chat.completions.create(model="m", messages=SEA, max_tokens=2)
        assert answer.choices[0].message.content
        pid = client.routed.router.local.process_id
        assert alive(pid)
    assert not alive(pid)
