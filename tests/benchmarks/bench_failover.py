"""Two servers as they come, default settings: the faults of a public failover benchmark, on real connections.

The first server stands behind a proxy that breaks its answers of 60 tokens: the connection is cut after 40, the server
falls silent after 20, an event is broken before token 10. The second server is a backup that nobody has warmed up.

- Real servers: llama-cpp-python's, where it is installed, and llama.cpp's own, both with SmolLM2-135M.
- Scripted servers, one for each thing that a server may do with a half-written answer: continue by the flags, echo it
  first, do what it is told, begin in other words once or always, start another answer, start the same one.

Every answer has a new client, so that everything has to be proved anew; only the clocks for silence are shorter than
the defaults. An answer is exact if it is the text: for scripted servers the known one, for real servers what the
second one was given, plus what it wrote, as heard below the SDK. An answer that cannot go on must end with the first
server's error, and `partial_text` must be what was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import helpers.tests_path  # noqa: F401
import httpx2
import openai
from faults.proxy_server.fault import Fault, Kind, Moment
from faults.proxy_server.proxy import FaultProxy, fault_proxy
from helpers.measuring import options
from helpers.python_server import has_python_server, python_server
from plain_server import KINDS, TEXT, PlainServer, served
from servers import native_llama_server

from disco import AsyncDisco, Backup, Timeouts

SILENCE_S = 3.0
TOKENS = 60
FAULTS = {
    "cut after 40": Fault(Kind.CLOSE, Moment.MIDDLE, tokens=40),
    "silent after 20": Fault(Kind.STALL, Moment.MIDDLE, tokens=20),
    "broken event before 10": Fault(Kind.GARBAGE, Moment.MIDDLE, tokens=9, body=b"data: {oops\n\n"),
}
PROMPTS = (
    "Tell me a long story about a fox.",
    "Explain why the sea is salty, in detail.",
    "Describe a morning in a small harbour, at length.",
    "Write a long letter to a friend about snow.",
)
CONTINUE = (
    "flags",
    "echoes",
    "obeys",
    "rephrases once",
    "same again",
)  # every answer must be complete with these


class Witness(httpx2.AsyncHTTPTransport):
    """Below the SDK: `heard` has each request for an answer: its messages, and its response."""

    def __init__(self) -> None:
        super().__init__(verify=False)
        self.heard: list[tuple[list[Any], _Overheard]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread() or b"{}")
        response = await super().handle_async_request(request)
        response.stream = overheard = _Overheard(response.stream)
        if "Count from 1 to 30" not in str(body):  # no probe
            self.heard.append((body["messages"], overheard))
        return response


class _Overheard(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner, self._raw = inner, b""

    async def __aiter__(self) -> Any:
        async for piece in self._inner:
            self._raw += piece
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def wrote(self) -> str:
        """All text of the response."""
        text = ""
        for line in self._raw.split(b"\n"):
            with contextlib.suppress(ValueError, LookupError, TypeError):
                text += json.loads(line.removeprefix(b"data: "))["choices"][0]["delta"].get("content") or ""
        return text


@dataclass
class Tally:
    """What became of the answers at one second server under one fault."""

    answers: int = 0
    met: int = 0
    complete: int = 0
    exact: int = 0
    failed: int = 0
    failed_well: int = 0  # with the first error, and exactly the text that was read
    ways: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)


@dataclass
class Pair:
    """A first server behind a proxy, and a second one."""

    name: str
    proxy: FaultProxy
    second: str
    model: str
    known_text: str | None
    must_complete: bool


async def ask(pair: Pair, fault: Fault, prompt: str, tally: Tally) -> None:
    """One answer by a new client."""
    pair.proxy.arm([fault])
    before = len(pair.proxy.passages)
    witness, text, times, error, route = Witness(), "", [time.monotonic()], None, None
    clients = [httpx2.AsyncClient(transport=witness) for _ in range(2)]
    price = (0.15, 0.6)
    backup = Backup(
        base_url=pair.second, api_key="none", model=pair.model, price=price, http_client=clients[1]
    )
    settings = {"api_key": "none", "price": price, "http_client": clients[0], "backups": [backup]}
    settings["timeouts"] = Timeouts(first_content_s=30.0, gap_s=SILENCE_S)
    asked = {"model": pair.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS}
    async with AsyncDisco(base_url=pair.proxy.base_url, **settings) as client:
        try:
            stream = await client.chat.completions.create(stream=True, temperature=0, **asked)
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    text += chunk.choices[0].delta.content
                    times.append(time.monotonic())
            route = stream.route
        except openai.OpenAIError as raised:
            error, route = raised, getattr(raised, "route", None)
    tally.answers += 1
    tally.met += any(passage.struck for passage in pair.proxy.passages[before:])
    tally.waits_s.append(max(b - a for a, b in itertools.pairwise(times)))
    if error is not None:
        tally.failed += 1
        tally.failed_well += getattr(error, "partial_text", None) == text and begins(pair, witness, text)
        return
    tally.complete += 1
    last = route.attempts[-1]
    tally.ways.add(last.continued_by or "none")
    tally.exact += is_exact(pair, witness, text) and route.seamless


def begins(pair: Pair, witness: Witness, text: str) -> bool:
    whole = witness.heard[0][1].wrote if pair.known_text is None else pair.known_text
    return whole.startswith(text)


def is_exact(pair: Pair, witness: Witness, text: str) -> bool:
    if pair.known_text is not None:
        return text == pair.known_text
    first, (messages, last) = witness.heard[0][1].wrote, witness.heard[-1]
    begun, wrote = messages[-1], last.wrote
    if begun["role"] == "assistant":
        return first.startswith(begun["content"]) and text == begun["content"] + wrote
    # It was told to repeat the last words, and wrote these first, or all of the answer so far.
    sent, quoted, wrote = (
        messages[-2]["content"],
        begun["content"].split("last_words>")[1][:-2],
        wrote.lstrip(),
    )
    rest = wrote.removeprefix(quoted if wrote.startswith(quoted) else sent)
    return (
        first.startswith(sent) and rest != wrote and (sent + rest).startswith(text) and text.startswith(sent)
    )


@contextlib.contextmanager
def scripted(kind: Any) -> Iterator[Pair]:
    """Two scripted servers with the same answer, the second of them of this kind."""
    first = PlainServer("restarts")
    with served(first) as url, fault_proxy(url) as proxy, served(PlainServer(kind)) as second:
        yield Pair(kind, proxy, second, "m", TEXT, kind in CONTINUE)


def row(cells: list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


async def main() -> None:
    given = options(__doc__, answers=(4, "for each fault and second server"), scripted=False)
    tallies: dict[tuple[str, str], tuple[Pair, Tally]] = {}

    async def measure(pair: Pair) -> None:
        for name, fault in FAULTS.items():
            tally = Tally()
            tallies[pair.name, name] = pair, tally
            for number in range(given.answers):
                await ask(pair, fault, PROMPTS[number % len(PROMPTS)], tally)

    for kind in KINDS:
        with scripted(kind) as pair:
            await measure(pair)
    if not given.scripted and has_python_server():
        with python_server() as python, native_llama_server(slots=2) as native:
            with fault_proxy(python.base_url) as proxy:
                await measure(
                    Pair("real: llama-server", proxy, native.base_url, native.model, None, must_complete=True)
                )
            with fault_proxy(native.base_url) as proxy:
                await measure(
                    Pair("real: llama-cpp-python", proxy, python.base_url, native.model, None, False)
                )

    print(f"answers of {TOKENS} tokens; default settings but for the clock of silence, {SILENCE_S:g} s")
    head = [
        "second server",
        "fault",
        "answers",
        "met",
        "complete %",
        "exact %",
        "error, text kept %",
        "by",
        "wait P50",
    ]
    rows = []
    bad = 0
    for (name, fault), (pair, tally) in tallies.items():
        share = [
            f"{100 * part / tally.answers:.0f}" for part in (tally.complete, tally.exact, tally.failed_well)
        ]
        wait = f"{statistics.median(tally.waits_s):.2f} s"
        rows.append(
            [
                name,
                fault,
                str(tally.answers),
                str(tally.met),
                *share,
                ", ".join(sorted(tally.ways)) or "–",
                wait,
            ]
        )
        bad += tally.complete - tally.exact + tally.failed - tally.failed_well
        bad += tally.failed if pair.must_complete else 0
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    print(row(head, widths))
    print(row(["-" * width for width in widths], widths))
    for cells in rows:
        print(row(cells, widths))
    if bad:
        raise SystemExit(f"{bad} answers were not as they should be")


if __name__ == "__main__":
    asyncio.run(main())
