"""What `disco serve` adds to a request, and whether it holds many streams at once.

Run `python tests/benchmarks/bench_serve.py`. The server behind it gives prepared bytes from a process of its own;
`disco serve` runs as users start it, in a process kept on one core where the system can do that. Nothing here
decides by time: it prints. That no chunk is lost or changes places is checked, and it fails if one does.

- Added: `openai.AsyncOpenAI` asks the server behind directly and through `disco serve`, in turns; median and 90th
  percentile of the differences in the same turn. Target: at most 1 ms at the median. `disco`: `AsyncDisco` asks it
  from this process, which is what `disco serve` does behind its own HTTP.
- Streams: every chunk carries its stream, its number and the time it was written. Delay is from then to when the
  reader, on a bare socket, has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
from helpers.measuring import STREAM_HEAD, document, event, met, piece, serving
from helpers.measuring import options as command_line

from disco import AsyncDisco

ADDED_MS = 1.0
SHORT = 16  # content chunks of an answer whose time is taken
MESSAGES: Any = [{"role": "user", "content": f"0 {SHORT} 0"}]
PRESET = '[dispatch]\npolicy = "server_only"\n[playback]\npace_tps = "off"\n'
PROGRAM = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from disco.cli import main
sys.exit(main(["serve", *sys.argv[1:]]))
"""
HEAD = (
    f"{'':<28}{'chunks':>8}{'lost':>6}{'wrong':>7}{'s':>8}{'CPU':>7}{'µs/chunk':>10}"
    f"{'delay':>9}{'p99':>9}{'max':>9}"
)
NUMBERED = re.compile(rb'"content":\s*"(\d+)\.(\d+)\.(\d+) "')


@contextmanager
def disco_serve(behind: str) -> Iterator[tuple[str, int, Path]]:
    """`disco serve` before the server at `behind`; yields its base_url, process id and preset."""
    with tempfile.TemporaryDirectory() as folder:
        preset = Path(folder) / "server-only.toml"
        preset.write_text(PRESET)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--local", "none", "--policy", str(preset), "--port", "0"],
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


# ---------------------------------------------------------------------------------------- added latency

Ask = Callable[[openai.AsyncOpenAI], Awaitable[float]]


async def _ttft(client: openai.AsyncOpenAI) -> float:
    at, first_s, seen = time.perf_counter(), 0.0, 0
    stream = await client.chat.completions.create(messages=MESSAGES, model="m", stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.perf_counter() - at
            seen += 1
    if seen != SHORT:
        raise RuntimeError(f"{seen} chunks came of {SHORT}")
    return first_s


async def _whole(client: openai.AsyncOpenAI) -> float:
    at = time.perf_counter()
    answer = await client.chat.completions.create(messages=MESSAGES, model="m")
    took_s = time.perf_counter() - at
    if (answer.choices[0].message.content or "").count(" ") != SHORT:
        raise RuntimeError("a part of the answer is lost")
    return took_s


async def _passed(client: openai.AsyncOpenAI) -> float:
    at = time.perf_counter()
    await client.chat.completions.create(messages=MESSAGES, model="m", n=2)
    return time.perf_counter() - at


async def added(behind: str, base_url: str, pid: int, preset: Path, requests: int) -> None:
    """Print one table: each kind of request directly, with disco in this process, and through `disco serve`."""
    kinds: dict[str, Ask] = {
        "first content of a stream": _ttft,
        "whole answer, no stream": _whole,
        "whole, passed through": _passed,
    }
    print(f"\n{requests} requests of each kind, in turns; ms")
    print(
        f"{'request':<28}{'direct':>8}{'disco':>8}{'through':>9}{'added':>8}{'p90':>8}"
        f"{'CPU of serve':>14}{'<= 1 ms':>9}"
    )
    keep: Any = {"max_retries": 0, "api_key": "none"}
    async with (
        openai.AsyncOpenAI(base_url=behind, **keep) as direct,
        AsyncDisco(base_url=behind, policy=preset, price=(0.15, 0.6), **keep) as within,
        openai.AsyncOpenAI(base_url=base_url, **keep) as through,
    ):
        for name, ask in kinds.items():
            spans: dict[openai.AsyncOpenAI, list[float]] = {direct: [], within: [], through: []}
            cpu_at = None
            for turn in range(requests + 20):
                if turn == 20:
                    cpu_at = _cpu_s(pid)
                for client in random.sample(list(spans), len(spans)):
                    took_s = await ask(client)
                    if turn >= 20:
                        spans[client].append(took_s * 1e3)
            cpu_end = _cpu_s(pid)
            cpu = "–" if cpu_at is None or cpu_end is None else f"{(cpu_end - cpu_at) / requests * 1e3:.2f}"
            more = sorted(b - a for a, b in zip(spans[direct], spans[through], strict=True))
            medians = "".join(f"{statistics.median(span):>8.2f}" for span in spans.values())
            print(
                f"{name:<28}{medians} {statistics.median(more):>+8.2f}{more[int(0.9 * len(more))]:>+8.2f}{cpu:>14}"
                f"{met(statistics.median(more), ADDED_MS):>9}"
            )


# ---------------------------------------------------------------------------------------- many streams


def _chunk(content: str, finish: str | None = None) -> dict[str, object]:
    delta = {"content": content} if content else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }


