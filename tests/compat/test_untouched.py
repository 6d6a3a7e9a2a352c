"""What disco does not route reaches the server as the plain client would have sent it, or does not leave at all."""

from __future__ import annotations

import io
from typing import Any

import httpx2
import openai
import pytest
from compat_cases import SEA, entered, got

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
    "one model": lambda c: c.models.retrieve("m"),
    "moderations": lambda c: c.moderations.create(input="sea"),
    "images": lambda c: c.images.generate(prompt="sea", model="m"),
    "speech": lambda c: c.audio.speech.create(model="m", voice="alloy", input="sea"),
    "files": lambda c: c.files.list(limit=3),
    "upload": lambda c: c.files.create(file=("a.txt", io.BytesIO(b"sea")), purpose="assistants"),
    "batches": lambda c: c.batches.retrieve("batch_1"),
    "fine-tuning": lambda c: c.fine_tuning.jobs.retrieve("job_1"),
    "vector stores": lambda c: c.vector_stores.retrieve("vs_1"),
    "conversations": lambda c: c.conversations.create(extra_headers={"X-Own": "1"}),
    "n, raw": lambda c: c.chat.completions.with_raw_response.create(**CHAT, n=2),
    "in the background": lambda c: c.with_options(timeout=3).responses.create(
        model="m", input="x", background=True
    ),
    "raw": lambda c: c.with_raw_response.embeddings.create(model="m", input="sea"),
    "an address of its own": lambda c: c.post("/own/way", body={"a": 1}, cast_to=httpx2.Response),
}


class Recorder:
    """Answers everything alike and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.sent.append(request)
        return httpx2.Response(200, json={"id": "x", "data": [], "choices": []})

    async def later(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return self(request)

    def client(self, kind: type, **settings: Any) -> Any:
        plain = httpx2.Client(transport=httpx2.MockTransport(self))
        later = httpx2.AsyncClient(transport=httpx2.MockTransport(self.later))
        return kind(http_client=later if issubclass(kind, openai.AsyncOpenAI) else plain, **settings)


async def ask(kind: type, call, **settings) -> tuple[httpx2.Request, type]:
    recorder = Recorder()
    async with entered(
        recorder.client(kind, base_url="http://server.test/v1", api_key="k", **settings)
    ) as client:
        answer = await got(call(client))
    (request,) = recorder.sent
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
async def test_it_does_not_leave_this_machine_when_there_is_no_server(kind, monkeypatch):
    """That nothing leaves where nothing may is in `tests/security`."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    recorder = Recorder()
    local = SimulatedEndpoint("device", SimulatedProfile(answer_tokens=6, decode_tps=1e4), place="device")
    async with entered(recorder.client(kind, local=local)) as client:
        for call in CALLS.values():
            with pytest.raises(disco.NoEndpointError):
                await got(call(client))
        assert str(client.websocket_base_url).endswith(".invalid")
    assert recorder.sent == []
