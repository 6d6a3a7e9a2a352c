"""S12: raw and streaming responses have the request that was sent and the response that came."""

from __future__ import annotations

import pytest
from compat.compat_cases import entered, items
from sdk_parity.side_by_side import BASE, CHAT, Server, answering, facts, http_client, taken

pytestmark = pytest.mark.anyio


def made(kind):
    return kind(base_url=BASE, api_key="k", http_client=http_client(kind, Server(answering)))


def exchange(response):
    """The HTTP of a raw response, without the time it took."""
    asked, came = response.http_request, response.http_response
    sent = (asked.method, str(asked.url), dict(asked.headers), asked.content)
    got = (came.status_code, dict(came.headers), came.http_version, came.is_closed, came.is_stream_consumed)
    mine = (
        response.status_code,
        dict(response.headers),
        str(response.url),
        response.method,
        response.request_id,
    )
    return type(response).__name__, sent, got, mine, response.retries_taken, response.http_version


@pytest.mark.parametrize("resource", ["chat", "responses"])
async def test_raw_responses(kinds, resource):
    seen = []
    for kind in kinds:
        client = made(kind)
        raw = (
            client.chat.completions.with_raw_response
            if resource == "chat"
            else client.responses.with_raw_response
        )
        asked = CHAT if resource == "chat" else {"model": "m", "input": "x"}
        whole = await taken(raw.create(**asked))
        facts_of = [exchange(whole), whole.text, whole.content, facts(whole.parse())]
        streamed = await taken(raw.create(**asked, stream=True))
        facts_of.append(exchange(streamed))
        facts_of += [facts(await items(streamed.parse())), exchange(streamed)]
        await taken(client.close())
        seen.append(facts_of)
    assert seen[1] == seen[0]
    assert [part[2][3] for part in (seen[0][0], seen[0][4], seen[0][6])] == [True, False, True]


async def test_streaming_responses(kinds):
    seen = []
    for kind in kinds:
        client = made(kind)
        resource, of_kind = client.chat.completions.with_streaming_response, []
        async with entered(resource.create(**CHAT)) as response:
            of_kind += [exchange(response), response.is_closed, facts(await taken(response.parse()))]
            of_kind += [response.is_closed, response.http_response.num_bytes_downloaded]
        async with entered(resource.create(**CHAT, stream=True)) as response:
            of_kind += [exchange(response), response.is_closed, await items(response.iter_lines())]
            of_kind.append(response.is_closed)
        async with entered(resource.create(**CHAT, stream=True)) as response:
            of_kind.append(response.is_closed)
        of_kind += [response.is_closed, exchange(response)]
        await taken(client.close())
        seen.append(of_kind)
    assert seen[1] == seen[0]
    assert not seen[0][1]