def numbers() -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    """A server whose answer to "<stream> <chunks> <seconds>" is so many numbered chunks, so far apart."""

    async def answer(_head: bytes, body: Any) -> AsyncIterator[bytes]:
        if body is None:  # it is asked for its models while disco warms up
            yield document({"object": "list", "data": []})
            return
        stream, chunks, gap_s = body["messages"][0]["content"].split()
        if not body.get("stream"):
            message = {"role": "assistant", "content": "word " * int(chunks)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            yield document({**_chunk(""), "object": "chat.completion", "choices": [choice]})
            return
        yield STREAM_HEAD
        next_at = time.monotonic()
        for number in range(int(chunks)):
            yield event(_chunk(f"{stream}.{number}.{time.monotonic_ns()} "))
            next_at += float(gap_s)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        yield event(_chunk("", "stop")) + event(None) + piece(b"")

    return answer


@dataclass
class Seen:
    """What the readers got."""

    chunks: int = 0
    wrong: int = 0  # not the number that had to come next, or another stream's
    unfinished: int = 0
    delays_ms: list[float] = field(default_factory=list)


async def _read_stream(url: str, stream: int, chunks: int, gap_s: float, seen: Seen) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    content = f"{stream} {chunks} {gap_s}"
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body.encode())
    expected, done = 0, False
    async for line in reader:
        found = NUMBERED.search(line)
        if found is not None:
            seen.delays_ms.append((time.monotonic_ns() - int(found[3])) / 1e6)
            seen.chunks += 1
            seen.wrong += (int(found[1]), int(found[2])) != (stream, expected)
            expected += 1
        elif line.startswith(b"data: [DONE]"):
            done = True
            break
    seen.unfinished += not done or expected != chunks
    writer.close()


def _cpu_s(pid: int | None) -> float | None:
    """CPU seconds of a process so far; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def hold(name: str, url: str, pid: int | None, streams: int, chunks: int, gap_s: float) -> float:
    """Read all streams at once and print one row; returns the median delay in ms."""
    seen = Seen()
    cpu_at, at = _cpu_s(pid), time.monotonic()
    await asyncio.gather(*(_read_stream(url, n, chunks, gap_s, seen) for n in range(streams)))
    took_s = time.monotonic() - at
    cpu_end = _cpu_s(pid)
    cpu = "–" if cpu_at is None or cpu_end is None else f"{(cpu_end - cpu_at) / took_s:.0%}"
    each = "–" if cpu_at is None or cpu_end is None else f"{(cpu_end - cpu_at) / seen.chunks * 1e6:.0f}"
    delays = sorted(seen.delays_ms)
    print(
        f"{name:<28}{seen.chunks:>8}{streams * chunks - seen.chunks:>6}{seen.wrong:>7}{took_s:>8.1f}"
        f"{cpu:>7}{each:>10}{statistics.median(delays):>9.1f}{delays[int(0.99 * len(delays))]:>9.1f}{delays[-1]:>9.1f}"
    )
    if seen.wrong or seen.unfinished or seen.chunks != streams * chunks:
        raise SystemExit("a chunk was lost, doubled or out of order")
    return statistics.median(delays)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=300, help="of each kind")
    parser.add_argument("--streams", type=int, default=200, help="at once")
    parser.add_argument("--chunks", type=int, default=200, help="of each stream")
    parser.add_argument(
        "--gaps", type=float, nargs="*", default=[0.1, 0.05, 0.0], help="seconds between two chunks"
    )
    options: Any = parser.parse_args()
    with serving(numbers) as behind, disco_serve(behind) as (through, pid, preset):
        asyncio.run(added(behind, through, pid, preset, options.requests))
        print("\none stream, a chunk every 10 ms: what serve adds to each chunk, from writing to reading")
        print(HEAD)
        alone = [
            asyncio.run(hold(name, url, process, 1, options.chunks, 0.01))
            for name, url, process in (("direct", behind, None), ("through", through, pid))
        ]
        more_ms = alone[1] - alone[0]
        print(f"target: at most {ADDED_MS:g} ms added at the median: {more_ms:.2f}, {met(more_ms, ADDED_MS)}")
        print(f"\n{options.streams} streams at once, {options.chunks} chunks each; CPU of serve; delay in ms")
        print(HEAD)
        for gap_s in options.gaps:
            what = f"every {gap_s * 1e3:g} ms" if gap_s else "as fast as it goes"
            for name, url, process in ((f"direct, {what}", behind, None), (f"through, {what}", through, pid)):
                asyncio.run(hold(name, url, process, options.streams, options.chunks, gap_s))
        print(f"target: {options.streams} streams on one core, no chunk lost or out of order: met")


if __name__ == "__main__":
    main()
