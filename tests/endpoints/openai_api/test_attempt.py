"""One request to a server that does everything a server can do wrong, over real sockets."""

from __future__ import annotations

import gzip
import json

import anyio
import openai
import pytest
import trio.testing
from loops import by_turns, mostly
from scripted_server import (
    RESET,
    STREAM_HEAD,
    WAIT_FOR_CLOSE,
    answer,
    chunk,
    piece,
    sse,
    stream,
    usage,
)

from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import FailureKind as K
from disco.errors import IncompleteAnswerError
from disco.events import DeltaKind, Ended, Traffic, Usage
from disco.request import Prefix, Request, Timeouts
from tests.endpoints.openai_api.asking import KEY, QUESTION, ask, collect, failing, served, text_of

pytestmark = [pytest.mark.real, pytest.mark.anyio]

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
            deltas = await anext(attempt)  # events of one read are one batch
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
    async with served(*WHOLE[what], continuation=way) as (server, endpoint):
        attempt = endpoint.open(ask(), prefix)
        deltas, ended = await collect(attempt)
        assert attempt.traffic == seen_by(server)
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
    assert len(server.requests) == 1, "retries belong to the session"


@pytest.mark.parametrize("way", ["closed", "cancelled"])
@pytest.mark.parametrize("head", [[], [STREAM_HEAD], BEGUN])
async def test_leaving_closes_the_connection_whatever_is_awaited_and_what_was_sent_counts(head, way):
    async with served([*head, WAIT_FOR_CLOSE]) as (server, endpoint):
        attempt = endpoint.open(ask())
        if head is BEGUN:
            await anext(attempt)

        async def read():
            async for _ in attempt:
                pass

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await server.asked.wait()
                await anyio.sleep(0.02)  # what was sent is read, and the next read waits
                if way == "cancelled":
                    tasks.cancel_scope.cancel()
                else:
                    await attempt.aclose()
            await attempt.aclose()
            await server.closed.wait()
        with pytest.raises(StopAsyncIteration):
            await anext(attempt)
        used = attempt.usage
        assert (used.prompt_tokens > 50, used.completion_tokens) == (True, int(head is BEGUN))
        assert attempt.traffic.bytes_up == server.bytes_in
        assert head == [STREAM_HEAD] or attempt.traffic.bytes_down == sum(map(len, head))


VIRTUAL = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.1)}), id="trio-virtual")],
)


@VIRTUAL
@pytest.mark.parametrize("tail", [[10_000.0], [0.5, piece(b": ping\n\n")] * 100], ids=["silence", "pings"])
async def test_clocks_that_are_off_wait_for_ever_but_the_answer_ends_soon_behind_its_finish_reason(tail):
    script = [STREAM_HEAD, 5000.0, piece(A), 5000.0, piece(sse(STOP, done=False)), *tail]
    async with served(script) as (_, endpoint):
        started_at = anyio.current_time()
        deltas, ended = await collect(endpoint.open(ask(timeouts=Timeouts(None, None, None, None))))
        assert (text_of(deltas), ended.finish_reason) == ("a", "stop")
        assert 10_000 <= anyio.current_time() - started_at < 10_005


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
    assert body["messages"][-1] == {"role": "assistant", "content": told[:-5]}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["max_tokens"] == 20 - 6 + 2


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


COUNTS = {"nothing": ("x", None), "the answer": (12, {"cached_tokens": 10**6})}


@pytest.mark.parametrize(("what", "anyio_backend"), by_turns(COUNTS))
async def test_counts_that_make_no_sense_are_replaced_by_our_own(what, anyio_backend):
    completion_tokens, cached = COUNTS[what]
    counts = {"prompt_tokens": -7, "completion_tokens": completion_tokens, "prompt_tokens_details": cached}
    script = stream(sse(chunk("a"), chunk("b"), STOP, {**chunk(), "choices": [], "usage": counts}))
    async with served(script) as (_, endpoint):
        attempt = endpoint.open(ask())
        _, ended = await collect(attempt)
    used = attempt.usage
    assert (used.prompt_tokens > 50, used.completion_tokens) == (True, 12 if cached else 2)
    assert ended.usage == (used if cached else None)
    assert used.cached_tokens == (used.prompt_tokens if cached else 0)  # never more than there is


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
