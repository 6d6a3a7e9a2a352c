"""The same call on the SDK's client and on disco's, with the same server in memory behind each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
from compat.compat_cases import SEA, entered, got, items
from pydantic import BaseModel

from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

BASE = "http://server.test/v1"
CHAT: dict[str, Any] = {"model": "m", "messages": SEA}
SAID = "The sea is wide."
Answer = Callable[[httpx2.Request], httpx2.Response]


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that arrives in pieces, and only once, as from a socket; reading on after it was closed fails."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        # --- mutable from here on
        self.left = list(pieces)
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        while self.left:
            if self.closed:
                raise httpx2.ReadError("closed")
            yield self.left.pop(0)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def document(body: Any, status: int = 200, **headers: str) -> httpx2.Response:
    """One JSON document."""
    data = json.dumps(body).encode()
    fields = {"content-type": "application/json", "x-request-id": "req_1", **_dashed(headers)}
    return httpx2.Response(status, headers=fields, stream=Body([data]))


def events(*bodies: Any, named: bool = False, **headers: str) -> httpx2.Response:
    """An event stream, each event a piece of it; `named` events have their type, as those of the Responses API."""
    data = [b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies]
    if named:
        data = [f"event: {body['type']}\n".encode() + d for body, d in zip(bodies, data, strict=True)]
    fields = {"content-type": "text/event-stream", "x-request-id": "req_1", **_dashed(headers)}
    return httpx2.Response(200, headers=fields, stream=Body([*data, b"data: [DONE]\n\n"]))


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


# ---------------------------------------------------------------------- what the server says

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 12, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 5, "accepted_prediction_tokens": 0},
}
# Fields that the API has, and fields of providers that the SDK knows nothing of.
BESIDE = {"service_tier": "flex", "system_fingerprint": "fp", "provider": "P", "citations": ["http://a"]}
_STREAMED = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1", **BESIDE}


def whole_chat() -> dict[str, Any]:
    """A chat completion with all that providers write into one."""
    message = {"role": "assistant", "content": SAID, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": 7}
    return {**_STREAMED, "object": "chat.completion", "choices": [choice], "usage": USAGE}


def chat_events(*, usage: bool) -> list[dict[str, Any]]:
    """The same as chunks; where the usage is asked for, the last has it and the others have none, as OpenAI's have."""
    deltas: list[tuple[dict[str, Any], str | None]]
    deltas = [({"role": "assistant", "content": ""}, None), *(({"content": w}, None) for w in _words())]
    deltas.append(({}, "stop"))
    chunks = []
    for delta, finish in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunks.append({**_STREAMED, "choices": [{**choice, "stop_reason": 7} if finish else choice]})
    if not usage:
        return chunks
    return [*({**chunk, "usage": None} for chunk in chunks), {**_STREAMED, "choices": [], "usage": USAGE}]


def _words() -> list[str]:
    first, *rest = SAID.split(" ")
    return [first, *(f" {word}" for word in rest)]


