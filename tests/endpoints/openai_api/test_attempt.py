"""One request to a server that does everything a server can do wrong, over real sockets."""

from __future__ import annotations

import contextlib
import gzip
import json
from dataclasses import replace

import anyio
import openai
import pytest
import trio.testing
from loops import by_turns
from scripted_server import (
    RESET,
    STREAM_HEAD,
    answer,
    chunk,
    piece,
    scripted_server,
    sse,
    stream,
    usage,
)

from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import EndpointFailure, IncompleteAnswerError
from disco.errors import FailureKind as K
from disco.events import Alive, DeltaKind, Ended, Traffic, Usage
from disco.request import Prefix, Request, Timeouts
from disco.testing.asking import next_event

pytestmark = [pytest.mark.real, pytest.mark.anyio]

KEY = "sk-test-0123456789abcdef"
QUESTION = [{"role": "user", "content": "Grüß Gott. " * 20}]


@contextlib.asynccontextmanager
async def served(*scripts, kind=PlainClient, **settings):
    """A scripted server and an endpoint on it."""
    async with scripted_server(*scripts) as server, kind(base_url=server.base_url, api_key=KEY) as client:
        endpoint = OpenAIEndpoint(client=client, **settings)
        try:
            yield server, endpoint
        finally:
            await endpoint.aclose()


def ask(*, timeouts=Timeouts(connect_s=20.0), **params):  # noqa: B008 - frozen
    return Request(messages=QUESTION, model="m", params=params, timeouts=timeouts)


async def collect(attempt):
    """All deltas of an answer, and its end, which comes once and last."""
    async with attempt:
        events = [event async for event in attempt if not isinstance(event, Alive)]
    *batches, ended = events
    assert isinstance(ended, Ended)
    assert all(batches)
    return [delta for batch in batches for delta in batch], ended


async def failing(attempt):
    """The text that came before the failure, and the failure."""
    said = ""
    async with attempt:
        try:
            async for event in attempt:
                said += text_of(event)
        except EndpointFailure as failure:
            return said, failure
    raise AssertionError("did not fail")


def text_of(event):
    return "" if isinstance(event, Alive) else "".join(delta.text for delta in event)


STOP = chunk(finish="stop")
NORMAL = stream(sse(chunk(role="assistant", content=""), chunk("Hel"), chunk("lo"), STOP, usage(9, 2)))
A = sse(chunk("a"), done=False)
BEGUN = [STREAM_HEAD, piece(A)]
LOGP = frozenset({"logp"})
SO_FAR = Prefix(text="The answer so far is long enough", tokens=7)


def seen_by(server) -> Traffic:
    return Traffic(server.bytes_in, server.bytes_out)


@pytest.mark.parametrize("kind", [PlainClient, openai.AsyncOpenAI])
async def test_an_answer_from_beginning_to_end(kind):
    more = {"extra_headers": {"X-A": "1"}, "extra_query": {"b": "2"}}
    params = {"max_tokens": 5, "some_new_parameter": [1]}
    asked = Request(messages=QUESTION, model="m", params=params, **more)
    async with served(NORMAL, kind=kind) as (server, endpoint):
        for _ in range(3):
            before = seen_by(server)
            attempt = endpoint.open(asked)
            assert attempt.usage == Usage()
            deltas = await next_event(attempt)  # events of one read are one batch
            rest, ended = await collect(attempt)
            assert attempt.traffic.bytes_up == server.bytes_in - before.bytes_up
            assert attempt.traffic.bytes_down == server.bytes_out - before.bytes_down
        assert (len(server.requests), server.connections) == (3, 1)
        begun = endpoint.open(asked)
        await anext(begun)
        before = begun.traffic
        await collect(endpoint.open(asked))  # what others send is not counted
        assert begun.traffic.bytes_up == before.bytes_up < server.bytes_in
        await begun.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(begun)
    text = DeltaKind.TEXT
    assert [(d.kind, d.text) for d in deltas] == [(DeltaKind.ROLE, ""), (text, "Hel"), (text, "lo")]
    assert (rest, ended.finish_reason, ended.usage, attempt.usage) == ([], "stop", Usage(9, 2), Usage(9, 2))
    assert ended.raw.choices[0].finish_reason == "stop"
    line, headers, body = server.requests[0]
    assert line == "POST /v1/chat/completions?b=2 HTTP/1.1"
    assert (headers["authorization"], headers["x-a"]) == (f"Bearer {KEY}", "1")
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert body == {"messages": QUESTION, "model": "m", **params, **streamed}


