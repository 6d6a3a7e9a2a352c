"""Every way in: who is asked (set-ups), how (shapes), and what is seen of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import openai
from wall.network import CLOCK, NETWORK, Hangs, Request
from wall.script import TEXT, Reply, Row, rows_of
from wall.seen import Seen, add_chunk, add_response, add_whole

from disco import AsyncDisco, Backup, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import make_app

__all__ = ["REFERENCE", "SETUPS", "SHAPES", "SYNC", "Way", "client_of", "look", "ways"]

FIRST, SECOND, SERVE = 1001, 1002, 1003
PATIENCE_S = 4000.0  # no cell may take longer; the SDK's own patience is three times 600 s
PRICE = (1.0, 2.0)
# The model on the device has the same text, and answers where the server does not.
_SERVER_FIRST = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
QUESTION = "Which rivers flow into the North Sea?"
SHAPES = ("stream", "whole", "helper", "parse", "responses", "responses stream")
# In which set-ups somebody else is there who would answer.
SETUPS = {
    "one server": False,
    "budget": False,
    "two alike": False,
    "backup": True,
    "device": True,
    "serve": False,
    "serve+backup": True,
}
SYNC = ("one server", "budget", "backup")
REFERENCE = "the SDK"


@dataclass(frozen=True)
class Way:
    """A way in."""

    setup: str
    shape: str
    is_async: bool = True

    def helped(self, row: Row) -> bool:
        """Whether somebody else may answer this request: the device's model knows neither tools nor scores."""
        beyond = {"tools", "logprobs", "n"} & row.ask.keys()
        return SETUPS.get(self.setup, False) and not (beyond and self.setup == "device")

    @property
    def reference(self) -> Way:
        """The SDK's way of asking the same. A server without Responses: what its chat completions give."""
        return Way(REFERENCE, self.shape, self.is_async)

    def is_named(self, names: Sequence[str]) -> bool:
        """Whether one of the names is this way's: a set-up, a shape, both, or `sync`."""
        own = {self.setup, self.shape, f"{self.setup}/{self.shape}", "async" if self.is_async else "sync"}
        return not names or not own.isdisjoint(name.replace("_", " ") for name in names)

    def __str__(self) -> str:
        return f"{self.setup}/{self.shape}" + ("" if self.is_async else "/sync")


def ways() -> list[Way]:
    """All of them, in the order of the table."""
    both = [Way(setup, shape) for setup in SETUPS for shape in SHAPES]
    return both + [Way(setup, shape, is_async=False) for setup in SYNC for shape in SHAPES]


# ---------------------------------------------------------------------- who is asked


def _good(row: Row) -> Callable[[Request], Reply]:
    """A server that is in order. It goes on with an answer that a request quotes."""

    def reply(request: Request) -> Reply:
        means = row.good
        text = means.get("text")
        if isinstance(text, str) and isinstance(request.body, dict):
            last = (request.body.get("messages") or [{}])[-1]
            begun = last.get("content") if last.get("role") == "assistant" else ""
            if isinstance(begun, str) and text.startswith(begun):
                text = text[len(begun) :]
        lines = []
        if isinstance(text, str):
            lines.append(f"say {json.dumps(text)}")
        calls = [
            {"index": i, "id": c[0], "type": "function", "function": {"name": c[1], "arguments": c[2]}}
            for i, c in enumerate(means.get("calls") or ())
        ]
        lines += [f"delta {json.dumps({'tool_calls': calls})}"] if calls else []
        lines += [f"finish {means['finish']}", "usage 9 3", "done"]
        (made,) = rows_of("\n".join(["[good]", *lines]))
        return made.reply(request.path, request.body, 1)

    return reply


def _of_row(row: Row) -> Callable[[Request], Reply]:
    asked = 0

    def reply(request: Request) -> Reply:
        nonlocal asked
        if "responses" in request.path and not row.has_responses:
            return _NO_PATH
        asked += 1
        return row.reply(request.path, request.body, asked)

    return reply


_NO_PATH = Reply(
    status=404,
    headers={"content-type": "application/json"},
    steps=[b'{"error": {"message": "Unknown request URL", "code": "unknown_url"}}'],
    is_document=True,
)


def _client(way: Way, row: Row) -> Any:
    """A client as an application makes it."""
    settings: dict[str, Any] = {"base_url": f"http://127.0.0.1:{FIRST}/v1", "api_key": "secret-key-1234"}
    setup = way.setup.removeprefix("serve+").removeprefix("serve") or "one server"
    if setup == REFERENCE:
        return (openai.AsyncOpenAI if way.is_async else openai.OpenAI)(**settings)
    settings["price"] = PRICE
    if setup == "budget":
        settings |= {"budget": {"usd": 100.0, "per": "day"}}
    elif setup in ("backup", "two alike"):
        backup = Backup(
            base_url=f"http://127.0.0.1:{SECOND}/v1", api_key="other-key-5678", model="m-2", price=PRICE
        )
        settings |= {"backups": [backup]}
    elif setup == "device":
        text = row.good.get("text") or TEXT
        profile = SimulatedProfile(answer=text, prefill_tps=10_000.0, decode_tps=100.0)
        settings |= {"local": SimulatedEndpoint("device", profile, place="device"), "preset": _SERVER_FIRST}
    return (AsyncDisco if way.is_async else Disco)(**settings)


def _served(way: Way, row: Row) -> None:
    """The network of a cell."""
    NETWORK.clear()
    NETWORK.servers[FIRST] = _of_row(row)
    NETWORK.servers[SECOND] = _of_row(row) if way.setup == "two alike" else _good(row)


