"""What must stay on this machine does: a server that keeps every byte it is sent is sent none."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from everything import methods
from security.recorder import Recorder, recording
from serving import serving

from disco import AsyncDisco, Backup, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind, LocalModelError, NoEndpointError

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
                _ = [e async for e in entered] if hasattr(entered, "__aiter__") else await entered.read()
        elif hasattr(result, "__enter__"):
            with result as entered:
                _ = list(entered) if hasattr(entered, "__iter__") else entered.read()
    except Exception as error:  # noqa: BLE001 - that is what is asked for
        return error
    return result


@contextlib.asynccontextmanager
async def used(client: AsyncDisco | Disco) -> AsyncIterator[AsyncDisco | Disco]:
    yield client
    closed = client.close()
    if inspect.isawaitable(closed):
        await closed


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
        # Websockets do not come through `request`: their URL is made from this.
        live = asked.live.sideband.connect(session_id="s")
        for each in (asked.realtime.connect(model="m"), asked.copy().responses.connect(), live):
            assert each._prepare_url().host == "local-only.invalid"
    assert recorder.untouched
    assert len(outcomes) > 300
    refused = [str(ended) for ended in outcomes.values() if isinstance(ended, NoEndpointError)]
    assert len(refused) > 0.9 * len(outcomes)
    assert all(LEAVES in said for said in refused)
    answered = {name for name, ended in outcomes.items() if not isinstance(ended, Exception)}
    assert {"client.chat.completions.create", "client.models.list"} <= answered
    # The others of these names are what the SDK itself turns away for want of better arguments.
    assert {name.rpartition(".")[2] for name in answered} <= {"create", "parse", "stream", "list", "connect"}


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
    "speech": lambda c, more: c.chat.completions.create(messages=HELLO, modalities=["text", "audio"], **more),
    "audio": lambda c, more: c.chat.completions.create(messages=HELLO, modalities=["text", "audio"], **more),
    "stored": lambda c, more: c.responses.create(input="hello", previous_response_id="resp_1", **more),
    "hosted tool": lambda c, more: c.responses.create(input="hello", tools=[{"type": "web_search"}], **more),
    "embeddings": lambda c, more: c.embeddings.create(input="hello", **more),
    "completions stream": lambda c, more: c.completions.create(prompt="hello", stream=True, **more),
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
        ({"fault": Fault(kind=FailureKind.RATE_LIMIT)}, openai.OpenAIError),
        ({"fault": Fault(after_tokens=2, kind=FailureKind.INCOMPLETE)}, openai.OpenAIError),
        ({"fault": Fault(kind=FailureKind.CONTEXT_LENGTH)}, openai.OpenAIError),
        ({"fault": Fault(kind=None, silence_s=60.0)}, openai.APITimeoutError),
    ],
    ids=str,
)
async def test_it_fails_rather_than_ask_a_server_or_a_backup_and_so_does_warming_up(
    recorder, profile, raised
):
    timeout = 0.05 if raised is openai.APITimeoutError else 60.0  # the others fail before any clock
    broken = {"local": device(**profile), "timeout": timeout}
    with recording() as second:
        backups = [Backup(base_url=second.base_url, api_key=KEY, model="m")]
        async with private(recorder, policy="fast", backups=backups, **broken) as client:
            for said, ask in zip(itertools.cycle(SAID), CHATS.values(), strict=False):
                assert isinstance(await outcome(lambda ask=ask, said=said: ask(client, SAID[said])), raised)
        for more in ({}, {"policy": "fast", **WISH}):
            async with private(recorder, backups=backups, **broken, **more) as client:
                await client.with_options(timeout=3).warm_up("gpt-4o-mini")
                failed = await outcome(lambda client=client: CHATS["create"](client, {"model": "m"}))
                assert isinstance(failed, raised)
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
