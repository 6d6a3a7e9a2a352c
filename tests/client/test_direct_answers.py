"""With the server alone an answer takes the SDK's own way; its route record says all the same what came of it."""

from __future__ import annotations

import gc
import json
from functools import partial

import httpx2
import openai
import pytest
from compat.compat_cases import entered, got, items
from pydantic import BaseModel
from scripted_server import chunk, scripted_server, sse, stream, usage
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    Server,
    answering,
    ask,
    document,
    documents,
    events,
    http_client,
    whole_response,
)

from disco import AsyncDisco, Disco, Timeouts
from disco.endpoints.continuation import Continuation

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Sea(BaseModel):
    wide: bool


RESPONSE = {"model": "m", "input": "The sea?"}
WAYS = {
    "whole": lambda c: c.chat.completions.create(**CHAT),
    "streamed": lambda c: c.chat.completions.create(**CHAT, stream=True),
    "with usage": lambda c: c.chat.completions.create(
        **CHAT, stream=True, stream_options={"include_usage": True}
    ),
    "raw": lambda c: c.chat.completions.with_raw_response.create(**CHAT),
    "posted": lambda c: c.post("/chat/completions", body=dict(CHAT), cast_to=httpx2.Response),
    "a response": lambda c: c.responses.create(**RESPONSE),
    "a response, streamed": lambda c: c.responses.create(**RESPONSE, stream=True),
    "a response, raw": lambda c: c.responses.with_raw_response.create(**RESPONSE),
}


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_of_asking_leaves_one_record(kind, way):
    routes = []
    outcome = await ask(kind, WAYS[way], on_route=routes.append)
    assert outcome.error is None
    (route,) = routes
    (attempt,) = route.attempts
    assert (route.winner, route.finish_reason, attempt.failure) == ("server", "stop", None)
    exact = way != "streamed"  # that stream has no usage
    assert (attempt.prompt_tokens == 20, attempt.completion_tokens == 9) == (exact, exact)
    assert route.policy_cost > 0
    assert route.segments[0].end_char == len(SAID)
    if way not in ("whole", "streamed", "with usage"):
        assert SAID not in json.dumps(route.to_dict())


async def test_the_record_of_a_whole_response_knows_its_calls():
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": "{}"}
    body = {**whole_response(), "output": [call]}
    outcome = await ask(AsyncDisco, WAYS["a response"], lambda _: document(body))
    route = outcome.value.route
    assert (route.finish_reason, route.answer_tokens, route.segments) == ("tool_calls", 9, ())


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
async def test_what_the_sdk_sent_again_is_in_the_record(kind):
    busy = [lambda _: httpx2.Response(503), lambda _: httpx2.Response(429, headers={"retry-after-ms": "1"})]
    outcome = await ask(kind, WAYS["whole"], *busy, answering, max_retries=2)
    failures = [attempt.failure for attempt in outcome.value.route.attempts]
    assert failures == ["server", "rate_limit", None]
    assert [attempt.kept_tokens for attempt in outcome.value.route.attempts] == [0, 0, 9]
    outcome = await ask(kind, WAYS["streamed"], busy[0], max_retries=1)
    assert isinstance(outcome.error, openai.InternalServerError)
    assert [attempt.failure for attempt in outcome.error.route.attempts] == ["server", "server"]


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
@pytest.mark.parametrize("way", ["closed", "dropped", "never read"])
async def test_a_stream_that_is_left_early_is_recorded_as_cancelled(kind, way):
    routes = []
    made = {"base_url": BASE, "api_key": "k", "http_client": http_client(kind, Server(answering))}
    async with entered(kind(**made, on_route=routes.append)) as client:
        left = await got(WAYS["streamed"](client))
        if way != "never read":
            await got(left.__anext__() if kind is AsyncDisco else left.__next__())
        if way == "closed":
            await got(left.close())
        del left
        gc.collect()  # the SDK's streams are in a cycle with their generators
    (route,) = routes
    assert route.finish_reason == "cancelled"


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
async def test_the_progress_of_a_direct_stream_has_no_bank_and_no_cost_before_its_end(kind):
    made = {"base_url": BASE, "api_key": "k", "http_client": http_client(kind, Server(answering))}
    async with entered(kind(**made)) as client:
        stream = await got(WAYS["with usage"](client))
        await got(stream.__anext__() if kind is AsyncDisco else stream.__next__())
        begun = stream.progress
        await items(stream)
        ended = stream.progress
    assert (begun.writer, begun.running, begun.buffered_tokens, begun.bill_usd) == (
        "server",
        ("server",),
        0,
        None,
    )
    assert (ended.running, ended.tokens, ended.bill_usd) == (
        (),
        stream.route.answer_tokens,
        stream.route.bill_usd,
    )


ODD = [[], 5, {"choices": [5]}, {"choices": [{"delta": "x"}]}, {"choices": None}, {"choices": [{}]}]


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_no_shape_of_an_answer_makes_a_difference_to_the_application(odd):
    for way in ("streamed", "whole", "raw"):
        answer = partial(events, odd) if way == "streamed" else partial(httpx2.Response, 200, json=odd)
        seen = []
        for kind in (openai.AsyncOpenAI, AsyncDisco):
            outcome = await ask(kind, WAYS[way], lambda _, answer=answer: answer())
            seen.append((type(outcome.error), repr(outcome.value) if way == "streamed" else None))
        assert seen[0] == seen[1]


async def test_clocks_a_pace_a_deadline_a_budget_and_a_continuation_need_a_session():
    for more in (
        {"timeouts": Timeouts()},
        {"default_options": {"pace_tps": 500}},
        {"default_options": {"deadline_s": 60}},
        {"budget": {"server_tokens": 10_000, "window_s": 60}},
        {"continuation": Continuation(method="flags")},
    ):
        outcome = await ask(AsyncDisco, WAYS["whole"], documents, **more)
        assert outcome.value.choices[0].message.content == SAID
        assert json.loads(outcome.requests[0].content)["stream"] is True
    outcome = await ask(AsyncDisco, WAYS["whole"], documents)
    assert "stream" not in json.loads(outcome.requests[0].content)


@pytest.mark.real
async def test_the_bytes_of_a_direct_answer_are_those_on_the_wire():
    pieces = [sse(chunk("The "), done=False), sse(chunk("sea."), chunk(finish="stop"), usage(5, 3))]
    async with scripted_server(stream(*pieces)) as server:
        async with AsyncDisco(base_url=server.base_url, api_key="k") as client:
            answer = await client.chat.completions.create(**CHAT, stream=True)
            assert len(await items(answer)) == 4
            (attempt,) = answer.route.attempts
        assert (attempt.bytes_up, attempt.bytes_down) == (server.bytes_in, server.bytes_out)