ZIPPED = gzip.compress(sse(chunk("a"), STOP))
RENDERED = answer(json.dumps({"prompt": "<user>Hi<assistant>"}).encode())
WRITTEN = stream(sse({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}))
MOVED = answer(b"", status="307 Temporary Redirect", headers="Location: /v1/elsewhere\r\n")
WHOLE = {
    "compressed": [answer(ZIPPED, content_type="text/event-stream", headers="Content-Encoding: gzip\r\n")],
    "moved": [MOVED, stream(A + sse(STOP))],
    "rendered": [RENDERED, WRITTEN],
}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(WHOLE))
async def test_whatever_is_around_it_the_answer_is_whole_and_its_bytes_are_counted(what, anyio_backend):
    way = Continuation("completions", template="apply-template")
    prefix = SO_FAR if what == "rendered" else Prefix()
    async with served(*WHOLE[what], continuation=way, logp=True) as (server, endpoint):
        attempt = endpoint.open(ask(), prefix, wants=LOGP)
        deltas, ended = await collect(attempt)
        assert attempt.traffic == seen_by(server)
        assert server.requests[-1][2]["logprobs"] is (1 if what == "rendered" else True)
        assert len(server.requests) == len(WHOLE[what])
    assert [d.text for d in deltas] == ["a"]
    assert (ended.finish_reason, ended.usage) == ("stop", None)


# Most are in `tests/client/test_bad_server.py`.
FAULTS = {
    "finish error": (stream(sse(chunk("a", finish="error"))), "a", K.SERVER, openai.APIError),
    "half a body": ([*BEGUN, piece(b'data: {"x": "\xe2\x82')], "a", K.CONNECTION, openai.APIConnectionError),
    "error document": (answer(b'{"error": {"message": "boom"}}'), "", K.SERVER, openai.APIError),
    "no JSON": (answer(b"no JSON"), "", K.GARBAGE, openai.APIResponseValidationError),
    "reset at once": ([RESET], "", K.CONNECTION, openai.APIConnectionError),
}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(FAULTS))
async def test_misbehaviour_has_its_kind_and_keeps_the_text_before_it(what, anyio_backend):
    script, *expected = FAULTS[what]
    async with served(script) as (server, endpoint):
        attempt = endpoint.open(ask())
        got, failure = await failing(attempt)
        assert what == "half a body" or attempt.traffic == seen_by(server)
    assert [got, failure.kind, type(failure.error)] == expected
    # Retries belong to the session; what cannot be read at all is asked for once more as a whole answer.
    assert len(server.requests) == 1 + (not got and failure.kind in (K.GARBAGE, K.INCOMPLETE)), what


@pytest.mark.parametrize("tail", [[10_000.0], [0.5, piece(b": ping\n\n")] * 100], ids=["silence", "pings"])
@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.1)})]
)
async def test_clocks_that_are_off_wait_for_ever_but_the_answer_ends_soon_behind_its_finish_reason(tail):
    script = [STREAM_HEAD, 5000.0, piece(A), 5000.0, piece(sse(STOP, done=False)), *tail]
    async with served(script) as (_, endpoint):
        started_at = anyio.current_time()
        deltas, ended = await collect(endpoint.open(ask(timeouts=Timeouts(None, None, None, None))))
        assert (text_of(deltas), ended.finish_reason) == ("a", "stop")
        assert 10_000 <= anyio.current_time() - started_at < 10_020


async def test_continuation_is_sent_and_its_echo_and_withheld_text_are_swallowed():
    told = "The quick brown fox jumps over"
    script = stream(sse(chunk(told[:-5]), chunk(" ov"), chunk("er"), chunk(" the"), STOP))
    async with served(script, continuation=Continuation("flags")) as (server, endpoint):
        assert endpoint.capabilities("m").continues
        prefix = Prefix(told, tokens=6, withheld=" over")
        deltas, _ = await collect(endpoint.open(ask(max_tokens=20), prefix))
        used_up = endpoint.open(ask(max_tokens=6), prefix)
        assert await collect(used_up) == ([], Ended("length", Usage()))
    assert (text_of(deltas), used_up.usage) == (" the", Usage())
    ((_, _, body),) = server.requests  # what is used up ends without asking
    assert (body["messages"][-1]["content"], body["max_tokens"]) == (told[:-5], 20 - 6 + 2)


async def test_text_released_late_has_no_raw_chunk_and_counts_its_tokens():
    script = stream(sse(chunk("The"), chunk(" quick"), chunk(" red"), STOP))
    async with served(script, continuation=Continuation("trailing")) as (_, endpoint):
        (delta,), _ = await collect(endpoint.open(ask(), Prefix("The quick brown fox jumps")))
    assert (delta.text, delta.tokens, delta.raw) == ("The quick red", 3, None)


@pytest.mark.parametrize(("method", "asked"), [("prefix", 1), ("none", 0)])
async def test_a_server_that_does_not_continue_fails_at_the_seam(method, asked):
    """It does not write the withheld text, or is not known to continue at all."""
    way = Continuation(method)
    async with served(stream(sse(chunk(" under"), STOP)), continuation=way) as (server, endpoint):
        assert endpoint.capabilities("m").continues is bool(asked)
        said, failure = await failing(endpoint.open(ask(), Prefix("It jumps over", withheld=" over")))
    assert (said, failure.kind, len(server.requests)) == ("", K.SEAM, asked)
    assert isinstance(failure.error, IncompleteAnswerError)