def whole_response(status: str = "completed") -> dict[str, Any]:
    """An answer of the Responses API."""
    part = {"type": "output_text", "text": SAID, "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [part]}
    usage = {
        "input_tokens": 20,
        "output_tokens": 9,
        "total_tokens": 29,
        "input_tokens_details": {"cached_tokens": 12},
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    made = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m-1", "status": status}
    rest = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "provider": "P"}
    return {**made, **rest, "output": [message], "usage": usage}


def response_events() -> list[dict[str, Any]]:
    """The shortest stream of the Responses API that has text."""
    begun = {**whole_response("in_progress"), "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    return [
        {"type": "response.created", "sequence_number": 0, "response": begun},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": SAID, **at},
        {"type": "response.completed", "sequence_number": 2, "response": whole_response()},
    ]


def answering(request: httpx2.Request) -> httpx2.Response:
    """What a server of chat completions and of responses answers, whole or streamed as it is asked."""
    if request.method == "GET":
        return document({"object": "list", "data": [], "has_more": False})
    asked = json.loads(request.content)
    streamed, kind = bool(asked.get("stream")), request.url.path.rpartition("/")[2]
    if kind == "responses":
        return events(*response_events(), named=True) if streamed else document(whole_response())
    usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    return events(*chat_events(usage=usage)) if streamed else document(whole_chat())


def documents(request: httpx2.Request) -> httpx2.Response:
    """What a server answers that can not stream, or a careless mock."""
    return document(whole_response() if request.url.path.endswith("/responses") else whole_chat())


# ---------------------------------------------------------------------- asking


class Server:
    """Answers in memory, by a function or by one function after another, the last for all further requests.

    Mutable: `requests`, the requests so far, their bodies read.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.requests.append(request)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)

    async def later(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return self(request)


@dataclass
class Outcome:
    """What came of a call: what it returned, read to its end, or what it raised; and what the server was sent."""

    value: Any
    error: Exception | None
    requests: list[httpx2.Request]

    def sent(self) -> list[Any]:
        """All that a server can tell apart."""
        return [(r.method, str(r.url), dict(r.headers), r.content) for r in self.requests]

    def failure(self) -> Any:
        """All that an application can tell apart."""
        error = self.error
        names = ("message", "status_code", "request_id", "code", "param", "type", "body")
        seen = {name: getattr(error, name) for name in names if hasattr(error, name)}
        request = getattr(error, "request", None)
        return type(error), str(error), seen, request and (request.method, str(request.url))


def is_async(kind: type) -> bool:
    return issubclass(kind, openai.AsyncOpenAI)


def http_client(kind: type, server: Server, **more: Any) -> Any:
    """The HTTP client that an application would give to a client of this kind."""
    if is_async(kind):
        return httpx2.AsyncClient(transport=httpx2.MockTransport(server.later), **more)
    return httpx2.Client(transport=httpx2.MockTransport(server), **more)


async def taken(result: Any) -> Any:
    """A result, awaited where it must be; a stream is read to its end."""
    value = await got(result)
    return await items(value) if isinstance(value, openai.Stream | openai.AsyncStream) else value


async def ask(kind: type, call: Callable[[Any], Any], *answers: Answer, **settings: Any) -> Outcome:
    """What comes of `call(client)`, with a client of its own."""
    server = Server(*answers or (answering,))
    made = {"base_url": BASE, "api_key": "k", "http_client": http_client(kind, server), **settings}
    async with entered(kind(**made)) as client:
        try:
            return Outcome(await taken(call(client)), None, server.requests)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            return Outcome(None, error, server.requests)


async def both(
    kinds: Any,
    call: Callable[[Any], Any],
    *answers: Answer,
    ours: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[Outcome, Outcome]:
    """What comes of the same call with the SDK's client, and with disco's, which has the settings `ours` besides."""
    plain, disco = kinds
    expected = await ask(plain, call, *answers, **settings)
    return expected, await ask(disco, call, *answers, **settings, **ours or {})


def behind(**profile: Any) -> dict[str, Any]:
    """Settings of a client whose server answers, unless it fails: a model on this machine stands behind it."""
    made = {"answer": "Here.", "decode_tps": 1e4, **profile}
    local = SimulatedEndpoint("device", SimulatedProfile(**made), place="device")
    return {
        "local": local,
        # No migration: on a busy machine the server's stream has pauses in which an answer may move.
        "preset": Preset(
            dispatch={"policy": "server_only"}, migration={"enabled": False}, playback={"pace_tps": "off"}
        ),
        "continuation": "none",  # no probe after the first answer: requests are compared
    }


def facts(value: Any) -> Any:
    """All that an application can see of the SDK's objects, the class apart: values, extra fields, what was set."""
    if isinstance(value, BaseModel):
        fields = {name: facts(getattr(value, name)) for name in type(value).model_fields}
        return {"set": sorted(value.model_fields_set), **fields, "extra": facts(value.model_extra)}
    if isinstance(value, list):
        return [facts(item) for item in value]
    return value


def text_of(chunks: Sequence[Any]) -> str:
    """The text of a streamed chat completion."""
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
