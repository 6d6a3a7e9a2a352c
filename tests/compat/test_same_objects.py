"""The objects disco makes in a shorter way than the SDK are those that the SDK makes."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import anyio
import httpx2
import pytest
from openai import AsyncOpenAI, AsyncStream, Stream
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel
from scripted_server import chunk, scripted_server, sse, stream, usage

from disco import AsyncDisco, Disco
from disco.client.chat.helper_events import StreamState
from disco.dispatch import Preset

pytestmark = pytest.mark.anyio

ROLE = chunk("", role="assistant")
END = chunk(finish="stop")
LOGPROBS = {"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}], "refusal": None}


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    piece = {"index": index, "function": function}
    return chunk(tool_calls=[piece if name is None else {**piece, "id": f"c{index}", "type": "function"}])


def with_logprobs(content: str) -> dict[str, Any]:
    body = chunk(content)
    body["choices"][0]["logprobs"] = LOGPROBS
    return body


def at(index: int, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "choices": [{**body["choices"][0], "index": index}]}


TEXT = [chunk(f" w{n}") for n in range(6)]
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "text": [ROLE, *TEXT, END, usage(3, 6)],
    "no role chunk": [*TEXT, END],
    "the role in every chunk": [chunk(" w", role="assistant")] * 4 + [END],
    "nulls": [ROLE, *[chunk("x", role=None, tool_calls=None, refusal=None)] * 5, END],
    "an empty piece": [ROLE, *TEXT, chunk(""), chunk("x"), END],
    "no content": [ROLE, *TEXT, chunk(), *TEXT, chunk(content=None), END],
    "the end with text": [ROLE, *TEXT, chunk("end", finish="stop")],
    "text behind the end": [ROLE, *TEXT, END, *TEXT],
    "cut off": [ROLE, *TEXT, chunk(finish="length")],
    "thoughts before": [ROLE, *[chunk(reasoning_content="hm")] * 3, *TEXT, END],
    "thoughts, null beside the text": [
        chunk(role="assistant", content="", reasoning_content=None),
        *[chunk(reasoning_content="hm")] * 2,
        *[chunk("x", reasoning_content=None)] * 5,
        END,
    ],
    "a new extra field amid the text": [ROLE, *TEXT, chunk("x", own=None), *TEXT, chunk("y", own="a"), *TEXT],
    "a refusal": [ROLE, *[chunk(refusal="no")] * 4, END],
    "a refusal amid the text": [ROLE, *TEXT, chunk(refusal="no"), *TEXT, END],
    "calls": [ROLE, call(0, "", "f"), call(0, '{"a"'), call(0, ":1}"), call(1, "{}", "f"), END],
    "text, then a call": [ROLE, *TEXT, call(0, "", "f"), call(0, "{}"), *TEXT, chunk(finish="tool_calls")],
    "log probabilities": [ROLE, *[with_logprobs("a")] * 4, *TEXT, END],
    "two choices": [ROLE, at(1, ROLE), *TEXT, *[at(1, body) for body in TEXT], END, at(1, END)],
    "a fingerprint that changes": [
        ROLE,
        *({**body, "system_fingerprint": f"fp{n // 2}"} for n, body in enumerate(TEXT)),
        END,
    ],
    "usage in every chunk": [ROLE, *({**body, "usage": usage(3, 1)["usage"]} for body in TEXT), END],
}


class Weather(BaseModel):
    city: str


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a tool": {
        "input_tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}]
    },
    "a class": {"response_format": Weather},
}


def facts(value: Any) -> Any:
    """All that makes up a model, those inside it too."""
    if isinstance(value, BaseModel):
        inside = {name: facts(v) for name, v in {**vars(value), **(value.model_extra or {})}.items()}
        # What kind of dict pydantic's serialiser gets is a part of it: the order is what JSON shows.
        return type(value), sorted(value.model_fields_set), list(inside), inside
    if isinstance(value, list):
        return [facts(item) for item in value]
    return value


def outcome(call: Any) -> Any:
    """What comes of a call, be it an error."""
    try:
        return facts(call())
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same
        return type(error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_helpers_events(script: str, way: str) -> None:
    states = ChatCompletionStreamState(**WAYS[way]), StreamState(**WAYS[way])
    for body in SCRIPTS[script]:
        steps = []
        for state in states:
            parsed = ChatCompletionChunk.construct(**json.loads(json.dumps(body)))
            events = outcome(lambda state=state, parsed=parsed: list(state.handle_chunk(parsed)))
            steps.append((events, facts(state.current_completion_snapshot)))
        assert steps[0] == steps[1]
        if isinstance(steps[0][0], type):
            return
    assert outcome(states[0].get_final_completion) == outcome(states[1].get_final_completion)


def test_only_a_few_chunks_of_an_answer_take_the_long_way(monkeypatch) -> None:
    taken = []
    longer = StreamState._longer
    monkeypatch.setattr(StreamState, "_longer", lambda *given: taken.append(1) or longer(*given))
    state = StreamState()
    messages = []
    for body in [ROLE, *TEXT * 10, END]:
        events = state.handle_chunk(ChatCompletionChunk.construct(**json.loads(json.dumps(body))))
        messages.append(events[0].snapshot.choices[0].message)
    assert len(taken) >= 10 * len(TEXT) - 2
    # What was handed out stays as it was: each chunk has a message of its own.
    assert [len(message.content) for message in messages[:4]] == [0, 3, 6, 9]


# ---------------------------------------------------------------------- raw responses, parsed

ANSWER = stream(sse(ROLE, done=False), sse(*TEXT[:3], done=False), sse(*TEXT[3:], END, usage(3, 6)))
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
ONLY_SERVER = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})


def connect(kind: Any, base_url: str) -> Any:
    own = {} if kind is AsyncOpenAI else {"policy": ONLY_SERVER, "price": (1.0, 1.0)}
    return kind(base_url=base_url, api_key="k", **own)


@pytest.mark.real
async def test_chunks_of_a_raw_response() -> None:
    with_usage: Any = {**ASKED, "stream_options": {"include_usage": True}}
    async with scripted_server(ANSWER) as server:
        seen = []
        for kind in (AsyncOpenAI, AsyncDisco):
            async with connect(kind, server.base_url) as client:
                raw = await client.chat.completions.with_raw_response.create(**with_usage)
                parsed = raw.parse()
                assert isinstance(parsed, AsyncStream)
                seen.append([facts(item) async for item in parsed])
                assert raw.http_response.is_closed
                ways = client.chat.completions.with_streaming_response
                async with ways.create(**with_usage) as response:
                    seen.append([facts(item) async for item in await response.parse()])
    plain, streaming, ours, ours_streaming = seen
    assert plain == streaming
    assert ours == ours_streaming
    assert [text(f) for f in ours] == [text(f) for f in plain]


def text(made: Any) -> Any:
    """What a chunk says, of its facts."""
    choices = made[3]["choices"]
    return choices[0][3]["delta"][3].get("content") if choices else made[3]["usage"][3]["total_tokens"]


@pytest.mark.real
@pytest.mark.parametrize("way", ["chat", "responses"])
async def test_parsing_takes_no_way_around_bytes_and_gives_what_the_bytes_say(way: str, monkeypatch) -> None:
    monkeypatch.setattr("uuid.uuid4", lambda: type("fixed", (), {"hex": "0" * 32}))
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    of_bytes: Any = AsyncStream[ChatCompletionChunk if way == "chat" else ResponseStreamEvent]
    parsed_bytes = []
    async with scripted_server(ANSWER) as server, connect(AsyncDisco, server.base_url) as client:

        async def ask() -> Any:
            if way == "chat":
                return await client.chat.completions.with_raw_response.create(**ASKED)
            return await client.responses.with_raw_response.create(model="m", input="x", stream=True)

        process = client._process_response_data
        seen = [facts(item) async for item in (await ask()).parse(to=of_bytes)]
        monkeypatch.setattr(
            client, "_process_response_data", lambda **given: parsed_bytes.append(1) or process(**given)
        )
        ours = [facts(item) async for item in (await ask()).parse()]
        if way == "responses":
            # Validated or constructed, the SDK's events differ only in which fields count as given.
            assert [(f[0], f[3]) for f in ours] == [(f[0], f[3]) for f in seen]
        else:
            assert ours == seen
        assert len(parsed_bytes) < (1 if way == "chat" else len(TEXT) + 6)


@pytest.mark.real
async def test_a_raw_response_is_read_once_in_whatever_way() -> None:
    async with scripted_server(ANSWER) as server, connect(AsyncDisco, server.base_url) as client:
        raw = client.chat.completions.with_raw_response
        response = await raw.create(**ASKED)
        assert [item async for item in response.parse()]
        with pytest.raises(httpx2.StreamConsumed):
            await response.http_response.aread()
        response = await raw.create(**ASKED)
        lines = [line async for line in response.http_response.aiter_lines()]
        assert lines[-2] == "data: [DONE]"
        with pytest.raises(httpx2.StreamConsumed):
            _ = [item async for item in response.parse()]


@pytest.mark.real
async def test_the_route_of_a_completion_is_written_when_it_is_asked_for_and_stays_with_copies() -> None:
    asked = {name: value for name, value in ASKED.items() if name != "stream"}
    async with scripted_server(ANSWER) as server, connect(AsyncDisco, server.base_url) as client:
        whole = await client.chat.completions.create(**asked)
        copied, pickled = copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))
    assert whole.route.answer_tokens == len(TEXT)
    assert whole.route is whole.route
    assert copied == whole
    assert copied.route is whole.route
    assert pickled.model_dump() == whole.model_dump()
    assert pickled.route.to_json(timelines=True) == whole.route.to_json(timelines=True)
    assert "route" not in whole.model_dump_json()


@pytest.mark.real
async def test_leaving_a_parsed_stream_stops_the_answer() -> None:
    script = [*ANSWER[:2], *ANSWER[2:3], "wait for close"]
    async with scripted_server(script) as server, connect(AsyncDisco, server.base_url) as client:
        response = await client.chat.completions.with_raw_response.create(**ASKED)
        async with response.parse() as parsed:
            async for _ in parsed:
                break
        with anyio.fail_after(60):
            await server.closed.wait()


@pytest.mark.real
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_chunks_of_a_synchronous_raw_response() -> None:
    async with scripted_server(ANSWER) as server:

        def read() -> list[Any]:
            with connect(Disco, server.base_url) as client:
                raw = client.chat.completions.with_raw_response
                whole = raw.create(**ASKED).parse()
                assert isinstance(whole, Stream)
                ours = [item.model_copy(update={"id": "x"}) for item in whole]
                of_bytes: Any = Stream[ChatCompletionChunk]
                seen = [
                    item.model_copy(update={"id": "x"}) for item in raw.create(**ASKED).parse(to=of_bytes)
                ]
                events = client.responses.create(model="m", input="x", stream=True)
                kinds = [event.type for event in events]
                assert kinds.count("response.output_text.delta") == len(TEXT)
                assert kinds[-1] == "response.completed"
                return [facts(ours), facts(seen)]

        ours, seen = await anyio.to_thread.run_sync(read)
        assert ours == seen