UNASKABLE = {"a page": answer(b"<html>"), "odd": answer(b'{"data": 3}')}
UNASKABLE |= {status: answer(b"{}", status=f"{status} X") for status in ("401", "429", "503")}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(UNASKABLE))
async def test_warm_up_never_raises_and_who_cannot_be_asked_now_gets_no_verdict(what, anyio_backend):
    async with served(UNASKABLE[what], continuation=Continuation("auto")) as (server, endpoint):
        await endpoint.warm_up()
        assert len(server.requests) <= 1 or not what.isdigit()
        assert (endpoint.capabilities("m").continues, endpoint.verdicts) == (False, {})


async def test_counts_that_make_no_sense_are_replaced_by_our_own():
    counts = {"prompt_tokens": -7, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 10**6}}
    script = stream(sse(chunk("a"), chunk("b"), STOP, {**chunk(), "choices": [], "usage": counts}))
    async with served(script) as (_, endpoint):
        attempt = endpoint.open(ask())
        _, ended = await collect(attempt)
    used = ended.usage
    assert used == attempt.usage
    assert used.cached_tokens == used.prompt_tokens > 50 > used.completion_tokens == 12


def with_logprobs(text: str, *values: float):
    body = chunk(text)
    entries = [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]
    body["choices"][0]["logprobs"] = {"content": entries, "refusal": None}
    return body


KNOWN = stream(sse(with_logprobs("ab", -1.0, -2.0), with_logprobs("c", -0.5), STOP))
# The endpoint's knowledge and what disco wants, what the application asks for, what is sent, what it is shown.
LOGPROBS = {
    "known and wanted": (True, LOGP, {}, True, False),
    "not given": (False, LOGP, {}, None, True),
    "not wanted": (True, frozenset(), {}, None, True),
    "asked for": (True, LOGP, {"logprobs": True, "top_logprobs": 2}, True, True),
}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(LOGPROBS))
async def test_log_probabilities_for_our_own_use_are_asked_for_and_not_shown(what, anyio_backend):
    logp, wants, params, sent, shown = LOGPROBS[what]
    async with served(KNOWN, logp=logp) as (server, endpoint):
        assert endpoint.capabilities("m").logp is logp
        deltas, _ = await collect(endpoint.open(ask(**params), wants=wants))
        await collect(endpoint.open(ask(n=2, **params), wants=wants))  # its second choice does not come
    (_, _, body), (_, _, several) = server.requests
    # Without a number of alternatives, llama-cpp-python's server gives no log probabilities.
    assert (body.get("logprobs"), body.get("top_logprobs")) == (sent, params.get("top_logprobs", sent and 1))
    assert several.get("logprobs") == params.get("logprobs")  # not of several answers
    assert [delta.logp for delta in deltas] == [(-1.0, -2.0), (-0.5,)]
    assert [delta.logprobs is not None for delta in deltas] == [shown] * 2
    assert [delta.raw.choices[0].logprobs is not None for delta in deltas] == [shown] * 2


@pytest.mark.parametrize(
    ("status", "anyio_backend", "refusals"),
    [
        ("400 Bad Request", "asyncio", 1),
        ("500 Internal Server Error", "trio", 2),
        ("an empty stream", "asyncio", 1),
    ],
    indirect=["anyio_backend"],
)
async def test_a_server_that_refuses_log_probabilities_is_asked_without_from_then_on(status, refusals):
    """Status 500 may have another cause, so it has to come twice.

    llama-cpp-python's server, asked to stream them, sends a status of 200 and nothing else.
    """
    refused = (
        stream() if " empty " in status else answer(b'{"error": {"message": "no logits"}}', status=status)
    )
    async with served(*[refused, NORMAL] * refusals, NORMAL, refused, refused) as (server, endpoint):
        for _ in range(refusals + 1):
            deltas, _ = await collect(endpoint.open(ask(), wants=LOGP))
            assert "".join(d.text for d in deltas) == "Hello"
        other = endpoint.open(replace(ask(), model="other"), wants=LOGP)
        await failing(other)  # it fails without, too: so nothing is known of log probabilities
        other_tries = (
            len(server.requests) - 2 * refusals - 1
        )  # without log probabilities, then without a stream
        assert endpoint.capabilities("m").logp is False
    bodies = [body for _, _, body in server.requests]
    assert [body.get("logprobs") for body in bodies] == [
        *[True, None] * refusals,
        None,
        True,
        *[None] * (other_tries - 1),
    ]
    assert other_tries <= 3


async def test_a_server_that_has_given_log_probabilities_is_out_of_order_at_status_500():
    """As many alternatives to each token are a matter of their own: some servers list a few only."""
    broken = answer(b"{}", status="500 Internal Server Error")
    refused = answer(b"{}", status="400 Bad Request")
    classes = replace(ask(), classes=("good", "bad"))
    async with served(KNOWN, broken, refused, NORMAL, KNOWN) as (server, endpoint):
        await collect(endpoint.open(ask(), wants=LOGP))
        await failing(endpoint.open(ask(), wants=LOGP))
        await collect(endpoint.open(classes, wants=frozenset({"label_scores"})))
        deltas, _ = await collect(endpoint.open(ask(), wants=LOGP))
    assert all(delta.logp for delta in deltas)
    assert [body.get("top_logprobs") for _, _, body in server.requests] == [1, 1, 20, None, 1]
