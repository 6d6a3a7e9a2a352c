"""Streams of the wall's rows, mutated: bytes, fields, order, cuts, silences. The same seed makes the same stream.

Each is given to the plain SDK and to disco, in virtual time. A `Finding` is what must not be: no end, an exception that
is no `OpenAIError` (where a server alone is asked, the SDK's own class is allowed: the bytes go the SDK's way), text
that the SDK's reader got and disco's did not, or an application of `disco serve` that fails itself.

    python tests/wall/fuzz.py 2000          # so many from seed 0, and what was found
    python tests/wall/fuzz.py 1 --seed 77   # one of them
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import json
import logging
import os
import random
import sys
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root / part) for part in ("", "support", "support/servers")]
    os.environ.update(DISCO_STATE="off", DISCO_POWER="off", DISCO_ATTACH="off")

import openai
from wall.network import CLOCK, NETWORK, Request, entered, run
from wall.script import CUT, RESET, Reply, Step, assembled, read_rows

from disco import AsyncDisco, Backup
from disco.server import make_app

__all__ = ["Finding", "fuzzed", "mutated"]

FIRST, SECOND, SERVE = 1001, 1002, 1003
MOST_S = 4000.0  # three times the SDK's patience, and what is tried again
MESSAGES = [{"role": "user", "content": "Which rivers flow into the North Sea?"}]
WAYS = ("one server", "one server", "routed", "routed", "routed whole", "whole", "responses", "two", "serve")
_WORDS = (
    *(b"\n\n", b"\n", b"\r\n", b"data: ", b"data:", b"data: [DONE]\n\n", b": ping\n\n", b"event: error\n", b"id: 1\n"),
    *(b"null", b"{}", b"[]", b'""', b"0", b"-1", b"1e999", b"NaN", b"true", b"\xff", b"\xef\xbb\xbf", b"\x00", b"\\u"),
    *(b'"error":{"message":"x"},', b'"finish_reason":"stop"', b'"content":', b'"tool_calls":[{}]', b"\\ud83d", b"}"),
)
_VALUES = (
    *(None, 0, -1, 1.5, 10**30, True, False, "", "x", "stop", "length", [], {}, [None], {"message": "x"}, "\ud83d"),
    *([{"type": "text", "text": "x"}], {"code": 429, "message": "slow"}, [[]], [{"index": 0}], "null"),
)
_NAMES = (
    *("error", "choices", "delta", "content", "finish_reason", "usage", "index", "id", "tool_calls", "function"),
    *("arguments", "logprobs", "refusal", "role", "message", "reasoning_content", "object", "created", "model"),
)


class Finding(NamedTuple):
    """What must not be, and the seed that shows it."""

    seed: int
    way: str
    what: str


# ---------------------------------------------------------------------- what is sent


@cache
def _corpus() -> list[Reply]:
    replies = [reply for row in read_rows() for reply in row.replies]
    return [r for r in replies if sum(len(s) for s in r.steps if isinstance(s, bytes)) < 4000]


@cache
def _documents() -> list[Any]:
    return [assembled(reply.chunks) for reply in _corpus() if reply.chunks]


def mutated(seed: int) -> tuple[Reply, str]:
    """A reply, and the way in which it is asked for."""
    rng = random.Random(seed)  # noqa: S311
    way = WAYS[seed % len(WAYS)]
    if way == "whole":
        document = json.loads(json.dumps(rng.choice(_documents())))
        for _ in range(rng.randint(0, 3)):
            _change_value(rng, document)
        steps: list[Step] = [json.dumps(document).encode()]
        reply = Reply(headers={"content-type": "application/json"}, is_document=True)
    else:
        reply = rng.choice(_corpus())
        steps = list(reply.steps)
        if rng.random() < 0.2:
            steps += rng.choice(_corpus()).steps
    for _ in range(rng.randint(1, 3)):
        rng.choice(_MUTATIONS)(rng, steps)
    headers = {k: v for k, v in reply.headers.items() if k != "location"}
    status = rng.choice([200] * 30 + [reply.status, 400, 429, 500, 204, 304])
    return Reply(status=status, headers=headers, steps=steps, is_document=reply.is_document), way


def _change_value(rng: random.Random, body: Any) -> None:
    """Change one value, name or place in a JSON value."""
    inner = [body]
    at = body
    while isinstance(at, dict | list) and at:
        at = rng.choice(list(at.values()) if isinstance(at, dict) else at)
        if isinstance(at, dict | list):
            inner.append(at)
    where = rng.choice(inner)
    value = copy.deepcopy(rng.choice([*_VALUES, *where[:1]] if isinstance(where, list) else _VALUES))
    if isinstance(where, list):
        if where and rng.random() < 0.5:
            where[rng.randrange(len(where))] = value
        else:
            where.append(value)
    elif isinstance(where, dict):
        if where and rng.random() < 0.3:
            del where[rng.choice(list(where))]
        else:
            where[rng.choice([*where, *_NAMES])] = value


def _place(rng: random.Random, steps: Sequence[Step]) -> int | None:
    places = [i for i, step in enumerate(steps) if isinstance(step, bytes) and step]
    return rng.choice(places) if places else None


def _of_bytes(change: Callable[[random.Random, bytes], bytes]) -> Callable[[random.Random, list[Step]], None]:
    def apply(rng: random.Random, steps: list[Step]) -> None:
        at = _place(rng, steps)
        if at is not None:
            steps[at] = change(rng, steps[at])  # type: ignore[arg-type]

    return apply


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _remove(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 20) :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_WORDS) + data[at:]


def _double(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data + data[at:]


def _change_field(rng: random.Random, data: bytes) -> bytes:
    if not data.startswith(b"data: {"):
        return _insert(rng, data)
    try:
        body = json.loads(data[6:])
    except ValueError:
        return data
    _change_value(rng, body)
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _exchange(rng: random.Random, steps: list[Step]) -> None:
    if len(steps) > 1:
        a, b = rng.randrange(len(steps)), rng.randrange(len(steps))
        steps[a], steps[b] = steps[b], steps[a]


def _again(rng: random.Random, steps: list[Step]) -> None:
    if steps:
        steps.insert(rng.randrange(len(steps)), rng.choice(steps))


def _leave_out(rng: random.Random, steps: list[Step]) -> None:
    if steps:
        del steps[rng.randrange(len(steps))]


def _cut(rng: random.Random, steps: list[Step]) -> None:
    del steps[rng.randrange(len(steps) + 1) :]
    steps += [[], [CUT], [RESET], [700.0]][rng.randrange(4)]


def _pause(rng: random.Random, steps: list[Step]) -> None:
    steps.insert(rng.randrange(len(steps) + 1), rng.choice([0.5, 1.1, 4.0, 16.0, 40.0, 700.0]))


def _split(rng: random.Random, steps: list[Step]) -> None:
    at = _place(rng, steps)
    if at is not None:
        data = steps[at]
        assert isinstance(data, bytes)
        size = rng.choice([1, 2, 3, 7, 50])
        steps[at : at + 1] = [data[i : i + size] for i in range(0, len(data), size)]


_MUTATIONS = (
    *(_of_bytes(change) for change in (_flip, _remove, _insert, _double, _change_field, _change_field)),
    *(_exchange, _again, _leave_out, _cut, _pause, _split),
)


# ---------------------------------------------------------------------- who reads it


@dataclass
class Read:
    """What a reader got."""

    text: str = ""
    error: BaseException | None = None


async def _read(ask: Callable[[], Any], *, stream: bool, responses: bool = False) -> Read:
    got = Read()
    try:
        async with asyncio.timeout(MOST_S):
            if not stream:
                await ask()
                return got
            events = await ask()
            try:
                async for event in events:
                    if responses:
                        got.text += event.delta if event.type == "response.output_text.delta" else ""
                    else:
                        got.text += _text(event)
            finally:
                await events.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        got.error = error
    return got


def _text(chunk: Any) -> str:
    """The text of a chunk's first choice, where a server's JSON has one."""
    choices = getattr(chunk, "choices", None)
    first = choices[0] if isinstance(choices, list) and choices else None
    if getattr(first, "index", 0) not in (0, None):
        return ""
    content = getattr(getattr(first, "delta", None), "content", None)
    return content if isinstance(content, str) else ""


class _Readers:
    """Clients that live through all streams, so that growth is seen."""

    async def opened(self, stack: AsyncExitStack) -> _Readers:
        server = {"base_url": f"http://127.0.0.1:{FIRST}/v1", "api_key": "secret-key-1234", "max_retries": 0}
        own = {**server, "price": (1.0, 2.0), "continuation": "none"}
        backup = Backup(
            base_url=f"http://127.0.0.1:{SECOND}/v1",
            api_key="k",
            model="m-2",
            price=(1.0, 2.0),
            continuation="none",
        )
        enter = stack.enter_async_context
        self.sdk = await enter(openai.AsyncOpenAI(**server))
        self.one = await enter(AsyncDisco(**own))
        self.routed = await enter(AsyncDisco(**own, budget={"usd": 1e9, "per": "day"}))
        self.two = await enter(AsyncDisco(**own, backups=[backup]))
        NETWORK.apps[SERVE] = _Watched(make_app(self.two))
        served = {**server, "base_url": f"http://127.0.0.1:{SERVE}/v1"}
        self.served = await enter(openai.AsyncOpenAI(**served))
        return self

    async def read(self, way: str) -> tuple[Read, Read | None]:
        """What disco's reader gets, and the SDK's where they can be compared."""
        asked = {"model": "m", "messages": MESSAGES}
        client = {"routed": self.routed, "two": self.two, "serve": self.served}.get(way, self.one)

        def chat(of: Any, **more: Any) -> Callable[[], Any]:
            return lambda: of.chat.completions.create(**asked, **more)

        match way:
            case "whole" | "routed whole":
                of = self.one if way == "whole" else self.routed
                plain = await _read(chat(self.sdk), stream=False) if way == "whole" else None
                return await _read(chat(of), stream=False), plain
            case "responses":
                ask = self.routed.responses.create
                return await _read(
                    lambda: ask(model="m", input="Rivers?", stream=True), stream=True, responses=True
                ), None
            case "two" | "serve":
                return await _read(chat(client, stream=True), stream=True), None
        plain = await _read(chat(self.sdk, stream=True), stream=True)
        return await _read(chat(client, stream=True), stream=True), plain


class _Watched:
    """An application, and what it fails with. Mutable: `failed`."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.failed: list[BaseException] = []

    async def __call__(self, *given: Any) -> None:
        try:
            await self.app(*given)
        except Exception as error:
            self.failed.append(error)
            raise


