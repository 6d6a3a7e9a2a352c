"""What disco does not route reaches the server as the plain client would have sent it, or does not leave at all."""

from __future__ import annotations

import io
from typing import Any

import httpx2
import openai
import pytest
from compat.compat_cases import SEA, entered, got

import disco
from disco import AsyncDisco, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": SEA}

CALLS = {
    "n": lambda c: c.chat.completions.create(**CHAT, n=2, temperature=0.5),
    "n, streamed": lambda c: c.chat.completions.create(**CHAT, n=2, stream=True),
    "audio": lambda c: c.chat.completions.create(
        **CHAT, modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}
    ),
    "stored chats": lambda c: c.chat.completions.retrieve("chatcmpl-1"),
    "stored response": lambda c: c.responses.retrieve("resp_1"),
    "conversation": lambda c: c.responses.create(model="m", input="x", previous_response_id="resp_1"),
    "hosted tool": lambda c: c.responses.create(model="m", input="x", tools=[{"type": "web_search"}]),
    "completions": lambda c: c.completions.create(model="m", prompt="sea", extra_body={"own": 1}),
    "embeddings": lambda c: c.embeddings.create(model="m", input=["sea"], encoding_format="float"),
    "speech": lambda c: c.audio.speech.create(model="m", voice="alloy", input="sea"),
    "upload": lambda c: c.files.create(file=("a.txt", io.BytesIO(b"sea")), purpose="assistants"),
    "conversations": lambda c: c.conversations.create(extra_headers={"X-Own": "1"}),
    "n, raw": lambda c: c.chat.completions.with_raw_response.create(**CHAT, n=2),
    "in the background": lambda c: c.with_options(timeout=3).responses.create(
        model="m", input="x", background=True
    ),
    "raw": lambda c: c.with_raw_response.embeddings.create(model="m", input="sea"),
    "an address of its own": lambda c: c.post("/own/way", body={"a": 1}, cast_to=httpx2.Response),
}


def recording(kind: type, **settings: Any) -> tuple[Any, list[httpx2.Request]]:
    """A client whose server answers everything alike, and what that is sent."""
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json={"id": "x", "data": [], "choices": []})

    async def later(request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return answer(request)

    of_async = issubclass(kind, openai.AsyncOpenAI)
    make, handler = (httpx2.AsyncClient, later) if of_async else (httpx2.Client, answer)
    return kind(http_client=make(transport=httpx2.MockTransport(handler)), **settings), sent


async def ask(kind: type, call, **settings) -> tuple[httpx2.Request, type]:
    made, sent = recording(kind, base_url="http://server.test/v1", api_key="k", **settings)
    async with entered(made) as client:
        answer = await got(call(client))
    (request,) = sent
    return request, type(answer)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "kinds", [(openai.AsyncOpenAI, AsyncDisco), (openai.OpenAI, Disco)], ids=["async", "sync"]
)
async def test_it_is_sent_as_the_plain_client_sends_it(kinds, name):
    plain, ours = kinds
    expected, answer = await ask(plain, CALLS[name])
    sent, same = await ask(ours, CALLS[name], default_options={"pace_tps": 5, "budget_class": "urgent"})
    assert (sent.method, sent.url, same) == (expected.method, expected.url, answer)
    varying = {"x-stainless-raw-response"}
    if name == "upload":  # a random boundary
        varying |= {"content-type", "content-length"}
    else:
        assert sent.read() == expected.read()
    assert dict(sent.headers) | dict.fromkeys(varying) == dict(expected.headers) | dict.fromkeys(varying)


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
async def test_it_does_not_leave_this_machine_when_there_is_no_server(kind):
    """That nothing leaves where nothing may is in `tests/security`."""
    local = SimulatedEndpoint("device", SimulatedProfile(answer_tokens=6, decode_tps=1e4), place="device")
    made, sent = recording(kind, local=local)
    async with entered(made) as client:
        for name, call in CALLS.items():
            if name.startswith("n"):  # several choices are written here, each by itself
                continue
            with pytest.raises(disco.NoEndpointError):
                await got(call(client))
        assert str(client.websocket_base_url).endswith(".invalid")
    assert sent == []
