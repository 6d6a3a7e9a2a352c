"""S3: whoever replaces a method of the SDK sees every call, as instrumentation and mocks do."""

from __future__ import annotations

import openai._base_client
import pytest
from compat.compat_cases import got
from openai.resources.chat import completions
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    Server,
    answering,
    behind,
    http_client,
    is_async,
    taken,
    text_of,
)

pytestmark = pytest.mark.anyio

WAYS = ["Completions.create", "completions.create", "APIClient.post", "client.post", "APIClient.request"]
WAYS += ["client.request"]


def owner(way, client):
    """The object whose attribute is replaced."""
    of_async = isinstance(client, openai.AsyncOpenAI)
    resource = completions.AsyncCompletions if of_async else completions.Completions
    base = openai._base_client.AsyncAPIClient if of_async else openai._base_client.SyncAPIClient
    owners = {"Completions": resource, "APIClient": base, "client": client}
    name = way.partition(".")[0]
    return client.chat.completions if name == "completions" else owners[name]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_replaced_method_is_called_and_nothing_is_sent(kinds, alone, stream, monkeypatch):
    for way in WAYS:
        if way == "APIClient.request" and not alone:
            continue  # a routed answer is no single request of the SDK's
        for kind in kinds:
            server, calls, answer = Server(answering), [], object()
            more = {} if alone or kind is kinds[0] else behind()
            client = kind(base_url=BASE, api_key="k", http_client=http_client(kind, server), **more)

            def fake(*given, calls=calls, answer=answer, **named):
                calls.append((given, named))
                return answer

            async def later(*given, fake=fake, **named):
                return fake(*given, **named)

            with monkeypatch.context() as patch:
                patch.setattr(owner(way, client), way.partition(".")[2], later if is_async(kind) else fake)
                got = await taken(client.chat.completions.create(**CHAT, stream=stream))
            await taken(client.close())
            assert (way, kind, got, len(calls), server.requests) == (way, kind, answer, 1, [])
            assert "Tell me about the sea." in str(calls)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_wrapped_method_sees_the_call_and_its_result(kinds, alone, monkeypatch):
    """As OpenTelemetry's and Langfuse's instrumentations of the class."""
    kind, server, seen = kinds[1], Server(answering), []
    client = kind(
        base_url=BASE, api_key="k", http_client=http_client(kind, server), **({} if alone else behind())
    )
    wrapped = owner("Completions.create", client)
    original = wrapped.create

    def create(self, *given, **named):
        result = original(self, *given, **named)
        seen.append((named["model"], result))
        return result

    monkeypatch.setattr(wrapped, "create", create)
    whole = await taken(client.chat.completions.create(**CHAT))
    chunks = await taken(client.chat.completions.create(**CHAT, stream=True))
    parsed = await taken(client.chat.completions.with_raw_response.create(**CHAT))
    await taken(client.close())
    assert (whole.choices[0].message.content, text_of(chunks)) == (SAID, SAID)
    assert parsed.parse().choices[0].message.content == SAID
    assert [model for model, _ in seen] == ["m"] * 3


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_replaced_iterator_of_a_stream_is_what_is_read(kinds, alone):
    """As Sentry's and TruLens' instrumentations, which look at its type to tell the kinds of streams apart."""
    types = []
    for kind in kinds:
        more = {} if alone or kind is kinds[0] else behind()
        client = kind(base_url=BASE, api_key="k", http_client=http_client(kind, Server(answering)), **more)
        stream = await got(client.chat.completions.create(**CHAT, stream=True))
        seen, original = [], stream._iterator
        stream._iterator = (observed_async if is_async(kind) else observed)(original, seen)
        assert text_of(await taken(stream)) == text_of(seen) == SAID
        await taken(client.close())
        types.append(type(original))
    assert types[1] is types[0]


def observed(iterator, seen):
    for chunk in iterator:
        seen.append(chunk)
        yield chunk


async def observed_async(iterator, seen):
    async for chunk in iterator:
        seen.append(chunk)
        yield chunk
