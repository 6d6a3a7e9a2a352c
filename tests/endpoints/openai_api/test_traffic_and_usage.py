"""What an attempt at a server says besides its text: bytes on the wire, usage, log probabilities for our own use."""

from __future__ import annotations

import contextlib
import gzip
import json

import anyio
import openai
import pytest
from loops import by_turns, mostly
from scripted_server import RESET, STREAM_END, STREAM_HEAD, WAIT_FOR_CLOSE, answer, chunk, piece, sse, stream

from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import EndpointFailure
from disco.events import Traffic
from disco.request import Prefix
from tests.endpoints.openai_api.asking import ask, collect, failing, served

pytestmark = [pytest.mark.real, pytest.mark.anyio]

STOP = chunk(finish="stop")
NORMAL = stream(sse(chunk("Hel"), done=False), sse(chunk("lo"), STOP))
LOGP = frozenset({"logp"})
SO_FAR = Prefix(text="The answer so far is long enough", tokens=7)

# ---------------------------------------------------------------------- bytes


def seen_by(server) -> Traffic:
    return Traffic(server.bytes_in, server.bytes_out)


async def test_what_others_send_is_not_counted_with_either_client():
    for kind in (PlainClient, openai.AsyncOpenAI):
        async with served(NORMAL, kind=kind) as (server, endpoint):
            for _ in range(2):  # the second on the same connection, made of the first request
                before = seen_by(server)
                attempt = endpoint.open(ask(max_tokens=7))
                await collect(attempt)
                assert attempt.traffic.bytes_up == server.bytes_in - before.bytes_up
                assert attempt.traffic.bytes_down == server.bytes_out - before.bytes_down
            assert server.connections == 1
            attempt = endpoint.open(ask())
            await anext(attempt)
            before = attempt.traffic
            await collect(endpoint.open(ask()))
            assert attempt.traffic.bytes_up == before.bytes_up < server.bytes_in
            await attempt.aclose()


FIFTY = sse(*(chunk("word ") for _ in range(50)), STOP)
MOVED = answer(b"", status="307 Temporary Redirect", headers="Location: /v1/elsewhere\r\n")
ZIPPED = answer(gzip.compress(FIFTY), content_type="text/event-stream", headers="Content-Encoding: gzip\r\n")
BOOM = answer(b'{"error": {"message": "boom"}}', status="500 Internal Server Error")
RENDERED = answer(json.dumps({"prompt": "<user>Hi<assistant>"}).encode())
WRITTEN = stream(sse({"choices": [{"index": 0, "text": " on", "finish_reason": "stop"}]}))
RENDERING = Continuation("completions", template="apply-template")


EXCHANGES = {
    "zipped": ([ZIPPED], Prefix(), 1),
    "moved": ([MOVED, NORMAL], Prefix(), 2),
    "refused": ([BOOM], Prefix(), 1),
    "reset": ([[RESET]], Prefix(), 1),
    "rendered": ([RENDERED, WRITTEN], SO_FAR, 2),
}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(EXCHANGES))
async def test_whatever_comes_of_it_both_ways_are_counted(what, anyio_backend):
    """Compressed bytes as they came, a redirect's, an error's body, a prompt's rendering, and what was dropped."""
    scripts, prefix, requests = EXCHANGES[what]
    async with served(*scripts, continuation=RENDERING) as (server, endpoint):
        attempt = endpoint.open(ask(), prefix)
        with contextlib.suppress(EndpointFailure):
            await collect(attempt)
        assert attempt.traffic == seen_by(server)
        assert (len(server.requests), server.bytes_in > 0) == (requests, True)


@mostly("trio")
async def test_bytes_that_differ_with_the_pieces_are_few(anyio_backend):
    whole = piece(FIFTY)
    cuts = [whole[start : start + 1000] for start in range(0, len(whole), 1000)]
    async with served([STREAM_HEAD, *(step for cut in cuts for step in (cut, 0.01)), STREAM_END]) as (
        server,
        endpoint,
    ):
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


# ---------------------------------------------------------------------- usage


CACHED = {"no count": None, "one count": {"cached_tokens": 10**6}}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(CACHED))
async def test_counts_that_make_no_sense_are_replaced_by_our_own(what, anyio_backend):
    cached = CACHED[what]
    completion_tokens = 12 if cached else "x"
    counts = {"prompt_tokens": -7, "completion_tokens": completion_tokens, "prompt_tokens_details": cached}
    script = stream(sse(chunk("a"), chunk("b"), STOP, {**chunk(), "choices": [], "usage": counts}))
    async with served(script) as (_, endpoint):
        attempt = endpoint.open(ask())
        _, ended = await collect(attempt)
    used = attempt.usage
    assert (used.prompt_tokens > 50, used.completion_tokens) == (True, 12 if cached else 2)
    assert ended.usage == (used if cached else None)
    assert used.cached_tokens == (used.prompt_tokens if cached else 0)  # never more than there is


# ---------------------------------------------------------------------- log probabilities


def with_logprobs(text: str, *values: float):
    body = chunk(text)
    entries = [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]
    body["choices"][0]["logprobs"] = {"content": entries, "refusal": None}
    return body


KNOWN = stream(sse(with_logprobs("ab", -1.0, -2.0), with_logprobs("c", -0.5), STOP))


# The endpoint's knowledge and what disco wants, what the application asks for, what is sent, what it is shown.
LOGPROBS = {
    "known and wanted": (True, LOGP, {}, True, False),
    "not known": (False, LOGP, {}, None, True),
    "not wanted": (True, frozenset(), {}, None, True),
    "asked for": (True, LOGP, {"logprobs": True, "top_logprobs": 2}, True, True),
    "asked for only": (True, frozenset(), {"logprobs": True}, True, True),
}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(LOGPROBS))
async def test_log_probabilities_for_our_own_use_are_asked_for_and_not_shown(what, anyio_backend):
    logp, wants, params, sent, shown = LOGPROBS[what]
    async with served(KNOWN, logp=logp) as (server, endpoint):
        assert endpoint.capabilities("m").logp is logp
        deltas, _ = await collect(endpoint.open(ask(**params), wants=wants))
        await failing(endpoint.open(ask(n=2, **params), wants=wants))  # its second choice does not come
    (_, _, body), (_, _, several) = server.requests
    assert (body.get("logprobs"), body.get("top_logprobs")) == (sent, params.get("top_logprobs"))
    assert several.get("logprobs") == params.get("logprobs")  # not of several answers
    assert [delta.logp for delta in deltas] == [(-1.0, -2.0), (-0.5,)]
    assert [delta.logprobs is not None for delta in deltas] == [shown] * 2
    assert [delta.raw.choices[0].logprobs is not None for delta in deltas] == [shown] * 2


@mostly("trio")
async def test_log_probabilities_of_a_completion(anyio_backend):
    written = {"choices": [{"index": 0, "text": " on", "logprobs": {"token_logprobs": [-0.5]}}]}
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    way = Continuation("completions", template=template)
    async with served(stream(sse(written, last)), logp=True, continuation=way) as (server, endpoint):
        (delta,), ended = await collect(endpoint.open(ask(), SO_FAR, wants=LOGP))
        assert server.requests[0][2]["logprobs"] == 1
    assert (delta.text, delta.logp, ended.usage) == (" on", (-0.5,), None)
