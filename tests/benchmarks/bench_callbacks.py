"""The longest time that one callback holds the event loop, whatever a server sends: CPU of the loop's thread, ms.

In memory and in virtual time (`tests/wall/network.py`), in pieces as large as one read of a socket. Each way is asked
in turn with the plain SDK, so the machine is the same; the least of the rounds, because other programs add to the rest.
The wall's rows are all asked, and the longest is named. What the SDK itself holds the loop for is no fault of disco's:
a cell is marked where it is over the bound and over the SDK's.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import helpers.tests_path  # noqa: F401

os.environ.update(DISCO_STATE="off", DISCO_POWER="off", DISCO_ATTACH="off")

import openai
from helpers.measuring import Columns, options
from scripted_server import chunk, sse
from wall.network import NETWORK, Request, entered, quiet, run
from wall.script import Reply, read_rows

from disco import AsyncDisco
from disco.server import make_app

BOUND_MS = 20.0
READ = 65_536  # bytes that httpcore asks a socket for at once
FIRST, SERVE = 1001, 1003
WAYS = ("the SDK", "one server", "budget", "serve")
EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@contextmanager
def watched() -> Iterator[list[float]]:
    """The longest callback so far, ms, as the only item of a list."""
    longest = [0.0]
    plain = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> Any:
        began = time.thread_time()
        try:
            return plain(handle)
        finally:
            longest[0] = max(longest[0], (time.thread_time() - began) * 1e3)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield longest
    finally:
        asyncio.events.Handle._run = plain  # type: ignore[method-assign]


def reads(data: bytes) -> list[bytes]:
    return [data[i : i + READ] for i in range(0, len(data), READ)]


def zipped(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(data) + packer.flush()


def events(*bodies: Any) -> Reply:
    return Reply(headers=EVENTS, steps=reads(sse(*bodies, chunk(finish="stop"))))


def compressed(data: bytes, **more: Any) -> Reply:
    return Reply(headers={**EVENTS, "content-encoding": "gzip"}, steps=reads(zipped(data)), **more)


def refusal(text: str) -> Reply:
    body = json.dumps({"error": {"message": text, "type": "server_error"}}).encode()
    return Reply(status=400, headers=JSON, steps=reads(body), is_document=True)


def inputs() -> dict[str, tuple[Reply, dict[str, Any]]]:
    """What a server sends, and what is asked besides."""
    rng = random.Random(1)
    prompt = "".join(rng.choice("abcdefghij klmnop") for _ in range(2 * 2**20))
    long = {"messages": [{"role": "user", "content": prompt}]}
    words = [chunk(f"word{i} ") for i in range(10_000)]
    document = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "x" * 2**20}, "finish_reason": "stop"}
        ],
    }
    stopped = sse(chunk("x", finish="stop"))
    arguments = [chunk(tool_calls=[{"index": 0, "function": {"arguments": "1, "}}]) for _ in range(10_000)]
    begun = chunk(
        tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]
    )
    return {
        "10,000 events": (events(*words), {}),
        "10,000 events in one read, compressed": (
            compressed(sse(*words, done=False) + sse(chunk(finish="stop"))),
            {},
        ),
        "one event of 4 MB": (events(chunk("x" * 2**22)), {}),
        "1 MB of comments": (Reply(headers=EVENTS, steps=reads(b": ping\n\n" * 2**17 + stopped)), {}),
        "1 MB of line ends": (Reply(headers=EVENTS, steps=reads(b"\n" * 2**20 + stopped)), {}),
        "a line of 4 MB without an end": (Reply(headers=EVENTS, steps=reads(b"data: " + b"x" * 2**22)), {}),
        "4 KB of gzip: 4 MiB of line ends": (compressed(b"\n" * (4 * 2**20)), {}),
        "4 KB of gzip: 4 MiB of one event": (compressed(b"data: " + b"x" * (4 * 2**20)), {}),
        "4 KB of gzip: a refusal of 4 MiB": (compressed(b" " * (4 * 2**20), status=500), {}),
        "one byte a read": (
            Reply(headers=EVENTS, steps=[bytes([b]) for b in sse(*words[:50]) + stopped]),
            {},
        ),
        "a call in 10,000 pieces": (events(begun, *arguments), {}),
        "a document of 1 MB": (
            Reply(headers=JSON, steps=reads(json.dumps(document).encode()), is_document=True),
            {},
        ),
        "a prompt of 2 MB": (events(chunk("x")), long),
        "a prompt of 2 MB, refused in 64 KB": (
            refusal("".join(rng.choice("0123456789") for _ in range(2**16))),
            long,
        ),
        "a prompt of 2 MB, refused in its own words": (refusal(prompt[1000 : 1000 + 2**16]), long),
    }


async def _asked(
    way: str, server: Callable[[Request], Reply], more: dict[str, Any], longest: list[float]
) -> float:
    """The longest callback while one answer is read, ms; what comes before and after is not counted."""
    NETWORK.clear()
    NETWORK.servers[FIRST] = server
    settings: dict[str, Any] = {"base_url": f"http://127.0.0.1:{FIRST}/v1", "api_key": "secret-key-1234"}
    settings["max_retries"] = 0
    async with AsyncExitStack() as stack:
        if way == "the SDK":
            client = await stack.enter_async_context(openai.AsyncOpenAI(**settings))
        else:
            budget = {"budget": {"usd": 1e9, "per": "day"}} if way == "budget" else {}
            own = {**settings, "price": (1.0, 2.0), "continuation": "none", **budget}
            client = await stack.enter_async_context(AsyncDisco(**own))
        if way == "serve":
            NETWORK.apps[SERVE] = make_app(client)
            settings["base_url"] = f"http://127.0.0.1:{SERVE}/v1"
            client = await stack.enter_async_context(openai.AsyncOpenAI(**settings))
        longest[0] = 0.0
        await asyncio.sleep(0)  # the client was made in another callback
        longest[0] = 0.0
        asked = {"model": "m", "messages": [{"role": "user", "content": "Rivers?"}], **more}
        try:
            stream = await client.chat.completions.create(**asked, stream=True)
            async for _ in stream:
                await asyncio.sleep(0)  # as a reader who writes each piece somewhere
        except Exception:  # noqa: BLE001 - most of these are meant to fail
            pass
        await asyncio.sleep(0)  # the end of the callback that is running
        return longest[0]


def measured(
    server: Callable[[], Callable[[Request], Reply]], more: dict[str, Any], rounds: int
) -> dict[str, float]:
    """The longest callback by way, ms: the least of the rounds."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with watched() as longest:
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(run(_asked, way, server(), more, longest))
    return {way: min(each) for way, each in found.items()}


