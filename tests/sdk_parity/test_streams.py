"""S17: what the sync client calls itself, which options of a stream are sent, and what is read after `close()`."""

from __future__ import annotations

import json

import pytest
from compat.compat_cases import got, items
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    Server,
    answering,
    ask,
    behind,
    both,
    http_client,
    taken,
    text_of,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_routed_request_has_the_headers_of_the_sdk(kinds, stream):
    plain, ours = await both(kinds, lambda c: c.chat.completions.create(**CHAT, stream=stream), ours=behind())
    own = {"content-length", "x-stainless-read-timeout"}  # the body and the clocks are disco's
    seen = [{n: v for n, v in o.requests[0].headers.items() if n not in own} for o in (plain, ours)]
    assert seen[1] == seen[0]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_options_of_a_stream_are_sent(kinds, alone):
    given = {"include_obfuscation": False}

    def call(client):
        return client.chat.completions.create(**CHAT, stream=True, stream_options=given)

    (sent,) = (await ask(kinds[1], call, **({} if alone else behind()))).requests
    options = json.loads(sent.content)["stream_options"]
    assert options == given if alone else options == {**options, **given}


async def left(stream):
    """What is read of a stream after it was closed, or the error that reading raises."""
    try:
        return await items(stream)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return type(error)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_closed_stream_yields_nothing_more(kinds, alone):
    seen = []
    for kind in kinds:
        more = {} if alone or kind is kinds[0] else behind()
        client = kind(base_url=BASE, api_key="k", http_client=http_client(kind, Server(answering)), **more)
        of_kind = []
        for read in (0, 2):
            stream = await got(client.chat.completions.create(**CHAT, stream=True))
            for _ in range(read):
                await taken(stream.__anext__() if hasattr(stream, "__anext__") else stream.__next__())
            await taken(stream.close())
            of_kind.append(await left(stream))
        stream = await got(client.chat.completions.create(**CHAT, stream=True))
        assert text_of(await items(stream)) == SAID
        await taken(stream.close())
        of_kind.append(await left(stream))
        await taken(client.close())
        seen.append(of_kind)
    assert seen[0][2] == []
    if alone:
        assert seen[1] == seen[0]
    else:
        assert all(isinstance(part, type) or part == [] for part in seen[1])