def _judged(way: str, seen: Read, plain: Read | None) -> str | None:
    """What must not be; None: all is well."""
    error = seen.error
    if isinstance(error, TimeoutError):
        return "no end"
    if error is not None and not isinstance(error, openai.OpenAIError) and way != "serve":
        as_the_sdk = plain is not None and type(plain.error) is type(error) and way in ("one server", "whole")
        if not as_the_sdk:
            return f"raises {type(error).__name__}"
    if plain is None:
        return None
    # Half a surrogate pair is no text; disco waits for the other half.
    mine, theirs = (text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in (seen.text, plain.text))
    theirs = theirs.rstrip("\ufffd")
    if not mine.startswith(theirs) and not _is_mended(mine, theirs):
        return f"{'loses' if theirs.startswith(mine) else 'changes'} text"
    return None


def _is_mended(mine: str, theirs: str) -> bool:
    return mine.replace("\ufffd", "") == theirs.replace("\ufffd", "")


async def _all(seeds: Sequence[int], note: Callable[[int], None]) -> list[Finding]:
    found = []
    reply = Reply()

    def first(request: Request) -> Reply:
        if request.path.endswith("/responses"):
            return Reply(status=404, headers={"content-type": "application/json"}, steps=[b"{}"], is_document=True)
        return reply

    NETWORK.servers[FIRST] = NETWORK.servers[SECOND] = first
    async with AsyncExitStack() as stack:
        readers = await _Readers().opened(stack)
        for count, seed in enumerate(seeds, 1):
            reply, way = mutated(seed)
            seen, plain = await readers.read(way)
            what = _judged(way, seen, plain)
            failed = NETWORK.apps[SERVE].failed
            if failed:
                what = f"the application fails: {type(failed.pop()).__name__}"
                failed.clear()
            if what is not None:
                found.append(Finding(seed, way, what))
            NETWORK.requests.clear()
            NETWORK.complaints.clear()
            CLOCK.now += 60.0  # whoever rests is asked again
            note(count)
    return found


def fuzzed(seeds: Sequence[int], note: Callable[[int], None] = lambda count: None) -> list[Finding]:
    """What was found; `note` is called after each."""
    with entered(), warnings.catch_warnings(action="ignore"):
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            return run(_all, seeds, note)  # type: ignore[no-any-return]
        finally:
            logging.disable(disabled)


def growth(count: int, after: int) -> tuple[list[Finding], int]:
    """What was found in so many, and by how many bytes what is held grew since the first `after`."""
    held: dict[int, int] = {}

    def note(done: int) -> None:
        if done in (after, count):
            gc.collect()
            held[done] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        found = fuzzed(range(count), note)
    finally:
        tracemalloc.stop()
    return found, held[count] - held[after] - sys.getsizeof(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = fuzzed(range(given.seed, given.seed + given.count))
    for finding in found[:40]:
        print(*finding, sep=" | ")
    print(Counter((way, what) for _, way, what in found))
    if given.count == 1:
        reply, way = mutated(given.seed)
        print(way, reply.status, dict(reply.headers), *reply.steps, sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
