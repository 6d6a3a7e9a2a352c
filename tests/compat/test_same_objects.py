"""The objects disco makes in a shorter way than the SDK are those that the SDK makes."""

from __future__ import annotations

import copy
import json
import pickle
from collections import defaultdict
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncStream
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel
from scripted_server import WAIT_FOR_CLOSE, chunk, scripted_server, sse, stream, usage

from disco import AsyncDisco
from disco.client.chat.helper_events import StreamState
from disco.dispatch import Preset
from disco.endpoints.openai_api.call_pieces import CallPieces

pytestmark = pytest.mark.anyio

ROLE = chunk("", role="assistant")
END = chunk(finish="stop")
LOGPROBS = {"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}], "refusal": None}


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    piece = {"index": index, "function": function}
    return chunk(tool_calls=[piece if name is None else {**piece, "id": f"c{index}", "type": "function"}])


def at(index: int, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "choices": [{**body["choices"][0], "index": index}]}


TEXT = [chunk(f" w{n}") for n in range(6)]
NAMED = chunk("b")
NAMED["choices"][0]["logprobs"] = LOGPROBS
PIECES: list[dict[str, Any]] = [
    *[chunk("x"), chunk(" w"), chunk(""), chunk(), chunk(content=None), END, chunk("end", finish="stop")],
    *[chunk(finish="length"), chunk(finish="tool_calls"), chunk(" w", role="assistant"), NAMED],
    chunk("x", role=None, tool_calls=None, refusal=None),
    chunk("", role="assistant", reasoning_content=None),
    *[chunk(reasoning_content="hm"), chunk("x", reasoning_content=None)],
    *[chunk("x", own=None), chunk("y", own="a"), chunk(refusal="no")],
    *[call(0, "", "f"), call(0, '{"a":'), call(0, "1}"), call(1, "{}", "f")],
    *[at(1, ROLE), at(1, chunk("x")), at(1, END), usage(3, 6)],
    *[{**chunk("x"), "system_fingerprint": fp} for fp in ("fp1", "fp2")],
    {**chunk("x"), "usage": usage(3, 1)["usage"]},
]
RUNS = st.tuples(st.sampled_from(PIECES), st.integers(1, 4))


class Weather(BaseModel):
    city: str


TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}
WAYS: list[dict[str, Any]] = [{}, {"input_tools": [TOOL]}, {"response_format": Weather}]


def facts(value: Any) -> Any:
    """All that makes up a model, those inside it too."""
    if isinstance(value, BaseModel):
        inside = {name: facts(v) for name, v in {**vars(value), **(value.model_extra or {})}.items()}
        # What kind of dict pydantic's serialiser gets is a part of it: the order is what JSON shows.
        return type(value), sorted(value.model_fields_set), list(inside), inside
    if isinstance(value, list):
        return [facts(item) for item in value]
    return value


def outcome(call: Any, *of: Any) -> Any:
    """What comes of a call, be it an error."""
    try:
        return facts(call(*of))
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same
        return type(error)


