"""A server without a socket, for virtual time: no data is ever on its way while the clock looks for work.

`befallen` says what each fault of `fault` is to httpx2; `test_sockets` holds that to real connections.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import moved_clock
import openai._base_client
import pytest
from faults.proxy_server.fault import PAGE, Fault, Kind, Moment, first_part, strikes_before
from faults.proxy_server.http_parts import Event
from faults.proxy_server.origin import TEXT, answer_events, begun_by
from scripted_server import chunk, sse

SILENCE = math.inf
RESET = httpx2.ReadError("reset")
DROPPED = httpx2.RemoteProtocolError("dropped")  # closed, or not HTTP
HOLE = "black hole"  # no answer to the attempt to connect
NO_ANSWER = {
    Kind.REFUSE: [httpx2.ConnectError("refused")],
    Kind.BLACK_HOLE: [HOLE, httpx2.ConnectTimeout("no answer")],
    Kind.RESET: [RESET],
    **{kind: [DROPPED] for kind in (Kind.CLOSE, Kind.HALF_CLOSE, Kind.GARBAGE)},
}
EMPTY = b': ping\n\ndata: {"choices": []}\n\ndata: {"choices": [{"index": 0, "delta": {}}]}\n\n'
Step = bytes | float | str | Exception
HEAD_BYTES = 100.0  # of a response, about


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Virtual time, on asyncio where a test does not name its loop."""
    return moved_clock.virtual(getattr(request, "param", "asyncio"))


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK finds out in a thread on which platform it is; a clock that jumps would not wait for it."""

    def inline(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(openai._base_client, "asyncify", inline)


@dataclass
class Reply:
    """One response: pieces of its body, seconds between them, what it fails with; `before`: what precedes it."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    before: Sequence[Step] = ()


Replies = Reply | Callable[[Any], Reply]


class MemoryServer(httpx2.AsyncBaseTransport):
    """Plays the next reply for each request, the last one for all further ones. A reply may be made of the request.

    A server whose next reply is a chat completion, or made of the request, has no `/responses`.

    Mutable: `requests` (JSON bodies), `replies` that are left, by port, and how many responses are `open`.
    """

    base_url = "http://127.0.0.1:1001/v1"

    def __init__(self, *replies: Replies) -> None:
        self.requests: list[Any] = []
        self.open = 0
        self.replies: dict[int, list[Replies]] = {1001: list(replies)}

    def also(self, *replies: Replies) -> str:
        """Replies at another address, which is returned."""
        port = 1001 + len(self.replies)
        self.replies[port] = list(replies)
        return f"http://127.0.0.1:{port}/v1"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        left = self.replies[request.url.port]
        if request.url.path.endswith("/responses") and _is_chat(left[0]):
            return httpx2.Response(404, request=request)
        self.requests.append(json.loads(await request.aread()))
        reply = left.pop(0) if len(left) > 1 else left[0]
        if not isinstance(reply, Reply):
            reply = reply(self.requests[-1])
        connect_s = request.extensions.get("timeout", {}).get("connect")
        body = _Body(self, reply.steps)
        self.open += 1
        try:
            async for _ in _Body(self, [connect_s if step == HOLE else step for step in reply.before]):
                pass
        except BaseException:
            await body.aclose()
            raise
        return httpx2.Response(reply.status, headers=dict(reply.headers), stream=body, request=request)


def _is_chat(reply: Replies) -> bool:
    mark = b'"chat.completion'
    return not isinstance(reply, Reply) or any(mark in s for s in reply.steps if isinstance(s, bytes))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, server: MemoryServer, steps: Sequence[Step]) -> None:
        self.server, self.steps, self.is_open = server, steps, True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.steps:
            await anyio.lowlevel.checkpoint()
            if isinstance(step, Exception):
                raise type(step)(str(step))
            if isinstance(step, bytes):
                yield step
            else:
                await anyio.sleep(step)

    async def aclose(self) -> None:
        self.server.open -= self.is_open
        self.is_open = False


def spoken(pieces: Sequence[str], *, first_s: float = 0.0, gap_s: float = 0.0, finish: str = "stop") -> Reply:
    """What a server says, piece by piece in time."""
    steps: list[Step] = [first_s]
    for i, text in enumerate(pieces):
        steps += [gap_s] * (i > 0) + [sse(chunk(text), done=False)]
    return Reply([*steps, sse(chunk(finish=finish))])


def continuing(text: str) -> Callable[[Any], Reply]:
    """The rest of `text`, word by word, after whatever of it a request's last message quotes as the answer so far."""

    def reply(body: Any) -> Reply:
        begun = begun_by(body)
        assert text.startswith(begun)
        return spoken(re.findall(r"\s*\S+", text[len(begun) :]))

    return reply


def befallen(fault: Fault | None) -> Callable[[Any], Reply]:
    """What comes of `TEXT` where `fault` befalls the request or its response."""

    def reply(body: Any) -> Reply:
        begun = begun_by(body)
        assert TEXT.startswith(begun)
        rest = answer_events(TEXT[len(begun) :])
        if fault is None:
            return Reply([event.data for event in rest])
        if fault.moment in (Moment.CONNECT, Moment.REQUEST, Moment.HEAD):
            return _before(fault, [event.data for event in rest])
        return Reply(list(_within(fault, rest)))

    return reply


def _before(fault: Fault, answer: Sequence[bytes]) -> Reply:
    """There is no response yet."""
    document = {"content-type": "application/json", **dict(fault.headers)}
    match fault.kind:
        case Kind.STALL | Kind.DELAY:
            return Reply(answer, before=[fault.seconds])
        case Kind.THROTTLE:
            slow = [step for data in answer for step in (len(data) / fault.bytes_per_s, data)]
            return Reply(slow, before=[HEAD_BYTES / fault.bytes_per_s])
        case Kind.STATUS:
            return Reply([fault.body], fault.status, document)
        case Kind.PAGE:
            return Reply([PAGE], 200, {"content-type": "text/html"})
    return Reply(before=NO_ANSWER[fault.kind])


def _within(fault: Fault, rest: Sequence[Event]) -> Iterator[Step]:
    """The response has begun."""
    struck, tokens, passed, last, seconds_per_byte = False, 0, 0, b"", 0.0
    for event in rest:
        if not struck and strikes_before(fault, event, tokens, passed):
            struck = True
            yield first_part(event.data, fault, passed)
            match fault.kind:
                case Kind.RESET:
                    yield RESET
                case Kind.STALL | Kind.DELAY:
                    yield fault.seconds
                case Kind.THROTTLE:
                    seconds_per_byte = 1.0 / fault.bytes_per_s
                case Kind.GARBAGE if fault.framed:
                    yield fault.body
                case Kind.CLOSE | Kind.HALF_CLOSE | Kind.GARBAGE:
                    yield DROPPED
                case Kind.ERROR:
                    yield b"data: " + fault.body + b"\n\n"
                case Kind.REPEAT:
                    yield last
                case Kind.EMPTY:
                    yield EMPTY
            if fault.kind in (Kind.GARBAGE, Kind.ERROR, Kind.END):
                return
        yield len(event.data) * seconds_per_byte
        yield event.data
        tokens += bool(event.content)
        passed += len(event.data)
        last = event.data
