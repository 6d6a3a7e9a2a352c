"""What must stay on this machine does: a server that keeps every byte it is sent is sent none."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from everything import methods
from serving import serving

from disco import AsyncDisco, Backup, Disco
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind, LocalModelError, ModelFileError, NoEndpointError

pytestmark = [pytest.mark.real, pytest.mark.anyio]

HELLO = [{"role": "user", "content": "Tell me about the sea."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
KEY = "sk-canary-0123456789"
LOCAL = {"disco": {"local_only": True}}
WISH = {"default_options": {"local_only": True}}
LEAVES = "would leave this machine"


@pytest.fixture
def anyio_backend() -> str:
    """Who is asked does not depend on the event loop."""
    return "asyncio"


@dataclass
class Recorder:
    """Attributes: base_url for an OpenAI client; connections so far; received, all bytes of all of them."""

    base_url: str
    connections: int = 0
    received: bytes = b""

    @property
    def untouched(self) -> bool:
        """Nobody has so much as opened a connection."""
        return self.connections == 0 and self.received == b""


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Listen on loopback until the end of the block, and until everything that was sent has been read."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    seen = Recorder(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    def listen() -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                connection, _ = listener.accept()
                seen.connections += 1
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(0.2)  # whoever has sent nothing by then waits for us
                    while b"\r\n\r\n" not in seen.received and (part := connection.recv(65536)):
                        seen.received += part

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        listener.close()
        thread.join(60)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as server:
        yield server


def device(**profile: Any) -> SimulatedEndpoint:
    profile = SimulatedProfile(**{"gap_s": 0.001, "answer_tokens": 4, **profile})
    return SimulatedEndpoint("device", profile, place="device")


def private(recorder, kind: Any = AsyncDisco, **more: Any) -> Any:
    fixed = {"local": device(), "policy": "private", "api_key": KEY, "base_url": recorder.base_url}
    return kind(**{**fixed, "max_retries": 0, **more})


async def outcome(call: Any) -> Any:
    """What a call of either client comes to: its result, read to the end, or its exception."""
    try:
        result = call()
        if inspect.isawaitable(result):
            result = await result
        if hasattr(result, "__aenter__"):
            async with result as entered:
                if not hasattr(entered, "__aiter__"):
                    await entered.read()
                else:
                    async for _ in entered:
                        pass
        elif hasattr(result, "__enter__"):
            with result as entered:
                _ = list(entered) if hasattr(entered, "__iter__") else entered.read()
    except Exception as error:  # noqa: BLE001 - that is what is asked for
        return error
    return result


@contextlib.asynccontextmanager
async def used(client: AsyncDisco | Disco) -> AsyncIterator[AsyncDisco | Disco]:
    if isinstance(client, Disco):
        with client:
            yield client
    else:
        async with client:
            yield client


# ---------------------------------------------------------------------- every method of the SDK


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "more", "copied"),
    [
        (Disco, {}, {}),
        (AsyncDisco, {}, {}),
        (AsyncDisco, {"policy": "balanced", **WISH}, {}),
        (AsyncDisco, {"policy": "fast"}, WISH),
    ],
    ids=["sync", "policy", "default_options", "with_options"],
)
async def test_no_method_of_the_client_leaves(recorder, kind, more, copied):
    async with used(private(recorder, kind, **more)) as client:
        asked = client.with_options(**copied) if copied else client
        outcomes = {name: await outcome(call) for name, call in methods(asked)}
        for verb in (asked.get, asked.delete, asked.post, asked.put, asked.patch):
            outcomes[verb.__name__] = failed = await outcome(
                lambda verb=verb: verb("/anything", cast_to=object)
            )
            assert isinstance(failed, NoEndpointError)
    assert recorder.untouched
    assert len(outcomes) > 300
    refused = [str(ended) for ended in outcomes.values() if isinstance(ended, NoEndpointError)]
    assert len(refused) > 0.9 * len(outcomes)
    assert all(LEAVES in said for said in refused)
    answered = {name for name, ended in outcomes.items() if not isinstance(ended, Exception)}
    assert {"client.chat.completions.create", "client.models.list"} <= answered
    # The others of these names are what the SDK itself turns away for want of better arguments.
    assert {name.rpartition(".")[2] for name in answered} <= {"create", "parse", "stream", "list", "connect"}


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
def test_websockets_are_given_a_name_that_nobody_has(recorder, kind):
    """They do not come through `request`: their URL is made from this."""
    for more in ({}, {"policy": "fast", **WISH}):
        client = private(recorder, kind, **more)
        for made in (client, client.copy(), client.with_options(timeout=1)):
            for manager in (
                made.realtime.connect(model="m"),
                made.responses.connect(),
                made.live.connect(),
                made.live.sideband.connect(session_id="s"),
                made.realtime.translations.connect(model="m"),
            ):
                assert manager._prepare_url().host == "local-only.invalid"


# ---------------------------------------------------------------------- one request that says so

CHATS = {
    "create": lambda c, more: c.chat.completions.create(messages=HELLO, **more),
    "stream": lambda c, more: c.chat.completions.create(messages=HELLO, stream=True, **more),
    "raw": lambda c, more: c.chat.completions.with_raw_response.create(messages=HELLO, **more),
    "bytes": lambda c, more: c.chat.completions.with_streaming_response.create(messages=HELLO, **more),
    "parse": lambda c, more: c.chat.completions.parse(messages=HELLO, **more),
    "helper": lambda c, more: c.chat.completions.stream(messages=HELLO, **more),
    "response": lambda c, more: c.responses.create(input="hello", **more),
    "response stream": lambda c, more: c.responses.create(input="hello", stream=True, **more),
    "response raw": lambda c, more: c.responses.with_raw_response.create(input="hello", **more),
}
SERVERS_OWN = {
    "choices": lambda c, more: c.chat.completions.create(messages=HELLO, n=2, **more),
    "choices raw": lambda c, more: c.chat.completions.with_raw_response.create(messages=HELLO, n=2, **more),
    "audio": lambda c, more: c.chat.completions.create(messages=HELLO, modalities=["text", "audio"], **more),
    "stored": lambda c, more: c.responses.create(input="hello", previous_response_id="resp_1", **more),
    "hosted tool": lambda c, more: c.responses.create(input="hello", tools=[{"type": "web_search"}], **more),
    "embeddings": lambda c, more: c.embeddings.create(input="hello", **more),
    "completions": lambda c, more: c.completions.create(prompt="hello", **more),
    "completions stream": lambda c, more: c.completions.create(prompt="hello", stream=True, **more),
    "transcript": lambda c, more: c.audio.transcriptions.create(file=b"x", **more),
    "counting": lambda c, more: c.responses.input_tokens.count(input="hello", **more),
}
SAID = {
    "local_only": {"model": "gpt-4o-mini", "extra_body": LOCAL},
    "policy": {"model": "gpt-4o-mini", "extra_body": {"disco": {"policy": "private"}}},
    "both": {"model": "gpt-4o-mini", "extra_body": {"disco": {"policy": "private", "local_only": False}}},
    "model": {"model": "local/device"},
}


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
@pytest.mark.parametrize("said", SAID)
async def test_a_request_that_says_so_stays_here(recorder, said, kind):
    async with used(private(recorder, kind, policy="fast")) as client:
        for name, ask in (CHATS | SERVERS_OWN).items():
            answer = await outcome(lambda ask=ask: ask(client, SAID[said]))
            if name in CHATS:
                assert not isinstance(answer, Exception), (name, answer)
            else:
                assert isinstance(answer, NoEndpointError), (name, answer)
                assert LEAVES in str(answer)
        for more in ({"tools": [TOOL]}, {"logprobs": True}, {"response_format": {"type": "json_object"}}):
            asked = {**SAID["local_only"], **more}  # what the device cannot do
            failed = await outcome(lambda asked=asked: CHATS["create"](client, asked))
            assert isinstance(failed, NoEndpointError)
            assert "local-only" in str(failed)
    assert recorder.untouched


async def test_the_recorder_does_record(recorder):
    """What these tests rest on: without the wish, the same requests do reach it."""
    async with private(recorder, policy="fast") as client:
        await outcome(lambda: client.embeddings.create(input="canary prompt", model="m"))
    assert b"POST /v1/embeddings" in recorder.received
    assert KEY.encode() in recorder.received


# ---------------------------------------------------------------------- the device fails


@pytest.mark.parametrize(
    ("profile", "raised"),
    [
        ({"fault": Fault(kind=FailureKind.CRASHED)}, LocalModelError),
        ({"fault": Fault(after_tokens=2, kind=FailureKind.CRASHED)}, LocalModelError),
        ({"fault": Fault(kind=FailureKind.RATE_LIMIT)}, openai.OpenAIError),
        ({"fault": Fault(kind=FailureKind.UNSERVED)}, openai.OpenAIError),
        ({"fault": Fault(after_tokens=2, kind=FailureKind.INCOMPLETE)}, openai.OpenAIError),
        ({"context_tokens": 8}, NoEndpointError),
        ({"fault": Fault(kind=None, silence_s=60.0)}, openai.APITimeoutError),
    ],
    ids=str,
)
async def test_it_fails_rather_than_leave(recorder, profile, raised):
    timeout = 0.05 if raised is openai.APITimeoutError else 60.0  # the others fail before any clock
    async with private(recorder, local=device(**profile), policy="fast", timeout=timeout) as client:
        for said, ask in zip(itertools.cycle(SAID), CHATS.values(), strict=False):
            failed = await outcome(lambda ask=ask, said=said: ask(client, SAID[said]))
            assert isinstance(failed, raised)
            assert str(failed)
    assert recorder.untouched


async def test_a_model_file_that_is_not_there(recorder, tmp_path: Path):
    garbled = tmp_path / "garbled.gguf"
    garbled.write_bytes(b"GGUF" + b"\xff" * 200)
    for file in (tmp_path / "missing.gguf", garbled):
        with contextlib.suppress(ModelFileError):  # some of it is noticed by the constructor
            async with private(recorder, local=str(file)) as client:
                with pytest.raises(ModelFileError):
                    await client.warm_up()
                for ask in CHATS.values():
                    failed = await outcome(lambda ask=ask, client=client: ask(client, SAID["local_only"]))
                    assert isinstance(failed, openai.OpenAIError)
                    assert file.name in str(failed)
    assert recorder.untouched


async def test_the_real_model_at_its_limits(recorder):
    """Context too small, and two things it would have to fetch."""
    local = LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=64, threads=1)
    picture = [{"type": "image_url", "image_url": {"url": f"{recorder.base_url}/picture.png"}}]
    wanted = {"name": "n", "schema": {"$ref": f"{recorder.base_url}/schema.json"}}
    async with private(recorder, local=local) as client:
        for messages, more, raised in (
            (HELLO, {}, None),
            ([{"role": "user", "content": "the sea and the land " * 50}], {}, NoEndpointError),
            ([{"role": "user", "content": picture}], {}, openai.BadRequestError),
            (HELLO, {"response_format": {"type": "json_schema", "json_schema": wanted}}, openai.OpenAIError),
        ):
            asked = {"messages": messages, "model": "m", "max_tokens": 4, **more}
            came = await outcome(lambda asked=asked: client.chat.completions.create(**asked))
            assert isinstance(came, raised) if raised else came.choices[0].message.content
    await local.aclose()
    assert recorder.untouched


# ---------------------------------------------------------------------- warming up, and backups


async def test_neither_warming_up_nor_a_backup_asks_anybody(recorder):
    broken = device(fault=Fault(kind=FailureKind.CRASHED))
    with recording() as second:
        backups = [Backup(base_url=second.base_url, api_key=KEY, model="m")]
        for more in ({}, {"policy": "fast", **WISH}):
            async with private(recorder, local=broken, backups=backups, **more) as client:
                for model in (None, "gpt-4o-mini"):
                    await client.warm_up(model)
                    await client.with_options(timeout=3).warm_up(model)
                for ask in (CHATS | SERVERS_OWN).values():
                    failed = await outcome(lambda ask=ask, client=client: ask(client, {"model": "m"}))
                    assert isinstance(failed, openai.OpenAIError)
        async with private(recorder, local=broken, policy="fast", backups=backups) as client:
            for said, ask in itertools.product(SAID.values(), (CHATS | SERVERS_OWN).values()):
                assert isinstance(
                    await outcome(lambda said=said, ask=ask: ask(client, said)), openai.OpenAIError
                )
        assert second.untouched
    assert recorder.untouched


# ---------------------------------------------------------------------- over HTTP

BODIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "hello"},
    "/v1/completions": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
}
OTHERS = ["models", "models/gpt-4o-mini", "models/..%2f..%2ffiles", "files"]


@pytest.mark.parametrize("more", [{}, {"policy": "balanced", **WISH}], ids=["policy", "default_options"])
def test_a_private_server_keeps_everything_whatever_callers_ask_for(recorder, more):
    """What its owner keeps on this machine no caller sends away: not by a policy, not by taking the wish back."""
    wishes = [{}, {"policy": "fast"}, {"local_only": False}, {"policy": "cheap", "local_only": None}]
    extras = [{}, {"stream": True}, {"n": 2}, {"store": True, "previous_response_id": "r"}]
    with serving(lambda **given: private(recorder, **more, **given)) as served:
        for (path, body), wish, extra in itertools.product(BODIES.items(), wishes, extras):
            assert served.ask(path, {"model": "m", "disco": wish, **body, **extra}).status in (200, 400)
        for path in OTHERS:
            assert served.ask(f"/v1/{path}").status in (200, 404)
    assert recorder.untouched
