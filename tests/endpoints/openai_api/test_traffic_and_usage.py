"""What an attempt at a server says besides its text: bytes on the wire, usage, log probabilities for our own use."""

from __future__ import annotations

import contextlib
import gzip
import json

import anyio
import openai
import pytest
from scripted_server import (
    RESET,
    STREAM_END,
    STREAM_HEAD,
    WAIT_FOR_CLOSE,
    answer,
    chunk,
    piece,
    sse,
    stream,
    usage,
)
from servers import free_port

from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import EndpointFailure
from disco.events import Traffic
from disco.request import Prefix
from tests.endpoints.openai_api.asking import KEY, ask, collect, served

pytestmark = [pytest.mark.real, pytest.mark.anyio]

NORMAL = stream(
    *(sse(chunk(text), done=False) for text in ("Hel", "lo")), sse(chunk(finish="stop"), usage(9, 2))
)
LOGP = frozenset({"logp"})
SO_FAR = Prefix(text="The answer so far is long enough", tokens=7)

# ------------------------------------------------------------------------------------------ bytes


def seen_by(server) -> Traffic:
    return Traffic(server.bytes_in, server.bytes_out)


async def end(attempt) -> None:
    with contextlib.suppress(EndpointFailure):
        await collect(attempt)


@pytest.mark.parametrize("kind", [PlainClient, openai.AsyncOpenAI])
async def test_the_bytes_of_an_answer_are_those_that_the_server_saw(kind):
    async with served(NORMAL, kind=kind) as (server, endpoint):
        for _ in range(2):  # the second on the same connection, made of the first request
            before = seen_by(server)
            attempt = endpoint.open(ask(max_tokens=7))
            await collect(attempt)
            assert attempt.traffic.bytes_up == server.bytes_in - before.bytes_up
            assert attempt.traffic.bytes_down == server.bytes_out - before.bytes_down
        assert server.connections == 1


FIFTY = sse(*(chunk("word ") for _ in range(50)), chunk(finish="stop"))
MOVED = answer(b"", status="307 Temporary Redirect", headers="Location: /v1/elsewhere\r\n")
ZIPPED = answer(gzip.compress(FIFTY), content_type="text/event-stream", headers="Content-Encoding: gzip\r\n")
BOOM = answer(b'{"error": {"message": "boom"}}', status="500 Internal Server Error")


@pytest.mark.parametrize(
    "scripts",
    [[ZIPPED], [MOVED, NORMAL], [BOOM], [[RESET]]],
    ids=["zipped", "moved", "refused", "reset"],
)
async def test_whatever_comes_of_it_both_ways_are_counted(scripts):
    """Compressed bytes as they came, a redirect's, an error's body, and what was dropped without a word."""
    async with served(*scripts) as (server, endpoint):
        attempt = endpoint.open(ask())
        await end(attempt)
        assert attempt.traffic == seen_by(server)
        assert server.bytes_in > 0


async def test_bytes_that_differ_with_the_pieces_are_few():
    whole = piece(FIFTY)
    cuts = [whole[start : start + 1000] for start in range(0, len(whole), 1000)]
    slowly = [step for part in cuts for step in (part, 0.01)]
    async with served([STREAM_HEAD, *slowly, STREAM_END]) as (server, endpoint):
        attempt = endpoint.open(ask())
        await collect(attempt)
        assert attempt.traffic.bytes_up == server.bytes_in
        assert 0 <= attempt.traffic.bytes_down - server.bytes_out <= 8 * len(cuts)


@pytest.mark.parametrize("first", [[], [STREAM_HEAD, piece(sse(chunk("Hi"), done=False))]])
async def test_what_is_left_counts_what_was_sent_and_what_was_read(first):
    """Before its response a request that is cancelled counts as sent; later its pieces count as they were read."""
    async with served([*first, WAIT_FOR_CLOSE]) as (server, endpoint):
        attempt = endpoint.open(ask())
        async with anyio.create_task_group() as tasks:
            if first:
                await anext(attempt)
            else:
                tasks.start_soon(collect, attempt)
            await server.asked.wait()
            tasks.cancel_scope.cancel()
        await attempt.aclose()
        assert attempt.traffic == Traffic(server.bytes_in, sum(map(len, first)))


async def test_a_server_that_is_not_there_got_nothing():
    async with PlainClient(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key=KEY) as client:
        attempt = OpenAIEndpoint(client=client).open(ask())
        await end(attempt)
        assert attempt.traffic == Traffic()


