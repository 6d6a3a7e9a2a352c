"""Streams of the wall's rows, mutated: bytes, fields, order, cuts, silences. The same seed makes the same stream.

Each is given to the plain SDK and to disco, in virtual time. A `Finding` is what must not be: no end, an exception that
is no `OpenAIError` (an application's own errors about what is no chunk apart), text that the SDK's reader got and
disco's did not, or an application of `disco serve` that fails itself. The SDK loses the first event behind a byte order
mark, so it is asked without; and it reads on behind an error in a choice.

    python tests/wall/fuzz.py 2000          # so many from seed 0, and what was found
    python tests/wall/fuzz.py 1 --seed 77   # one of them
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root / part) for part in ("", "support", "support/servers")]
    os.environ.update(DISCO_STATE="off", DISCO_POWER="off", DISCO_ATTACH="off")

import openai
from openai._models import construct_type
from openai.types.responses import ResponseStreamEvent
from wall.mutations import mutated
from wall.network import CLOCK, NETWORK, Request, entered, quiet, run
from wall.script import Reply

from disco import AsyncDisco, Backup
from disco.server import make_app

__all__ = ["Finding", "fuzzed", "growth"]

FIRST, SECOND, SERVE, PLAIN = 1001, 1002, 1003, 1004
BOM = b"\xef\xbb\xbf"
TAIL_S = 5.0  # behind a finish reason, silence for so long is the end
MOST_S = 4000.0  # three times the SDK's patience, and what is tried again
MESSAGES = [{"role": "user", "content": "Which rivers flow into the North Sea?"}]


_HALF = re.compile("[\ud800-\udfff]")


class Finding(NamedTuple):
    """What must not be, and the seed that shows it."""

    seed: int
    way: str
    what: str


# ---------------------------------------------------------------------- who reads it


class NoChunkError(Exception):
    """What an application raises that gets no chunk, as the SDK alone would give it."""


@dataclass
class Read:
    """What a reader got."""

    text: str = ""
    error: BaseException | None = None
    index: Any = None  # of the choice that is read: that of the first text
    least: int = 0  # characters of the text that came soon enough, which nobody may lose
    has_failed: bool = False  # an error has come that the SDK does not raise
    waits_from: float | None = None  # when the newest finish reason, or text behind one, came


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
                        _take(got, event)
            finally:
                await events.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        got.error = error
    return got


def _take(got: Read, chunk: Any) -> None:
    """Take the text of a chunk's first choice, where a server's JSON has one.

    Raises:
        NoChunkError: it is no chunk, of which applications fail.
    """
    if not isinstance(chunk, openai.BaseModel):
        raise NoChunkError
    choices = getattr(chunk, "choices", None)
    first = choices[0] if isinstance(choices, list) and choices else None
    now = asyncio.get_running_loop().time()
    is_late = got.has_failed or (got.waits_from is not None and now - got.waits_from > TAIL_S)
    is_error = getattr(chunk, "type", None) == "error"  # an event of the Responses API
    got.has_failed = got.has_failed or is_error or bool(getattr(first, "error", None))
    if not is_late and isinstance(reason := getattr(first, "finish_reason", None), str) and reason:
        got.waits_from = now
    content, index = getattr(getattr(first, "delta", None), "content", None), getattr(first, "index", 0) or 0
    if not isinstance(content, str | int | float) or not content:
        return
    got.index = index if got.index is None else got.index
    if index == got.index:
        got.text += content if isinstance(content, str) else json.dumps(content)
        if not is_late:
            got.least = len(got.text)
            got.waits_from = None if got.waits_from is None else now


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
        self.sdk = await enter(openai.AsyncOpenAI(**{**server, "base_url": f"http://127.0.0.1:{PLAIN}/v1"}))
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
    if error is not None and not isinstance(error, openai.OpenAIError | NoChunkError) and way != "serve":
        return f"raises {type(error).__name__}"
    if plain is None:
        return None
    # Half a surrogate pair is no text; disco waits for the other half, but not beyond a finish reason.
    mine, theirs = (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for text in (seen.text, plain.text[: max(plain.least, len(seen.text))])
    )
    theirs = theirs.rstrip("\ufffd")
    halves = _HALF.sub("\ufffd", plain.text)
    if not mine.startswith(theirs) and not _is_mended(mine, theirs) and not mine.startswith(halves):
        return f"{'loses' if theirs.startswith(mine) else 'changes'} text"
    return None


def _is_mended(mine: str, theirs: str) -> bool:
    return mine.replace("\ufffd", "") == theirs.replace("\ufffd", "")


def _without_bom(reply: Reply) -> Reply:
    steps, left = list(reply.steps), BOM
    for at, step in enumerate(steps):
        if not isinstance(step, bytes):
            continue
        head = step[: len(left)]
        if not left.startswith(head):
            break
        steps[at], left = step[len(head) :], left[len(head) :]
        if not left:
            return replace(reply, steps=steps)
    return reply


async def _all(seeds: Sequence[int], note: Callable[[int], None]) -> list[Finding]:
    found = []
    reply = Reply()

    def first(request: Request) -> Reply:
        if request.path.endswith("/responses"):
            return Reply(
                status=404, headers={"content-type": "application/json"}, steps=[b"{}"], is_document=True
            )
        return reply

    NETWORK.servers[FIRST] = NETWORK.servers[SECOND] = first
    NETWORK.servers[PLAIN] = lambda request: _without_bom(first(request))
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
            elif NETWORK.complaints:
                what = f"complaint: {NETWORK.complaints[0]}"
            if what is not None:
                found.append(Finding(seed, way, what))
            NETWORK.requests.clear()
            NETWORK.complaints.clear()
            CLOCK.now += 60.0  # whoever rests is asked again
            note(count)
    return found


def fuzzed(seeds: Sequence[int], note: Callable[[int], None] = lambda count: None) -> list[Finding]:
    """What was found; `note` is called after each."""
    with entered(), quiet():
        return run(_all, seeds, note)  # type: ignore[no-any-return]


def growth(count: int, after: int) -> tuple[list[Finding], int]:
    """What was found in so many, and by how many bytes what is held grew since the first `after`."""
    held: dict[int, int] = {}

    def note(done: int) -> None:
        if done in (after, count):
            gc.collect()
            held[done] = tracemalloc.get_traced_memory()[0]

    # The SDK keeps what it makes of the type of its events, 10 MB, when the first one comes that it cannot validate.
    construct_type(type_=ResponseStreamEvent, value={"type": "none"})
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