def chunk_of(body: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk.construct(**json.loads(json.dumps(body)))


@settings(max_examples=400)
@given(st.booleans(), st.lists(RUNS, max_size=7), st.sampled_from(WAYS))
def test_the_helpers_events(has_role: bool, runs: list[Any], way: dict[str, Any]) -> None:
    states = ChatCompletionStreamState(**way), StreamState(**way)
    calls = defaultdict(CallPieces)  # the SDK joins a call's id and name as often as they are told
    for body in [ROLE] * has_role + [piece for piece, times in runs for _ in range(times)]:
        chunks = chunk_of(body), chunk_of(body)
        for choice in chunks[0].choices:
            calls[choice.index].place(choice.delta.tool_calls)
        plain, ours = (outcome(state.handle_chunk, c) for state, c in zip(states, chunks, strict=True))
        assert ours == plain
        if isinstance(plain, type):
            return
        snapshots = [facts(state.current_completion_snapshot) for state in states]
        assert snapshots[0] == snapshots[1]
    assert outcome(states[0].get_final_completion) == outcome(states[1].get_final_completion)


def test_only_a_few_chunks_of_an_answer_take_the_long_way(monkeypatch) -> None:
    taken = []
    longer = StreamState._longer
    monkeypatch.setattr(StreamState, "_longer", lambda *given: taken.append(1) or longer(*given))
    state = StreamState()
    bodies = [ROLE, *TEXT * 10, END]
    messages = [state.handle_chunk(chunk_of(body))[0].snapshot.choices[0].message for body in bodies]
    assert len(taken) >= 10 * len(TEXT) - 2
    # What was handed out stays as it was: each chunk has a message of its own.
    assert [len(message.content) for message in messages[:4]] == [0, 3, 6, 9]


# ---------------------------------------------------------------------- raw responses, parsed

ANSWER = stream(sse(ROLE, done=False), sse(*TEXT[:3], done=False), sse(*TEXT[3:], END, usage(3, 6)))
WHOLE: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
ASKED: Any = {**WHOLE, "stream": True}
EVENTS: Any = {"model": "m", "input": "x", "stream": True}


def connect(server: Any, kind: Any = AsyncDisco) -> Any:
    only_server = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
    return kind(base_url=server.base_url, api_key="k", policy=only_server, price=(1.0, 1.0))


@pytest.mark.real
@pytest.mark.parametrize("way", ["chat", "responses"])
async def test_parsing_takes_no_way_around_bytes_and_gives_what_the_bytes_say(way: str, monkeypatch) -> None:
    monkeypatch.setattr("uuid.uuid4", lambda: type("fixed", (), {"hex": "0" * 32}))
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    of_bytes: Any = AsyncStream[ChatCompletionChunk if way == "chat" else ResponseStreamEvent]
    parsed_bytes = []
    async with scripted_server(ANSWER) as server, connect(server) as client:
        resource, asked = (client.chat.completions, ASKED) if way == "chat" else (client.responses, EVENTS)
        process = client._process_response_data
        response = await resource.with_raw_response.create(**asked)
        seen = [facts(item) async for item in response.parse(to=of_bytes)]
        monkeypatch.setattr(
            client, "_process_response_data", lambda **given: parsed_bytes.append(1) or process(**given)
        )
        raw = await resource.with_raw_response.create(**asked)
        parsed = raw.parse()
        assert isinstance(parsed, AsyncStream)
        ours = [facts(item) async for item in parsed]
        assert raw.http_response.is_closed
        assert len(parsed_bytes) < (1 if way == "chat" else len(TEXT) + 6)
        async with resource.with_streaming_response.create(**asked) as response:
            assert ours == [facts(item) async for item in await response.parse()]
    if way == "responses":
        # Validated or constructed, the SDK's events differ only in which fields count as given.
        ours, seen = ([(f[0], f[3]) for f in made] for made in (ours, seen))
    assert ours == seen


@pytest.mark.real
async def test_a_raw_response_is_read_once_in_whatever_way_and_leaving_it_stops_the_answer() -> None:
    async with (
        scripted_server(ANSWER, ANSWER, [*ANSWER[:3], WAIT_FOR_CLOSE]) as server,
        connect(server) as client,
    ):
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
        async with (await raw.create(**ASKED)).parse() as parsed:
            async for _ in parsed:
                break
        with anyio.fail_after(60):
            await server.closed.wait()


@pytest.mark.real
async def test_the_route_of_a_completion_is_written_when_it_is_asked_for_and_stays_with_copies() -> None:
    async with scripted_server(ANSWER) as server, connect(server) as client:
        whole = await client.chat.completions.create(**WHOLE)
        copied, pickled = copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))
    assert whole.route.answer_tokens == len(TEXT)
    assert whole.route is whole.route
    assert copied == whole
    assert copied.route is whole.route
    assert pickled.model_dump() == whole.model_dump()
    assert pickled.route.to_json(timelines=True) == whole.route.to_json(timelines=True)
    assert "route" not in whole.model_dump_json()
