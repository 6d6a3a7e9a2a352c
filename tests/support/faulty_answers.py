"""Answers of a server that misbehaves on purpose, fault by fault, and the ways of asking for them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx2
import openai
from scripted_server import RESET, STREAM_HEAD, answer, chunk, piece, sse, stream

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

SEA = [{"role": "user", "content": "Tell me about the sea."}]
SERVER_FIRST = Preset(
    dispatch={"policy": "server_only"}, playback={"pace_tps": "off"}, migration={"enabled": False}
)
BEGUN, WHOLE, REST = "The sea ", "The sea is wide.", "is wide."
KEY = "secret-key-1234"
BEGIN = sse(chunk(role="assistant", content=""), chunk(BEGUN), done=False)
END = sse(chunk(REST), chunk(finish="stop"))
BOOM = {"error": {"message": "Boom.", "type": "server_error", "code": "boom"}}
SLOW_DOWN = {"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}
CONTENT = b'data: {"choices": [{"index": 0, "delta": {"content": "'


class Fault(NamedTuple):
    """What the server sends each time, and what comes of it."""

    name: str
    script: list[Any]
    raises: type[openai.OpenAIError] | None = (
        None  # when there is no other endpoint; None: it is no fault at all
    )
    said: str = ""  # what had been written by then
    failure: str | None = None  # the attempt's, in the route record


NULLS = dict.fromkeys(("id", "object", "created", "model", "usage"))
NULL_CHOICE = dict.fromkeys(("index", "delta", "finish_reason", "logprobs"))
NULL_DELTA = {"content": BEGUN, "role": None, "tool_calls": None}
PINGS = sse({"id": "x", "object": "ping"}, {**chunk(), "choices": []}, done=False)
KEPT_ALIVE = sse({**chunk(), "choices": None}, {"type": "keep-alive"}, done=False) + b": comment\n\n"
WITH_NULLS = sse(
    {**NULLS, "choices": [NULL_CHOICE]}, {"id": None, "choices": [{"delta": NULL_DELTA}]}, done=False
)
FINE = [
    Fault("nothing wrong", stream(BEGIN + END)),
    Fault("chunks without choices", stream(PINGS, BEGIN, KEPT_ALIVE, END)),
    Fault("[DONE] twice, and text behind it", stream(BEGIN + END + b"data: [DONE]\n\n" + sse(chunk("!")))),
    Fault("no finish reason", stream(BEGIN + sse(chunk(REST)))),
    Fault("no [DONE]", stream(BEGIN, sse(chunk(REST), chunk(finish="stop"), done=False))),
    Fault("null fields", stream(WITH_NULLS, END)),
    Fault("the wrong content type", answer(BEGIN + END, content_type="text/plain")),
    Fault("a long line", stream(sse({**chunk(BEGUN), "padding": "x" * 1_000_000}, done=False), END)),
    Fault("characters cut between two reads", stream(*[bytes([b]) for b in BEGIN + END])),
]

GARBAGE = openai.APIResponseValidationError, "garbage"
CUT = openai.APIConnectionError, "incomplete"
LOST = openai.APIConnectionError, "connection"
SAID, BUSY = (openai.APIError, "server"), (openai.APIError, "rate_limit")
HTML = {"content_type": "text/html; charset=utf-8"}
IN_MID_STREAM = [
    ("data that is not JSON", stream(BEGIN, b"data: {oops\n\n"), GARBAGE),
    ("JSON that is no object", stream(BEGIN, b"data: [1, 2]\n\n"), GARBAGE),
    ("bytes that are no UTF-8", stream(BEGIN, CONTENT + b'\xe2\x82"}}]}\n\n'), GARBAGE),
    ("an event of too many lines", stream(BEGIN, b"data: x\n" * 20_002 + b"\n"), GARBAGE),
    ("an error object in mid-stream", stream(BEGIN, sse(BOOM)), SAID),
    ("an error event", stream(BEGIN, b"event: error\n" + sse(BOOM)), SAID),
    ("a rate limit in mid-stream", stream(BEGIN, sse(SLOW_DOWN)), BUSY),
    ("an end in mid-sentence", stream(BEGIN), CUT),
    ("half a character at the end", stream(BEGIN, CONTENT + b"\xe2\x82"), CUT),
    ("a connection that is reset", [STREAM_HEAD, piece(BEGIN), 0.02, RESET], LOST),
    ("a body that is cut off", [STREAM_HEAD, piece(BEGIN)], LOST),
]
BEFORE_THE_TEXT = [
    ("a web page", answer(b"<html>Sign in</html>", **HTML), GARBAGE),
    ("one document that is no answer", answer(b'{"detail": "Welcome"}'), GARBAGE),
    ("an empty stream", stream(b""), CUT),
    ("only [DONE]", stream(b"data: [DONE]\n\n"), CUT),
    ("a connection reset at once", [RESET], LOST),
    ("another protocol", [b"SSH-2.0-nonsense\r\n"], LOST),
    (
        "a web page with 502",
        answer(b"<html>Bad gateway</html>", status="502 Bad Gateway", **HTML),
        (openai.InternalServerError, "server"),
    ),
]
# Other refusals differ in their status only: `tests/faults/test_matrix.py`.
REFUSED = [
    ("429", "No, thank you.", openai.RateLimitError, "rate_limit"),
    ("401", f"Incorrect API key provided: {KEY}.", openai.AuthenticationError, "account"),
]


def refusal(status: str, message: str) -> list[Any]:
    error = {"message": message, "type": "some_error", "param": "messages", "code": "some_code"}
    return answer(json.dumps({"error": error}).encode(), status=f"{status} X")


FAULTS = [
    *(Fault(name, script, kind[0], BEGUN, kind[1]) for name, script, kind in IN_MID_STREAM),
    *(Fault(name, script, kind[0], "", kind[1]) for name, script, kind in BEFORE_THE_TEXT),
    *(Fault(name, refusal(name, said), error, "", failure) for name, said, error, failure in REFUSED),
]


def device() -> SimulatedEndpoint:
    return SimulatedEndpoint("device", SimulatedProfile(answer=WHOLE, decode_tps=1000.0), place="device")


def asking(server, local=None, **more) -> AsyncDisco:
    settings = {"max_retries": 0, "policy": SERVER_FIRST, "http_client": quick_client(), **more}
    return AsyncDisco(local=local, base_url=server.base_url, api_key=KEY, **settings)


def quick_client() -> httpx2.AsyncClient:
    """Reading the certificates of the world takes longer than the rest of a test, and nothing here uses TLS."""
    return httpx2.AsyncClient(verify=False)


async def read(pieces) -> str:
    deltas = [p.choices[0].delta async for p in pieces if p.choices]
    return "".join(delta.content or "" for delta in deltas if delta is not None)


async def ask(client, way: str) -> tuple[str, Any]:
    """The answer's text, asked for in one of the SDK's ways, and its route record where that way tells it."""
    completions, asked = client.chat.completions, {"model": "m", "messages": SEA}
    match way:
        case "stream":
            async with await completions.create(stream=True, **asked) as chunks:
                return await read(chunks), getattr(chunks, "route", None)
        case "whole":
            whole = await completions.create(**asked)
            return whole.choices[0].message.content, getattr(whole, "route", None)
        case "raw":
            raw = await completions.with_raw_response.create(stream=True, **asked)
            return await read(raw.parse()), None
        case "events":
            async with await client.responses.create(model="m", input="The sea?", stream=True) as events:
                deltas = [e.delta async for e in events if e.type == "response.output_text.delta"]
            return "".join(deltas), None
    raise AssertionError(way)


async def caught(client, way: str = "stream") -> Exception | None:
    try:
        await ask(client, way)
    except Exception as error:  # noqa: BLE001
        return error
    return None
