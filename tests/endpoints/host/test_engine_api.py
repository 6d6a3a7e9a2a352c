"""The engine's API to a plain OpenAI client on its socket, and what only a client of disco's own asks for."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anyio
import httpx2
import openai
import pytest

from disco.testing.asking import ask, complete
from disco.testing.stopwatch import cpu_s

pytestmark = [pytest.mark.real, pytest.mark.anyio]
HELLO = [{"role": "user", "content": "What is the capital of France?"}]
LOOK = {"type": "object", "properties": {"at": {"type": "string", "maxLength": 5}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": LOOK}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def plain(host, key=None):
    """An unmodified openai client of the host."""
    await host.warm_up()
    serving = host._process.current
    http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=serving.socket))
    made = openai.AsyncOpenAI(
        api_key=key or serving.api_key, base_url=serving.base_url, max_retries=0, http_client=http
    )
    async with made as client:
        yield client


async def test_a_plain_client_gets_plain_answers(engine_host):
    async with plain(engine_host) as client:
        create = client.chat.completions.create
        given = {"model": "any", "messages": HELLO, "max_tokens": 6, "temperature": 0}
        whole = await create(**given, logprobs=True, top_logprobs=2)
        assert [one.id for one in (await client.models.list()).data] == ["device"]
        stream = await create(**given, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage == whole.usage.model_copy(
            update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
        )
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
        assert len(whole.choices[0].logprobs.content) == 6
        assert not any("disco" in (chunk.model_extra or {}) for chunk in chunks)
        called = await create(
            **{**given, "max_tokens": 40},
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "look"}},
        )
        (call,) = called.choices[0].message.tool_calls
        assert (call.function.name, called.choices[0].finish_reason) == ("look", "tool_calls")
        assert list(json.loads(call.function.arguments)) == ["at"]


async def test_what_is_refused_says_so_in_the_apis_form(engine_host):
    async with plain(engine_host) as client:
        for asked, code, param in (
            (
                {"messages": [{"role": "user", "content": "word " * 3000}]},
                "context_length_exceeded",
                "messages",
            ),
            ({"messages": HELLO, "frobnicate": 1}, None, "frobnicate"),
            ({"messages": []}, "empty_array", "messages"),
        ):
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as caught:
                    await client.post(
                        "/chat/completions",
                        body={"model": "m", **asked, "stream": stream},
                        cast_to=object,
                    )
                assert caught.value.param == param
                assert code is None or caught.value.code == code
        with pytest.raises(openai.NotFoundError):
            await client.post("/disco/answers/nobody", body={"do": "park"}, cast_to=object)
        with pytest.raises(openai.NotFoundError):
            await client.get("/disco/nothing", cast_to=object)
    async with plain(engine_host, key="guessed") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_the_host_says_what_it_is(engine_host):
    async with plain(engine_host) as client:
        facts = await client.get("/disco/host", cast_to=object)
    assert (facts["kind"], facts["context_tokens"], facts["parameters"]) == ("engine", 2048, 134_515_008)
    assert {"park", "pause", "follow", "drafts", "label_scores"} <= set(facts["extensions"])
    assert engine_host.facts == facts


async def test_a_client_that_leaves_stops_its_answer(engine_host):
    async with plain(engine_host) as client:
        stream = await client.chat.completions.create(
            model="any", messages=HELLO, max_tokens=1500, stream=True, logit_bias={"2": -100, "0": -100}
        )
        await anext(aiter(stream))
        await stream.close()
    with anyio.fail_after(60):  # the model is free again
        await complete(engine_host, ask(max_tokens=2))
    before = cpu_s(engine_host.process_id)
    await anyio.sleep(0.3)
    assert cpu_s(engine_host.process_id) - before < 0.15


HI = [{"role": "user", "content": "Hi."}]
RIGHT = {
    "/chat/completions": {
        "messages": HI,
        "max_tokens": 1,
        "temperature": 0,
        "seed": 1,
        "stop": ["x"],
        "stream": False,
        "tools": [TOOL],
        "tool_choice": "none",
        "disco": {
            "id": "a",
            "mode": "write",
            "number": 0,
            "prefix": {"text": "Hi", "tokens": 1, "ids": [31]},
            "wants": ["logp"],
            "classes": [],
            "cap": 3,
            "may_be_saved": False,
        },
    },
    "/disco/prompt-size": {"messages": HI, "within_s": 1.0},
    "/disco/log-probabilities": {"messages": HI, "texts": ["a"]},
    "/disco/measurements": {"prompt_tokens": [4], "depths": [4], "decode_tokens": 1, "repeats": 1},
    "/disco/drafts": {"id": "d", "seed": 1, "sampling": {"temperature": 0}, "prompt_ids": [1, 2]},
    "/disco/answers/nobody": {"do": "extend", "prefix": {"text": "a"}, "number": 1},
    "/disco/drafts/nobody": {"number": 1, "keep": 0, "append": [1], "count": 1, "stop_below": 0.5},
    "/disco/rounds": {"key": "k"},
    "/disco/rounds/k": {"do": "release"},
}
WRONG = [None, True, -1, 1.5, 10**400, "x", "\ud800", "", [], [None], [[1]], {}, {"x": 1}, 2**31]


def places(body, where=()):
    for name, value in body.items():
        yield (*where, name)
        if isinstance(value, dict):
            yield from places(value, (*where, name))


@pytest.mark.parametrize("path", RIGHT)
async def test_no_wrong_type_is_a_fault_of_the_host(engine_host, path):
    """Each field of each request, with each wrong value, or missing: a 4xx that names it, or an answer."""
    await engine_host.warm_up()
    serving = engine_host.host
    transport = httpx2.AsyncHTTPTransport(uds=serving.socket)
    headers = {"authorization": f"Bearer {serving.api_key}"}
    refused = 0
    async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=60) as client:
        for where in places(RIGHT[path]):
            for wrong in (*WRONG, KeyError):
                body = json.loads(json.dumps(RIGHT[path]))
                inner = body
                for name in where[:-1]:
                    inner = inner[name]
                if wrong is KeyError:
                    del inner[where[-1]]
                else:
                    inner[where[-1]] = wrong
                async with client.stream(
                    "POST", f"{serving.base_url}{path}", content=json.dumps(body)
                ) as reply:
                    over = "nobody" in path and reply.status_code == 503  # that drafting is over
                    assert reply.status_code < 500 or over, (where, str(wrong)[:20], await reply.aread())
                    if reply.status_code == 400:
                        error = json.loads(await reply.aread())["error"]
                        refused += 1
                        assert error["message"]
    assert refused or "nobody" in path
    assert engine_host.host is serving
