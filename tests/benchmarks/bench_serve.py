"""What `disco serve` adds to a request, and whether it holds many streams at once.

`disco`: `AsyncDisco` asks from this process, as `disco serve` does behind its own HTTP. Both have a server alone, so
that a request takes the SDK's own way. Ratio: through `disco serve` to directly, in the same turn; the median. Delay:
from the writing of a chunk, which carries the time, to when the reader has it. It fails only if a chunk is lost or
changes places.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import psutil
from bench_stream import SHORT, chunk, whole
from helpers.measuring import Columns, added, by_turns, met, options, percentile, ratio
from helpers.prepared_server import STREAM_HEAD, document, event, piece, serving

from disco import AsyncDisco

ADDED_MS, OF_DIRECT = 1.0, 1.7
ASKED = f"0 {SHORT} 0"
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": ASKED}]}
VECTOR = [n / 1000 for n in range(256)]
# Each kind of request: how it is sent, and whether its answer is a stream. The last two only pass through.
KINDS: dict[str, tuple[Callable[[openai.AsyncOpenAI], Any], bool]] = {
    "first content of a stream": (lambda asked: asked.chat.completions.create(**CHAT, stream=True), True),
    "whole answer, no stream": (lambda asked: asked.chat.completions.create(**CHAT), False),
    "first, passed through": (
        lambda asked: asked.completions.create(model="m", prompt=ASKED, stream=True),
        True,
    ),
    "whole, passed through": (
        lambda asked: asked.embeddings.create(model="m", input=ASKED, encoding_format="float"),
        False,
    ),
}
PRESET = '[dispatch]\npolicy = "server_only"\n[playback]\npace_tps = "off"\n'
PROGRAM = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from disco.cli import main
sys.exit(main(["serve", *sys.argv[1:]]))
"""
STREAMS = (
    " <28 | chunks >8 | lost >6 | wrong >7 | s >8.1f | "
    "CPU >7.0% | µs/chunk >10.0f | delay >9.1f | p99 >9.1f | max >9.1f"
)
NUMBERED = re.compile(rb'"content":\s*"(\d+)\.(\d+)\.(\d+) "')


@contextmanager
def disco_serve(behind: str) -> Iterator[tuple[str, int, Path]]:
    """`disco serve` before the server at `behind`; yields its base_url, process id and preset."""
    with tempfile.TemporaryDirectory() as folder:
        preset = Path(folder) / "server-only.toml"
        preset.write_text(PRESET)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--local", "none", "--preset", str(preset), "--port", "0"],
            env={**os.environ, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": behind},
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        with process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip(), process.pid, preset
            finally:
                process.terminate()


async def _ask(client: openai.AsyncOpenAI, kind: str) -> float:
    """Seconds until the first content of a stream, or until the whole answer."""
    ask, streamed = KINDS[kind]
    at, first_s, seen = time.perf_counter(), 0.0, 0
    answer = await ask(client)
    if not streamed:
        whole_s = time.perf_counter() - at
        if kind == "whole, passed through" and answer.data[0].embedding != VECTOR:
            raise RuntimeError("another vector came")
        if kind != "whole, passed through" and answer.choices[0].message.content.count(" ") != SHORT:
            raise RuntimeError("a part of the answer is lost")
        return whole_s
    async for part in answer:
        for choice in part.choices:
            if choice.text if hasattr(choice, "text") else choice.delta.content:
                first_s = first_s or time.perf_counter() - at
                seen += 1
    if seen != SHORT:
        raise RuntimeError(f"{seen} chunks came of {SHORT}")
    return first_s


async def compare(behind: str, base_url: str, pid: int, preset: Path, requests: int) -> None:
    """Print one table: each kind of request directly, with disco in this process, and through `disco serve`."""
    print(f"\n{requests} requests of each kind, in turns; ms")
    table = Columns(
        "request <28 | direct >8.2f | disco >8.2f | through >9.2f | added >+8.2f | p90 >+8.2f | "
        "CPU of serve >14.2f | ratio >8.2f | <= 1.7 >9"
    )
    keep: Any = {"max_retries": 0, "api_key": "none"}
    async with (
        openai.AsyncOpenAI(base_url=behind, **keep) as direct,
        AsyncDisco(base_url=behind, policy=preset, price=(0.15, 0.6), **keep) as within,
        openai.AsyncOpenAI(base_url=base_url, **keep) as through,
    ):
        for name in KINDS:
            ways = {client: partial(_ask, client, name) for client in (direct, within, through)}
            await by_turns(ways, 0, 20)
            cpu_at = _cpu_s(pid)
            found = await by_turns(ways, requests, 0)
            cpu_ms = (_cpu_s(pid) - cpu_at) / requests * 1e3
            spans = [[took_s * 1e3 for took_s in runs] for runs in found.values()]
            more, of_direct = added(spans[2], spans[0]), ratio(spans[2], spans[0])
            medians = [statistics.median(span) for span in spans]
            added_ms = [statistics.median(more), percentile(more, 0.9)]
            table.row(name, *medians, *added_ms, cpu_ms, of_direct, met(of_direct, OF_DIRECT))


def numbers() -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    """A server whose answer to "<stream> <chunks> <seconds>" is so many numbered chunks, so far apart."""

    async def answer(head: bytes, body: Any) -> AsyncIterator[bytes]:
        if body is None:  # it is asked for its models while disco warms up
            yield document({"object": "list", "data": []})
            return
        if head.startswith(b"post /v1/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": VECTOR}]
            yield document({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 5}})
            return
        chats = "messages" in body
        stream, chunks, gap_s = (body["messages"][0]["content"] if chats else body["prompt"]).split()
        if not body.get("stream"):
            yield whole(int(chunks))
            return
        yield STREAM_HEAD
        next_at = time.monotonic()
        for number in range(int(chunks)):
            text = f"{stream}.{number}.{time.monotonic_ns()} "
            yield chunk({"content": text}) if chats else event({"choices": [{"index": 0, "text": text}]})
            next_at += float(gap_s)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        yield chunk({}, "stop") + event(None) + piece(b"")

    return answer