# ---------------------------------------------------------------------- how


class _Format(openai.BaseModel):
    rivers: list[str]


def _prompt(row: Row) -> str:
    return " ".join([QUESTION, *(f"word{i}" for i in range(row.words))])


def _asked(row: Row, way: Way) -> dict[str, Any]:
    """The parameters of a request."""
    if way.shape.startswith("responses"):
        ask = {k: v for k, v in row.ask.items() if k in ("temperature", "top_p", "max_tokens")}
        if "max_tokens" in ask:
            ask["max_output_tokens"] = ask.pop("max_tokens")
        if "tools" in row.ask:
            ask["tools"] = [{"type": "function", **tool["function"]} for tool in row.ask["tools"]]
        return {"model": "m", "input": _prompt(row), **ask}
    messages = [{"role": "user", "content": _prompt(row)}]
    asked = {"model": "m", "messages": messages, **row.ask}
    said = [str(part) for reply in row.replies for part in (*reply.chunks, *reply.steps)]
    has_usage = any("'usage': {" in part or '"usage": {' in part for part in said)
    if way.shape in ("stream", "helper") and has_usage:
        asked.setdefault("stream_options", {"include_usage": True})
    return asked


def client_of(row: Row, way: Way) -> Any:
    """A client as an application makes it, with the row's server in its network."""
    _served(way, row)
    return _client(way, row)


def look(row: Row, way: Way) -> Any:
    """One cell: what is seen this way. A coroutine for an asynchronous way."""
    return _look_async(row, way) if way.is_async else _look_sync(row, way)


def _look_sync(row: Row, way: Way) -> Seen:
    seen, began = Seen(), CLOCK.now
    client = client_of(row, way)
    try:
        steps = _steps(client, row, way, seen)
        got = None
        with contextlib.suppress(StopIteration):
            while True:
                got = steps.send(got)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is seen
        seen.failed(error)
    _count(seen, began)
    if seen.opened is not None:
        seen.opened.close()
        seen.opened = None
    client.close()
    return seen


async def _look_async(row: Row, way: Way) -> Seen:
    seen = Seen()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(row, way))
        if way.setup.startswith("serve"):
            NETWORK.apps[SERVE] = make_app(client)
            asker = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{SERVE}/v1", api_key="k")
            client = await stack.enter_async_context(asker)
        began = CLOCK.now
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _drive(_steps(client, row, way, seen))
        except TimeoutError:
            seen.failed(Hangs())
        except Exception as error:  # noqa: BLE001 - as above
            seen.failed(error)
        _count(seen, began)
        if seen.opened is not None:
            await seen.opened.close()
            seen.opened = None
    return seen


def _count(seen: Seen, began: float) -> None:
    seen.complaints = NETWORK.complaints
    seen.wait_s = round(CLOCK.now - began, 3)
    own = [r for port, r in NETWORK.requests if port == FIRST and QUESTION in r.says]
    seen.requests = len([r for r in own if "responses" not in r.path]) or len(own)


async def _drive(steps: Iterator[Any]) -> None:
    """Steps with what they ask for awaited."""
    got: Any = None
    while True:
        try:
            wanted = steps.send(got)  # type: ignore[attr-defined]
        except StopIteration:
            return
        got = wanted
        if inspect.isawaitable(wanted):
            try:
                got = await wanted
            except StopAsyncIteration:
                got = _END
            except Exception as error:  # noqa: BLE001 - of the request
                steps.throw(error)  # type: ignore[attr-defined]
                return


_END = object()


def _next(items: Any) -> Any:
    """The next item of a stream, or the end."""
    if hasattr(items, "__anext__"):
        return items.__anext__()
    return next(items, _END)


def _steps(client: Any, row: Row, way: Way, seen: Seen) -> Iterator[Any]:
    """The calls of an application, sync or async: what is yielded comes back awaited."""
    asked = _asked(row, way)
    match way.shape:
        case "stream":
            stream = seen.opened = yield client.chat.completions.create(**asked, stream=True)
            items = stream.__aiter__() if way.is_async else iter(stream)
            while (piece := (yield _next(items))) is not _END:
                add_chunk(seen, piece)
        case "whole":
            add_whole(seen, (yield client.chat.completions.create(**asked)))
        case "parse":
            add_whole(seen, (yield client.chat.completions.parse(**asked)))
        case "helper":
            manager = client.chat.completions.stream(**asked)
            stream = seen.opened = yield manager.__aenter__() if way.is_async else manager.__enter__()
            items = stream.__aiter__() if way.is_async else iter(stream)
            partly = Seen()
            while (event := (yield _next(items))) is not _END:
                if event.type == "chunk":
                    add_chunk(partly, event.chunk)
                    vars(seen).update(partly.answer())
            final = yield stream.get_final_completion()
            vars(seen).update(Seen().answer())
            add_whole(seen, final)
        case "responses":
            add_response(seen, (yield client.responses.create(**asked)))
        case "responses stream":
            stream = seen.opened = yield client.responses.create(**asked, stream=True)
            items = stream.__aiter__() if way.is_async else iter(stream)
            while (event := (yield _next(items))) is not _END:
                if event.type == "response.output_text.delta":
                    seen.text += event.delta
                elif event.type in ("response.completed", "response.incomplete"):
                    text = seen.text
                    vars(seen).update(Seen().answer())
                    add_response(seen, event.response)
                    if text and seen.text != text:
                        seen.more["text of the events"] = text
                elif event.type in ("response.failed", "error"):
                    raise openai.APIError(str(getattr(event, "message", "failed")), None, body=None)  # type: ignore[arg-type]
