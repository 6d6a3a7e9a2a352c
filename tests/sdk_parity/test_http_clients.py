"""S4: an application's own HTTP client serves routed requests, of whichever library and with whatever transport."""

from __future__ import annotations

import gzip
import json

import httpx2
import pytest
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    ask,
    behind,
    chat_events,
    is_async,
    taken,
    text_of,
    whole_chat,
)

pytestmark = pytest.mark.anyio

STREAM = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in chat_events(usage=False))


def transport(library, kind):
    """Answers by responses whose bodies are read already, as mocks make them, and packed."""

    def answer(request):
        if b'"stream":true' in request.read().replace(b" ", b""):
            kind, body = "text/event-stream", STREAM + b"data: [DONE]\n\n"
        else:
            kind, body = "application/json", json.dumps(whole_chat()).encode()
        fields = {"content-type": kind, "content-encoding": "gzip"}
        return library.Response(200, content=gzip.compress(body), headers=fields)

    async def later(request):
        await request.aread()
        return answer(request)

    if is_async(kind):
        return library.AsyncClient(transport=library.MockTransport(later))
    return library.Client(transport=library.MockTransport(answer))


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
@pytest.mark.parametrize("library", ["httpx2", "httpx"])
async def test_it_serves_whole_and_streamed_answers(kinds, library, alone):
    library = httpx2 if library == "httpx2" else pytest.importorskip(library)
    for kind in kinds:
        more = {} if alone or kind is kinds[0] else behind()
        client = kind(base_url=BASE, api_key="k", http_client=transport(library, kind), **more)
        whole = await taken(client.chat.completions.create(**CHAT))
        assert (kind, whole.choices[0].message.content) == (kind, SAID)
        assert text_of(await taken(client.chat.completions.create(**CHAT, stream=True))) == SAID
        raw = await taken(client.chat.completions.with_raw_response.create(**CHAT))
        assert raw.parse().choices[0].message.content == SAID
        await taken(client.close())


async def test_a_transport_of_the_application_needs_no_route_of_this_machine(kinds, monkeypatch):
    """It may be a proxy, a socket file or a mock: with a local model behind, the server is asked nevertheless."""
    monkeypatch.setattr("disco.endpoints.openai_api.api_endpoint.has_route", lambda host, port: False)
    answer = (await ask(kinds[1], lambda c: c.chat.completions.create(**CHAT), **behind())).value
    assert answer.choices[0].message.content == SAID