async def _read_stream(url: str, stream: int, chunks: int, gap_s: float, delays_ms: list[float]) -> int:
    """How many chunks had not the number that had to come next, or were another stream's."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    content = f"{stream} {chunks} {gap_s}"
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body.encode())
    expected, wrong = 0, 0
    async for line in reader:
        found = NUMBERED.search(line)
        if found is not None:
            delays_ms.append((time.monotonic_ns() - int(found[3])) / 1e6)
            wrong += (int(found[1]), int(found[2])) != (stream, expected)
            expected += 1
        elif line.startswith(b"data: [DONE]"):
            writer.close()
            return wrong
    raise SystemExit("a stream had no end")


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    return sum(psutil.Process(pid).cpu_times()[:2])


async def hold(
    table: Columns, name: str, url: str, pid: int | None, streams: int, chunks: int, gap_s: float
) -> float:
    """Read all streams at once and print one row; returns the median delay in ms."""
    delays_ms: list[float] = []
    cpu_at, at = pid and _cpu_s(pid), time.monotonic()
    readers = (_read_stream(url, n, chunks, gap_s, delays_ms) for n in range(streams))
    wrong, seen = sum(await asyncio.gather(*readers)), len(delays_ms)
    took_s = time.monotonic() - at
    cpu_s = pid and _cpu_s(pid) - cpu_at
    cpu = ("–", "–") if cpu_s is None else (cpu_s / took_s, cpu_s / seen * 1e6)
    delays = [statistics.median(delays_ms), percentile(delays_ms, 0.99), max(delays_ms)]
    table.row(name, seen, streams * chunks - seen, wrong, took_s, *cpu, *delays)
    if wrong or seen != streams * chunks:
        raise SystemExit("a chunk was lost, doubled or out of order")
    return delays[0]


def main() -> None:
    given = options(
        __doc__,
        requests=(300, "of each kind"),
        streams=(200, "at once"),
        chunks=(200, "of each stream"),
        gaps=([0.1, 0.05, 0.0], "seconds between two chunks"),
    )
    with serving(numbers) as behind, disco_serve(behind) as (through, pid, preset):
        asyncio.run(compare(behind, through, pid, preset, given.requests))
        print("\none stream, a chunk every 10 ms: what serve adds to each chunk, from writing to reading")
        table = Columns(STREAMS)
        alone = asyncio.run(hold(table, "direct", behind, None, 1, given.chunks, 0.01))
        more_ms = asyncio.run(hold(table, "through", through, pid, 1, given.chunks, 0.01)) - alone
        print(f"target: at most {ADDED_MS:g} ms added at the median: {more_ms:.2f}, {met(more_ms, ADDED_MS)}")
        print(f"\n{given.streams} streams at once, {given.chunks} chunks each; CPU of serve; delay in ms")
        table = Columns(STREAMS)
        for gap_s in given.gaps:
            what = f"every {gap_s * 1e3:g} ms" if gap_s else "as fast as it goes"
            for name, url, process in (("direct", behind, None), ("through", through, pid)):
                asyncio.run(hold(table, f"{name}, {what}", url, process, given.streams, given.chunks, gap_s))
        print(f"target: {given.streams} streams on one core, no chunk lost or out of order: met")


if __name__ == "__main__":
    main()