def shown(table: Columns, name: str, found: dict[str, float]) -> bool:
    """Print a line; return whether no way is over the bound and over the SDK's own."""
    slow = [way for way in WAYS[1:] if found[way] > BOUND_MS]
    late = [way for way in slow if found[way] > 1.25 * found["the SDK"]]
    verdict = f"over: {', '.join(late)}" if late else "as the SDK" if slow else "met"
    table.row(name, *(found[way] for way in WAYS), f"  {verdict}")
    return not late


def rows_of_the_wall(rounds: int) -> dict[str, tuple[str, dict[str, float]]]:
    """By way: the row with the longest callback, and its figures."""
    most: dict[str, tuple[str, dict[str, float]]] = {}
    for row in read_rows():
        if row.words or row.has_responses:
            continue

        def server(row: Any = row) -> Callable[[Request], Reply]:
            count = iter(range(1, 100))
            return lambda request: row.reply(request.path, request.body, next(count))

        found = measured(server, {}, rounds)
        for way in WAYS:
            if way not in most or found[way] > most[way][1][way]:
                most[way] = row.name, found
    return most


def main() -> None:
    given = options(__doc__, rounds=3)
    is_met = True
    with entered(), quiet():
        measured(lambda: lambda request: events(chunk("x")), {}, 1)  # what is imported at the first answer
        table = Columns(" <46 | " + " | ".join(f"{way} >12.1f" for way in WAYS) + " |   bound <32")
        for name, (reply, more) in inputs().items():
            is_met &= shown(
                table, name, measured(lambda reply=reply: lambda request: reply, more, given.rounds)
            )
        print("\nThe wall's rows: the longest by way")
        for way, (name, found) in rows_of_the_wall(given.rounds).items():
            is_met &= shown(table, f"{way}: {name}"[:45], found)
    print(f"\nAt most {BOUND_MS:g} ms, or the SDK's own: {'met' if is_met else 'missed'}")


if __name__ == "__main__":
    main()
