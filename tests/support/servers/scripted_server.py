"""A server on a loopback socket that sends exactly the bytes a test gives it.

A script is a sequence of steps: bytes to send, seconds to wait (on the running clock), `WAIT_FOR_CLOSE` or `RESET`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

WAIT_FOR_CLOSE = "wait for close"
RESET = "reset"

Step = bytes | float | str


@dataclass
class ScriptedServer:
    """Where it listens, and what it has seen.

    Attributes:
        base_url: for `openai.AsyncOpenAI`.
        requests: the requests so far: (request line, headers, JSON body).
        asked: set when a whole request has been read.
        closed: set when the client has closed the connection of a `WAIT_FOR_CLOSE` step.
        connections, open: so far; that are open.
        bytes_in, bytes_out: received and sent so far.
    """

    base_url: str
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    closed: anyio.Event = field(default_factory=anyio.Event)
    asked: anyio.Event = field(default_factory=anyio.Event)
    connections: int = 0
    open: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


def sse(*bodies: Any, done: bool = True) -> bytes:
    """Events with JSON data, as servers write them."""
    events = [b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies]
    return b"".join(events) + (b"data: [DONE]\n\n" if done else b"")


def chunk(content: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A `chat.completion.chunk` with one choice."""
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**made, "choices": [choice]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """The final usage chunk, which has no choices."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**chunk(), "choices": [], "usage": counts}


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """One piece of a chunked body; the client's transport hands over each piece as one read."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(*pieces: bytes) -> list[Step]:
    """A whole event stream, one piece of the body for each argument."""
    return [STREAM_HEAD, *(piece(data) for data in pieces), STREAM_END]


def answer(
    body: bytes, *, status: str = "200 OK", content_type: str = "application/json", headers: str = ""
) -> list[Step]:
    """A plain response."""
    fields = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return [f"HTTP/1.1 {status}\r\n{fields}".encode() + body]


def as_document(script: Sequence[Step]) -> list[Step]:
    """The same answer to a request without `stream`: one JSON document, cut off where the stream would be."""
    if not script or script[0] != STREAM_HEAD:
        return list(script)
    body = b"".join(part for step in script[1:] if isinstance(step, bytes) for part in _of_piece(step))
    whole: dict[str, Any] = {}
    for event in body.partition(b"data: [DONE]")[0].split(b"\n\n"):
        with contextlib.suppress(ValueError):
            _merge(whole, json.loads(event.removeprefix(b"data: ")))
    document = json.dumps(whole).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(document)
    if script[-1] == STREAM_END:
        return [*(step for step in script[1:] if isinstance(step, float)), head + document]
    head = head.replace(b"Content-Length", b"content-length")  # so that the connection is closed
    return [
        head + document[: len(document) // 2],
        *(step for step in script[1:] if not isinstance(step, bytes)),
    ]


def _of_piece(step: bytes) -> list[bytes]:
    """The data of a step that is one piece of a chunked body; nothing for any other step."""
    size, _, rest = step.partition(b"\r\n")
    try:
        return [rest[: int(size, 16)]]
    except ValueError:
        return []


def _merge(whole: dict[str, Any], event: Any) -> None:
    """Add a chunk to a `chat.completion`."""
    if not isinstance(event, dict):
        return
    choices = event.get("choices") or []
    whole.update(
        {name: value for name, value in event.items() if name != "choices"}, object="chat.completion"
    )
    made = whole.setdefault("choices", [])
    for choice in choices:
        if not made:
            made.append(
                {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}
            )
        message = made[0]["message"]
        for name, value in (choice.get("delta") or {}).items():
            old = message.get(name)
            both_texts = isinstance(old, str) and isinstance(value, str) and name != "role"
            message[name] = old + value if both_texts else value
        rest = {name: value for name, value in choice.items() if name != "delta" and value is not None}
        made[0].update(rest)


def _streams(request: tuple[str, dict[str, str], Any]) -> bool:
    """Whether a request asks for a stream, or is none for a chat completion."""
    line, _, body = request
    return "/chat/completions" not in line or not isinstance(body, dict) or bool(body.get("stream"))


@contextlib.asynccontextmanager
async def scripted_server(
    *scripts: Sequence[Step], has_responses: bool = True
) -> AsyncIterator[ScriptedServer]:
    """Serve `scripts`, one for each request, the last for all further ones.

    Without `/responses`, a request for it takes no script and is not noted.
    """
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    server = ScriptedServer(f"http://127.0.0.1:{port}/v1")
    left = list(scripts)

    async def serve(connection: anyio.abc.SocketStream) -> None:
        buffer, stays = b"", True
        while stays:
            request, buffer = await _read_request(connection, buffer, server)
            if "/responses" in request[0] and not has_responses:
                stays = await _play(connection, answer(b"{}", status="404 Not Found"), server)
                continue
            server.requests.append(request)
            server.asked.set()
            script = left.pop(0) if len(left) > 1 else left[0]
            stays = await _play(connection, script if _streams(request) else as_document(script), server)

    async def handle(connection: anyio.abc.SocketStream) -> None:
        server.connections += 1
        server.open += 1
        try:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                async with connection:
                    await serve(connection)
        finally:
            server.open -= 1

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        try:
            yield server
        finally:
            # What was accepted comes to its handler, which closes it; cancelled on its way, it would be left open.
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()


async def _read_request(
    connection: anyio.abc.SocketStream, buffer: bytes, server: ScriptedServer
) -> tuple[tuple[str, dict[str, str], Any], bytes]:
    async def more() -> bytes:
        data = await connection.receive()
        server.bytes_in += len(data)
        return data

    while b"\r\n\r\n" not in buffer:
        buffer += await more()
    head, _, rest = buffer.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    length = int(headers.get("content-length", 0))
    while len(rest) < length:
        rest += await more()
    body = json.loads(rest[:length]) if length else None
    return (line, headers, body), rest[length:]


async def _play(connection: anyio.abc.SocketStream, script: Sequence[Step], server: ScriptedServer) -> bool:
    """Returns whether the connection stays open; a script without an HTTP end closes it."""
    sent = b""
    for step in script:
        if isinstance(step, bytes):
            sent += step
            server.bytes_out += len(step)
            await connection.send(step)
        elif step == WAIT_FOR_CLOSE:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await connection.receive()
            server.closed.set()
            return False
        elif step == RESET:
            # SO_LINGER with no time to linger makes close() send RST instead of FIN.
            sock = connection.extra(anyio.abc.SocketAttribute.raw_socket)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await connection.aclose()
            return False
        else:
            await anyio.sleep(float(step))
    return sent.endswith(STREAM_END) or b"Content-Length" in sent
