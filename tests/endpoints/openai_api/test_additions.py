"""What disco adds to a request by itself is taken back where a server refuses it, and only once for a model."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import anyio
import httpx2
import openai
import pytest
from defects.asking import client, create, device, preset, text_of, tried
from faults.in_memory import MemoryServer, Reply, anyio_backend, no_thread, spoken  # noqa: F401 - fixtures
from scripted_server import chunk, usage

from disco import Backup

pytestmark = pytest.mark.anyio

DOCUMENT = {"content-type": "application/json"}
SAID = {
    **chunk(),
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "The sea is wide."}, "finish_reason": "stop"}
    ],
    "usage": usage(7, 4)["usage"],
}
WHOLE = Reply([json.dumps(SAID).encode()], headers=DOCUMENT)
STREAMED = spoken(["The sea ", "is wide."])
BUDGET = {"usd": 1.0, "window_s": 60.0}


def refusal(status: int, body: Any) -> Reply:
    return Reply([body if isinstance(body, bytes) else json.dumps(body).encode()], status, DOCUMENT)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


# The field that is refused, the status, and what the server says.
REFUSALS: dict[str, tuple[str, int, Any]] = {
    "OpenAI, unverified": (
        "stream",
        400,
        error(
            "Your organization must be verified to stream this model. Please go to the settings.",
            type="invalid_request_error",
            param="stream",
            code="unsupported_value",
        ),
    ),
    "no streaming": ("stream", 400, error("Streaming is not supported for this model.")),
    "a code": ("stream", 400, error("Not supported", code="streaming_not_supported")),
    "a code in capitals": ("stream", 400, {"error": "STREAM_NOT_SUPPORTED"}),
    "a reason": ("stream", 400, error("Request failed", reason="streamingDisabled")),
    "Zhipu": ("stream", 400, error("stream\u53c2\u6570\u975e\u6cd5", code="1214")),
    "in Chinese": ("stream", 400, error("\u8be5\u6a21\u578b\u4e0d\u652f\u6301stream\u6a21\u5f0f")),
    "a plural": ("stream", 400, error("The model m does not offer streams.")),
    "Bedrock": ("stream", 400, {"message": "The model doesn't support the ConverseStream operation"}),
    "Bedrock, a policy": (
        "stream",
        403,
        {
            "message": "User is not authorized to perform: bedrock:InvokeModelWithResponseStream on resource: m"
        },
    ),
    "Alibaba": ("stream", 400, {"message": "parameter.incremental_output only support set to false"}),
    "chunked": ("stream", 400, error("Chunked responses are disabled")),
    "501": ("stream", 501, error("Streaming is not implemented.")),
    "stream, in no words": ("stream", 400, error("Bad Request")),
    "stream, without a body": ("stream", 422, b""),
    "Mistral": (
        "stream_options",
        422,
        {
            "detail": [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "stream_options"],
                    "msg": "Extra inputs are not permitted",
                    "input": {"include_usage": True},
                }
            ]
        },
    ),
    "Azure": (
        "stream_options",
        400,
        error("The stream_options parameter is not supported with data sources."),
    ),
    "Fireworks": ("stream_options", 400, error("Extra inputs are not permitted, field: 'stream_options'")),
    "Databricks": (
        "stream_options",
        400,
        {"error_code": "BAD_REQUEST", "message": 'Bad request: json: unknown field "stream_options"\n'},
    ),
    "usage": ("stream_options", 400, error("usage reporting in streams is not available")),
    "include_usage": ("stream_options", 400, error("Unknown parameter: 'include_usage'")),
    "in no words": ("stream_options", 400, error("Invalid request", type="invalid_request_error")),
    "a text": ("stream_options", 422, b'"Unprocessable Entity"'),
}


def refusing(what: str):
    """A server that refuses a field, and what it gives without it."""
    name, status, body = REFUSALS[what]

    def reply(asked: Any) -> Reply:
        if name in asked:
            return refusal(status, body)
        return STREAMED if asked.get("stream") else WHOLE

    return MemoryServer(reply)


def of(server: MemoryServer, by: str):
    if by == "budget":
        return client(server, budget=BUDGET)
    if by == "device":
        return client(server, local=device(answer="small"), preset=preset("server_only"))
    http = httpx2.AsyncClient(transport=server)
    at = {"base_url": server.also(spoken(["from the backup"])), "http_client": http, "price": (1.0, 1.0)}
    return client(server, backups=[Backup(**at, api_key="k" * 12, model="b", continuation="none")])


@pytest.mark.parametrize("by", ["budget", "backup", "device"])
@pytest.mark.parametrize("what", REFUSALS)
async def test_what_is_refused_is_left_out_and_not_sent_again(what, by):
    name = REFUSALS[what][0]
    is_named = "words" not in what and "body" not in what and what != "a text"
    server = refusing(what)
    async with of(server, by) as one:
        for _ in range(2):
            answer = await create(one)
            assert answer.choices[0].message.content == "The sea is wide."
            assert tried(answer) == [("server", None)]
        most = 1 if is_named else 2
        assert len(server.requests) <= 2 + most
        assert name not in server.requests[-1]
        if name == "stream_options":
            assert server.requests[-1]["stream"] is True
            assert await text_of(await create(one, stream=True)) == "The sea is wide."
            assert len(server.requests) <= 3 + most
        else:
            assert "stream_options" not in server.requests[-1]
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 4)


@pytest.mark.parametrize("what", REFUSALS)
async def test_what_the_application_asks_for_itself_is_refused(what):
    name, status, _ = REFUSALS[what]
    server = refusing(what)
    asked = (
        {"stream": True} if name == "stream" else {"stream": True, "stream_options": {"include_usage": True}}
    )
    async with of(server, "budget") as one:
        with pytest.raises(openai.APIStatusError) as caught:
            await create(one, **asked)
        assert caught.value.status_code == status
        assert all(body["stream"] is True for body in server.requests)
        assert len(server.requests) <= 2  # the usage may be disco's


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, error("Invalid value: 'temperature' must be below 2.", param="temperature")),
        (400, error("The prompt mentions a river.", code="odd")),
        (429, error("Too many streams.")),
        (400, error("upstream: temperature is too high for the mainstream tier.")),
        (401, error("Bad request")),
    ],
)
async def test_other_refusals_cost_no_request(status, said):
    server = MemoryServer(refusal(status, said))
    async with client(server, budget=BUDGET) as one:
        with pytest.raises(openai.APIStatusError):
            await create(one)
    assert len(server.requests) == 1


async def test_a_refusal_in_no_words_costs_a_request_for_each_addition_and_none_once_they_were_taken():
    server = MemoryServer(refusal(400, b""))
    async with client(server, budget=BUDGET) as one:
        with pytest.raises(openai.BadRequestError):
            await create(one)
        assert [sorted(body.keys() & {"stream", "stream_options"}) for body in server.requests] == [
            ["stream", "stream_options"],
            ["stream"],
            [],
        ]
    server = MemoryServer(STREAMED, refusal(400, b""))
    async with client(server, budget=BUDGET) as one:
        await create(one)
        with pytest.raises(openai.BadRequestError):
            await create(one)
    assert len(server.requests) == 2


async def test_a_whole_answer_has_its_time():
    """Its server is silent for as long as it writes; a stream would have been given up."""

    def reply(asked: Any) -> Reply:
        if "stream" in asked:
            return refusal(400, error("No streaming here."))
        return Reply(WHOLE.steps, headers=DOCUMENT, before=[70.0])

    server = MemoryServer(reply)
    async with of(server, "backup") as one:
        began_at = anyio.current_time()
        answer = await create(one)
        assert answer.choices[0].message.content == "The sea is wide."
        assert anyio.current_time() - began_at == pytest.approx(70.0)
    assert len(server.requests) == 2


async def test_an_application_cannot_fill_the_memory_of_what_was_refused():
    server = refusing("Azure")
    async with client(server, budget=BUDGET) as one:
        for number in range(300):
            await create(one, model=f"model-{number}")
        await create(one, model="model-299")
        assert len(server.requests) == 601
        await create(one, model="model-0")  # forgotten: it is asked twice again
        assert len(server.requests) == 603


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


# What a server gives for streams, which says nothing that names them.
UNREADABLE: dict[str, Reply] = {
    "no JSON": Reply([event(b"{oops")]),
    "no empty line": Reply([b"data: {}\n" * 3 + b"data: [DONE]\n\n"]),
    "JSON lines": Reply([b"{}\n{}\n"], headers={"content-type": "application/x-ndjson"}),
    "nothing": Reply([]),
    "500": refusal(500, error("'NoneType' object is not subscriptable")),
    "an error event": Reply([event(json.dumps(error("This model cannot be streamed.")).encode())]),
}


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_stream_that_cannot_be_read_is_asked_for_as_a_whole(what):
    server = MemoryServer(lambda asked: UNREADABLE[what] if asked.get("stream") else WHOLE)
    async with client(server, budget=BUDGET) as one:
        for _ in range(3):
            answer = await create(one)
            assert answer.choices[0].message.content == "The sea is wide."
    assert len(server.requests) <= 5  # the second time teaches


async def test_usage_that_ends_in_500_is_left_out_of_streams():
    server = MemoryServer(lambda asked: refusal(500, b"") if "stream_options" in asked else STREAMED)
    async with client(server, budget=BUDGET) as one:
        for _ in range(3):
            assert await text_of(await create(one, stream=True)) == "The sea is wide."
    assert len(server.requests) == 5


async def test_a_server_that_fails_is_asked_once_more_than_usual():
    server = MemoryServer(refusal(500, error("Internal Server Error")))
    async with client(server, budget=BUDGET) as one:
        with pytest.raises(openai.InternalServerError):
            await create(one)
    assert len(server.requests) <= 4


@pytest.mark.parametrize("what", ["OpenAI, unverified", "no streaming", "501"])
async def test_another_endpoint_streams_where_one_refuses_to(what):
    async with of(refusing(what), "backup") as one:
        assert await text_of(await create(one, stream=True)) == "from the backup"


# What a server gives for streams, of which the session asks again: nothing there says that a whole answer would come.
FAILING: dict[str, Reply | Exception] = {
    "502": refusal(502, b"bad gateway"),
    "504": refusal(504, b"upstream request timeout"),
    "reset behind the head": Reply([httpx2.ReadError("")]),
    "cut in the text": Reply([event(json.dumps(chunk("The ")).encode()), httpx2.ReadError("")]),
    "an error of the server's": Reply([event(json.dumps(error("internal", code=500)).encode())]),
}

TRIES: dict[str, Any] = {"budget": BUDGET, "max_retries": 2, "continuation": "none"}


@pytest.mark.parametrize("what", FAILING)
async def test_the_last_try_asks_for_a_whole_answer(what):
    server = MemoryServer(lambda asked: FAILING[what] if asked.get("stream") else WHOLE)
    async with client(server, **TRIES) as one:
        counts = []
        for _ in range(3):
            before = len(server.requests)
            answer = await create(one)
            assert answer.choices[0].message.content == "The sea is wide."
            counts.append(len(server.requests) - before)
    assert counts == [3, 3, 1]  # the second time teaches


@pytest.mark.parametrize("what", [what for what in FAILING if what != "cut in the text"])
async def test_without_retries_too_a_whole_answer_is_asked_for(what):
    """The plain SDK gets it with its one request."""
    server = MemoryServer(lambda asked: FAILING[what] if asked.get("stream") else WHOLE)
    async with client(server, **{**TRIES, "max_retries": 0}) as one:
        assert (await create(one)).choices[0].message.content == "The sea is wide."
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "end",
    [httpx2.ReadError(""), b"", event(json.dumps(error("internal", code=500)).encode())],
    ids=["cut", "ends", "says an error"],
)
async def test_without_retries_a_server_that_has_streamed_a_piece_is_not_asked_again(end):
    """It streams, and what it wrote is paid for."""
    server = MemoryServer(Reply([event(json.dumps(chunk("The ")).encode()), end]), WHOLE)
    async with client(server, **{**TRIES, "max_retries": 0}) as one:
        with pytest.raises(openai.OpenAIError) as caught:
            await create(one)
    assert (caught.value.partial_text, len(server.requests)) == ("The ", 1)


async def test_without_retries_what_may_not_be_of_an_addition_is_not_asked_again():
    full = Reply([b"{}"], 503, {**DOCUMENT, "retry-after": "7"})
    for reply in (refusal(429, error("slow down")), full, Reply(before=[httpx2.ConnectError("refused")])):
        server = MemoryServer(reply)
        async with client(server, **{**TRIES, "max_retries": 0}) as one:
            with pytest.raises(openai.OpenAIError):
                await create(one)
        assert len(server.requests) == 1


def sent(*chunks: dict[str, Any], then: bytes = b"[DONE]") -> Reply:
    return Reply([event(json.dumps(each).encode()) for each in chunks] + [event(then)])


def half_a_call() -> dict[str, Any]:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "now", "arguments": '{"ci'}}
    return {**chunk(), "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}


# Streams that their server ends, or that go on with what is none: the document of the same answer may be right.
BROKEN: dict[str, Reply] = {
    "no call": sent(chunk("", finish="tool_calls")),
    "half a call": sent(half_a_call(), chunk(finish="tool_calls")),
    "nothing": sent(chunk("", finish="eos")),
    "abort": sent(chunk("The "), chunk(finish="abort")),
    "a page in the text": sent(chunk("The "), then=b"<html>502</html>"),
    "an error in the text": sent(chunk("The "), error("broke", code=401)),
}


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("what", BROKEN)
async def test_a_broken_stream_is_asked_for_as_a_whole_once(what, retries):
    server = MemoryServer(lambda asked: BROKEN[what] if asked.get("stream") else WHOLE)
    async with client(server, **{**TRIES, "max_retries": retries}) as one:
        counts = []
        for _ in range(3):
            before = len(server.requests)
            assert (await create(one)).choices[0].message.content == "The sea is wide."
            counts.append(len(server.requests) - before)
    assert counts == [2, 2, 1]  # the second time teaches


@pytest.mark.parametrize(
    "reply",
    [
        sent(chunk("", finish="length")),
        sent(chunk("", finish="content_filter")),
        sent(chunk("The "), error("no", code="content_filter")),
        sent(chunk("The "), error("no", code="context_length_exceeded")),
    ],
    ids=["the limit", "a filter", "a filter's error", "the prompt is too long"],
)
async def test_what_explains_a_broken_stream_is_not_asked_about_again(reply):
    server = MemoryServer(reply)
    async with client(server, **TRIES) as one:
        with contextlib.suppress(openai.OpenAIError):
            await create(one)
    assert len(server.requests) == 1


@pytest.mark.parametrize("what", [*FAILING, "half a call", "abort", "a page in the text"])
async def test_another_endpoint_goes_before_the_last_try(what):
    server = MemoryServer(lambda asked: {**FAILING, **BROKEN}[what] if asked.get("stream") else WHOLE)
    async with of(server, "backup") as one:
        assert (await create(one)).choices[0].message.content == "from the backup"
    assert len(server.requests) == 2


async def test_a_server_that_streams_is_asked_for_streams_to_the_last():
    server = MemoryServer(STREAMED, refusal(502, b""))
    async with client(server, **TRIES) as one:
        await create(one)
        with pytest.raises(openai.InternalServerError):
            await create(one)
    assert len(server.requests) == 4
    assert all(body["stream"] and body["stream_options"] for body in server.requests)


async def test_words_of_another_cause_leave_nothing_out_but_at_the_last_try():
    for said in ("stream disconnected before completion", "upstream error: stream reset"):
        server = MemoryServer(refusal(503, error(said)))
        async with client(server, **TRIES) as one:
            with pytest.raises(openai.InternalServerError):
                await create(one)
        assert [body.get("stream") for body in server.requests] == [True, True, None]


async def test_a_whole_answer_says_nothing_of_the_usage_in_streams():
    def reply(asked: Any) -> Reply:
        if not asked.get("stream"):
            return WHOLE
        is_odd = "stream_options" in asked and len(server.requests) > 2
        return refusal(400, b"") if is_odd else refusal(400, error("Streaming is not supported."))

    server = MemoryServer(reply)
    async with client(server, budget=BUDGET) as one:
        await create(one)
        with pytest.raises(openai.BadRequestError):
            await create(one, stream=True)
    assert ["stream_options" in body for body in server.requests] == [True, False, True, False]
