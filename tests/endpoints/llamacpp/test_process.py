"""The model in a process of its own: it answers as in a thread, and whatever happens to it the application goes on."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time

import anyio
import pytest
from servers import smollm2_gguf

from disco import AsyncDisco, Disco
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.runtime import child_process
from disco.endpoints.llamacpp.runtime.restart_backoff import Backoff
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, LocalModelError, ModelFileError
from disco.request import Prefix
from tests.endpoints.llamacpp.answers import ask, complete, fails, fresh

pytestmark = [
    pytest.mark.real,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="it is killed by signals here"),
]

LOOK = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 5}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": LOOK}}


def plain(delta):
    fields = dataclasses.asdict(delta)
    for call in fields["tool_calls"]:
        call.pop("id")  # drawn by lot
    return fields


async def test_it_writes_what_the_thread_writes(thread_model, process_model):
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": LOOK}}
    prefix = Prefix("The sea is big, and beauti", tokens=7, withheld=" beauti")
    asked = [
        (ask(max_tokens=8, temperature=1.5, seed=3, stop=["zebra"], logit_bias={"5": -100}), Prefix()),
        (ask(max_tokens=2, logprobs=True, top_logprobs=2), Prefix()),
        (ask(max_tokens=12), prefix),
        (ask(response_format=shape), Prefix()),
        (ask(max_tokens=30, tools=[TOOL], tool_choice="required"), Prefix()),
        (ask("Repeat: 🎉🦜🎉🦜🎉🦜🎉🦜", max_tokens=8), Prefix()),
        (ask("secret " * 3000), Prefix()),
        (ask("half a character: \ud83c"), Prefix()),
    ]
    failed = []
    for endpoint in (thread_model, process_model):
        # It ends with an empty cache: both compute the same from here on.
        await endpoint.measure(prompt_tokens=(1,), depths=())
    for request, before in asked:
        outcomes = []
        for endpoint in (thread_model, process_model):
            try:
                _, deltas, ended = await complete(endpoint, request, before)
            except EndpointFailure as failure:
                outcomes.append((failure.kind, type(failure.error), str(failure.error)))
                failed.append(failure.kind)
            else:
                outcomes.append(([plain(delta) for delta in deltas], ended))
        assert outcomes[0] == outcomes[1]
    assert failed[::2] == [FailureKind.CONTEXT_LENGTH, FailureKind.BAD_REQUEST]
    odd = {"type": "function", "function": {**TOOL["function"], "description": object()}}
    assert (await fails(process_model, ask(tools=[odd]))).kind is FailureKind.BAD_REQUEST
    capabilities = process_model.capabilities()
    assert (process_model.parameters, capabilities.ready) == (134_515_008, True)
    assert capabilities.vocabulary.startswith("gguf:")
    assert os.getsid(process_model.process_id) != os.getsid(0)  # out of Ctrl-C's reach


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


async def test_loading_has_its_own_limit():
    async with fresh(isolation="process", load_within_s=0.1) as endpoint:
        with pytest.raises(LocalModelError, match=r"was still loading after 0\.1 s"):
            await endpoint.warm_up()


def played_by(script, monkeypatch):
    """Every process of a model runs `script` instead."""

    def start():
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)

    monkeypatch.setattr(child_process, "_start", start)


IMPOSTORS = {
    "import sys; sys.stdin.readline(); sys.stderr.write('my secret prompt\\nggml.c:7: GGML_ASSERT(a >= 0) failed\\n')\n"
    "sys.stderr.flush(); import os; os.abort()": r"aborted \(SIGABRT\) after GGML_ASSERT\(a >= 0\) failed\.",
    "import no_such_module_of_secrets": r"ended with exit code 1 after ModuleNotFoundError\.",
    "print('hello'); import time; time.sleep(60)": r"sent something unreadable \(JSONDecodeError\)",
    "import os, time; os.close(1); time.sleep(60)": r"killed \(SIGKILL\)",
}


@pytest.mark.parametrize("script", IMPOSTORS)
async def test_the_message_says_why_and_quotes_nothing(script, monkeypatch):
    played_by(script, monkeypatch)
    async with fresh(isolation="process") as endpoint:
        with pytest.raises(LocalModelError, match=IMPOSTORS[script]) as caught:
            await endpoint.warm_up()
    assert "secret" not in str(caught.value)


async def test_a_process_may_end_before_its_last_thread_has_started(monkeypatch):
    """On a busy machine a thread's start takes longer than a process's whole life."""

    class Slow(threading.Thread):
        def start(self):
            super().start()
            time.sleep(0.5)

    played_by("print('hello')", monkeypatch)
    monkeypatch.setattr(child_process.threading, "Thread", Slow)
    async with fresh(isolation="process") as endpoint:
        with anyio.fail_after(60), pytest.raises(LocalModelError, match="sent something unreadable"):
            await endpoint.warm_up()


async def test_a_broken_file_costs_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(child_process, "_start", None)  # it fails then, too
    path = tmp_path / "half.gguf"
    path.write_bytes(smollm2_gguf().read_bytes()[:-1000])
    async with fresh(isolation="process", model=path) as endpoint:
        with pytest.raises(ModelFileError, match=r"half\.gguf.*truncated"):
            await endpoint.warm_up()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({option: 0}, option) for option in ("context_tokens", "threads", "batch_tokens", "max_queue")),
        ({"isolation": "fork"}, '"thread" or "process", not \'fork\''),
        ({"isolation": "process", "hang_s": 0.0}, "hang_s"),
        ({"load_within_s": -1}, "load_within_s"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, says, monkeypatch):
    with pytest.raises(ConfigurationError, match=says):
        LlamaCppEndpoint(**options)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigurationError, match='Use isolation="thread"'):
        LlamaCppEndpoint(isolation="process")


@pytest.mark.parametrize("client", [AsyncDisco, Disco])
def test_an_isolation_belongs_to_the_model(client):
    with pytest.raises(ConfigurationError, match="thread"):
        client(local="smollm2-135m", isolation="fork")
    with pytest.raises(ConfigurationError, match="Give isolation to that object"):
        client(local=LlamaCppEndpoint(), isolation="process")
