"""S4: an application's own HTTP client serves routed requests, of whichever library and with whatever transport."""

from __future__ import annotations

import json

import httpx2
import pytest
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    behind,
    chat_events,
    is_async,
    taken,
    text_of,
    whole_chat,
)

pytestmark = pytest.mark.anyio

SSE = {"content-type": "text/event-stream"}
STREAM = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in chat_events(usage=False))


def transport(library, kind):
    """Answers by responses whose bodies are read already, as mocks make them."""

    def answer(request):
        if b'"stream":true' not in request.read().replace(b" ", b""):
            return library.Response(200, json=whole_chat())
        return library.Response(200, content=STREAM + b"data: [DONE]\n\n", headers=SSE)

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