async def test_the_request_that_has_a_prompt_rendered_counts_too():
    rendered = answer(json.dumps({"prompt": "<user>Hi<assistant>"}).encode())
    written = {"choices": [{"index": 0, "text": " on", "finish_reason": "stop"}]}
    way = Continuation("completions", template="apply-template")
    async with served(rendered, stream(sse(written)), continuation=way) as (server, endpoint):
        attempt = endpoint.open(ask(), SO_FAR)
        await collect(attempt)
        assert [line.split()[1] for line, _, _ in server.requests] == ["/apply-template", "/v1/completions"]
        assert attempt.traffic == seen_by(server)


async def test_what_others_send_meanwhile_is_not_counted():
    async with served(NORMAL) as (server, endpoint):
        attempt = endpoint.open(ask())
        await anext(attempt)
        before = attempt.traffic
        await collect(endpoint.open(ask()))
        assert attempt.traffic.bytes_up == before.bytes_up < server.bytes_in
        await attempt.aclose()


# ------------------------------------------------------------------------------------------ usage


async def counted(*said: str, **counts):
    """The end of an answer that the server counts so, and the attempt's own usage."""
    last = {**chunk(), "choices": [], "usage": counts}
    async with served(stream(sse(*map(chunk, said), chunk(finish="stop"), last))) as (_, endpoint):
        attempt = endpoint.open(ask())
        _, ended = await collect(attempt)
    return ended.usage, attempt.usage


@pytest.mark.parametrize("count", [-5, "x", None])
async def test_counts_that_make_no_sense_are_replaced_by_our_own(count):
    ended, used = await counted(*"abc", prompt_tokens=count, completion_tokens=count, total_tokens=count)
    assert ended is None
    assert (used.prompt_tokens > 50, used.completion_tokens) == (True, 3)


async def test_one_count_that_makes_no_sense_leaves_the_others_as_they_are():
    cached = {"cached_tokens": 10**6}
    ended, used = await counted("abc", prompt_tokens=-7, completion_tokens=12, prompt_tokens_details=cached)
    assert ended == used
    assert ended.completion_tokens == 12
    assert 50 < ended.prompt_tokens == ended.cached_tokens  # never more cached than there is


# ------------------------------------------------------------------------------------------ log probabilities


def with_logprobs(text: str, *values: float):
    body = chunk(text)
    entries = [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]
    body["choices"][0]["logprobs"] = {"content": entries, "refusal": None}
    return body


KNOWN = stream(sse(with_logprobs("ab", -1.0, -2.0), with_logprobs("c", -0.5), chunk(finish="stop")))


async def test_log_probabilities_for_our_own_use_are_asked_for_and_not_shown():
    async with served(KNOWN, logp=True) as (server, endpoint):
        assert endpoint.capabilities().logp
        deltas, _ = await collect(endpoint.open(ask(), wants=LOGP))
        assert server.requests[0][2]["logprobs"] is True
        assert "top_logprobs" not in server.requests[0][2]
    assert [delta.logp for delta in deltas] == [(-1.0, -2.0), (-0.5,)]
    assert [delta.logprobs for delta in deltas] == [None, None]
    assert all(delta.raw.choices[0].logprobs is None for delta in deltas)


@pytest.mark.parametrize(
    ("logp", "wants", "n"), [(False, LOGP, None), (True, frozenset(), None), (True, LOGP, 2)]
)
async def test_log_probabilities_are_asked_for_only_where_they_are_known_and_wanted_of_one_answer(
    logp, wants, n
):
    async with served(NORMAL, logp=logp) as (server, endpoint):
        assert endpoint.capabilities("m").logp is logp
        await end(endpoint.open(ask(**({} if n is None else {"n": n})), wants=wants))
        assert "logprobs" not in server.requests[0][2]


@pytest.mark.parametrize("wants", [LOGP, frozenset()])
async def test_what_the_application_asked_for_is_left_as_it_is(wants):
    async with served(KNOWN, logp=True) as (server, endpoint):
        deltas, _ = await collect(endpoint.open(ask(logprobs=True, top_logprobs=2), wants=wants))
        assert (server.requests[0][2]["logprobs"], server.requests[0][2]["top_logprobs"]) == (True, 2)
    assert [delta.logp for delta in deltas] == [(-1.0, -2.0), (-0.5,)]
    assert [len(delta.raw.choices[0].logprobs.content) for delta in deltas] == [2, 1]
    assert [len(delta.logprobs["content"]) for delta in deltas] == [2, 1]


async def test_log_probabilities_of_a_completion():
    written = {"choices": [{"index": 0, "text": " on", "logprobs": {"token_logprobs": [-0.5]}}]}
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    way = Continuation("completions", template=template)
    async with served(stream(sse(written, last)), logp=True, continuation=way) as (server, endpoint):
        (delta,), ended = await collect(endpoint.open(ask(), SO_FAR, wants=LOGP))
        assert server.requests[0][2]["logprobs"] == 1
    assert (delta.text, delta.logp, ended.usage) == (" on", (-0.5,), None)
