"""A server of quirks: HTTP on a loopback port, in a thread of its own, and who writes what it has rendered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from stream_server import listening

from disco.endpoints.simulation.simulated_text import tokenise

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Written:
    """A piece of the answer; the last one says why it ended."""

    text: str
    finish: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class RefusedError(RuntimeError):
    """What the engine says of a request: a status and a message."""


@dataclass
class RealModel:
    """The model of a running llama-server, by the address of its OpenAI API."""

    base_url: str

    def _url(self, path: str) -> str:
        return self.base_url.removesuffix("/v1") + path

    async def count(self, text: str) -> int:
        async with httpx2.AsyncClient(trust_env=False) as http:
            asked = {"content": text, "parse_special": True}
            return len((await http.post(self._url("/tokenize"), json=asked)).json()["tokens"])

    async def chat(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a chat, as llama-server writes them, for what a server has from its engine (calls, schemas)."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=60) as http,
            http.stream("POST", self._url("/v1/chat/completions"), json=asked) as response,
        ):
            if response.status_code != 200:
                raise RefusedError(
                    response.status_code, json.loads(await response.aread())["error"]["message"]
                )
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])

    async def write(self, prompt: str, options: Mapping[str, Any]) -> AsyncGenerator[Written, None]:
        body = {"prompt": prompt, "stream": True, "return_tokens": True, **options}
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=60) as http,
            http.stream("POST", self._url("/completion"), json=body) as response,
        ):
            if response.status_code != 200:
                raise RuntimeError("the runner has refused the prompt")
            written = 0
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line[6:])
                written += len(event["tokens"])
                if event["stop"]:
                    finish = "length" if event["stop_type"] == "limit" else "stop"
                    yield Written(event["content"], finish, event["tokens_evaluated"], written)
                elif event["content"]:
                    yield Written(event["content"])


@dataclass
class KnownText:
    """Writes `answer`, and continues any beginning of it; a count goes on, so that a probe finds out what it wants."""

    answer: str
    fail_at: int | None = None  # after so many tokens it stops with an exception
    wait_at: int | None = None  # after so many tokens it waits until this is something else

    async def count(self, text: str) -> int:
        return len(tokenise(text))

    async def write(self, prompt: str, options: Mapping[str, Any]) -> AsyncGenerator[Written, None]:
        begun = prompt.rpartition("<|im_start|>assistant\n")[2]
        known = self.answer if self.answer.startswith(begun) else f"{begun}, 12, 13, 14, 15, 16, 17, 18"
        pieces = tokenise(known[len(begun) :])
        limited = pieces[: options.get("n_predict")]
        for number, piece in enumerate(limited):
            while number == self.wait_at:  # noqa: ASYNC110 - it is another thread's
                await asyncio.sleep(0.005)
            if number == self.fail_at:
                raise RuntimeError("the runner has stopped")
            yield Written(piece)
        finish = "stop" if limited == pieces else "length"
        yield Written("", finish, await self.count(prompt), len(limited))


class QuirkServer:
    """One server; what it answers is its subclass's: a status and a document, or the bytes of an event stream.

    A fake: it is written after a server's documentation, source and users' reports, and is not that server.

    `gate`: a model that is not loaded is loaded once this is set; until then, who needs it waits without a response.
    """

    def __init__(
        self,
        writer: RealModel | KnownText,
        models: tuple[str, ...],
        *,
        loaded: bool = True,
        context_tokens: int = 2048,
        gate: threading.Event | None = None,
    ) -> None:
        self.writer, self.models = writer, models
        self.loaded, self.context_tokens = loaded, context_tokens
        self.gate = gate
        self.loads = self.dropped = 0  # loads that were begun; that ended because their client went away
        self.base_url = ""
        self.asked: list[str] = []  # the paths it was asked for, in order
        self.chats: list[dict[str, Any]] = []  # the bodies of chat requests
        self.left = 0  # answers whose client went away before they ended

    async def load(self) -> None:
        """Return once the model is loaded."""
        if self.loaded:
            return
        self.loads += 1
        try:
            while self.gate is not None and not self.gate.is_set():  # noqa: ASYNC110 - it is another thread's
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        self.loaded = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for one request."""
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = json.loads(await reader.readexactly(int(length[1]))) if length else {}
        self.asked.append(path)
        if path == "/v1/chat/completions":
            self.chats.append(body)
        # Nothing comes while an answer is written, unless the client leaves.
        answering = asyncio.create_task(self._respond(path, body, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            # A client that leaves may be seen by a write first.
            if answering.done() and not isinstance(answering.exception(), ConnectionError):
                answering.result()
            else:
                self.left += 1
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _respond(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        found = await self.answer(path, body)
        if isinstance(found, tuple):
            status, content = found
            data = json.dumps(content).encode()
            head = b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Type: application/json\r\n"
            writer.write(head % status + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
            return
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n"
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        async with contextlib.aclosing(found) as events:
            async for data in events:
                if data:
                    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                    await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def chunk(made: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """A chunk with one choice; `made` is the same in all of an answer, `more` stands beside the delta."""
    choice = {"index": 0, "delta": delta, **more, "finish_reason": finish}
    return event({**made, "object": "chat.completion.chunk", "created": 1, "choices": [choice]})


def usage(made: Mapping[str, Any], body: Mapping[str, Any], last: Written) -> bytes:
    """The chunk that says what was used, where the request wants it."""
    if not (body.get("stream_options") or {}).get("include_usage"):
        return b""
    read, wrote = last.prompt_tokens, last.completion_tokens
    counts = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
    return event({**made, "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": counts})


def shown_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages as a model with tools is shown them."""
    tools = body.get("tools") if body.get("tool_choice") != "none" else None
    return [*([{"role": "system", "content": json.dumps(tools)}] if tools else []), *body["messages"]]


def demanded_call(body: Mapping[str, Any], made: Mapping[str, Any]) -> list[bytes]:
    """The chunks of the call that a server makes its model write where one is demanded; none where none is."""
    choice = body.get("tool_choice")
    named = choice["function"]["name"] if isinstance(choice, Mapping) else None
    if not body.get("tools") or (named is None and choice != "required"):
        return []
    function = {"name": named or body["tools"][0]["function"]["name"], "arguments": '{"town": "Rome"}'}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return [chunk(made, {"role": "assistant", "tool_calls": [call]}), chunk(made, {}, "tool_calls")]


def chatml(messages: list[dict[str, Any]], *, continues: bool) -> str:
    """The prompt of `messages`; a trailing assistant message stays open where the template `continues`."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    if continues and messages and messages[-1]["role"] == "assistant":
        return text.removesuffix("<|im_end|>\n")
    return f"{text}<|im_start|>assistant\n"


def options(body: Mapping[str, Any], *taken: str, limit: str = "n_predict") -> dict[str, Any]:
    """What a server passes on of a request, under llama-server's names; `limit`: that of `max_tokens`."""
    names = {"max_tokens": limit}
    return {names.get(name, name): body[name] for name in taken if body.get(name) is not None}


@contextlib.contextmanager
def running(server: Any) -> Iterator[Any]:
    """`server`, listening on a free loopback port."""
    with listening(server.serve) as port:
        server.base_url = f"http://127.0.0.1:{port}/v1"
        yield server
