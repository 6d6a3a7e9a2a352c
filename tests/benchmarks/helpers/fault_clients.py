"""Whom `bench_faults.py` compares disco with, and what a reader got, whoever was asked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import openai
from faults.proxy_server.fault import Kind, Moment
from faults.proxy_server.proxy import FaultProxy
from helpers.fault_schedule import Turn
from servers import LlamaServer

__all__ = [
    "CONNECT_S",
    "DOORS",
    "SILENCE_S",
    "Got",
    "Litellm",
    "Sdk",
    "Stock",
    "asked",
    "litellm_process",
    "settled",
]

CONNECT_S, SILENCE_S = 1.5, 4.0
DOORS = (Kind.REFUSE, Kind.BLACK_HOLE)


@dataclass
class Got:
    """What a reader got. Times are seconds since the request.

    Attributes:
        times: of each chunk with text.
        finish: the finish reason; None: there was none.
        error: name of the exception.
        met: the fault struck this request.
        wrong: what is not exact, in words.
        gaps: for each failure that somebody took over from, the reader's wait around it and whether text was there.
    """

    text: str = ""
    times: list[float] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    end: float = 0.0
    met: bool = False
    wrong: str | None = None
    gaps: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def completed(self) -> bool:
        return self.error is None and self.finish in ("stop", "length")

    @property
    def longest_s(self) -> float:
        """The reader's longest wait."""
        marks = [0.0, *self.times, self.end]
        return max(b - a for a, b in pairwise(marks))

    @property
    def restarts(self) -> int:
        """Characters before the place where the text begins anew."""
        return max(0, self.text.find(self.text[:24], 1)) if len(self.text) > 24 else 0


Stock = Counter[str]


def stock() -> Stock:
    """File descriptors, threads, tasks and child processes of this process; without /proc, what Python knows."""
    gc.collect()
    found: Stock = Counter(threads=threading.active_count(), tasks=len(asyncio.all_tasks()))
    with contextlib.suppress(OSError):
        found["file descriptors"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
        for process in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                found["children"] += process.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    return found


async def read(stream: Any, began: float, got: Got, on_chunk: Callable[[int], None]) -> None:
    """A stream of either client to its end."""
    async for chunk in stream:
        if chunk.choices:
            if content := chunk.choices[0].delta.content:
                got.text += content
                got.times.append(time.monotonic() - began)
                on_chunk(len(got.times))
            got.finish = chunk.choices[0].finish_reason or got.finish


def _nothing(_chunks: int) -> None: ...


async def asked(
    client: openai.AsyncOpenAI, turn: Turn, on_chunk: Callable[[int], None], **more: Any
) -> tuple[Got, Any]:
    """One answer, whatever becomes of it, and its route where it has one."""
    got, began, stream = Got(), time.monotonic(), None
    try:
        messages: Any = [{"role": "user", "content": turn.prompt}]
        stream = await client.chat.completions.create(
            model="smollm2-135m", messages=messages, max_tokens=turn.limit, temperature=0, stream=True, **more
        )
        await read(stream, began, got, on_chunk)
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer is broken
        got.error = type(error).__name__
        route = getattr(error, "route", None)
    else:
        route = getattr(stream, "route", None)
    finally:
        got.end = time.monotonic() - began
        if stream is not None:
            await stream.close()
    return got, route


class Sdk:
    """`openai.AsyncOpenAI` as it comes, with the same clocks."""

    name = "openai SDK"

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._client = self._new()

    def _new(self) -> openai.AsyncOpenAI:
        clocks = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        return openai.AsyncOpenAI(base_url=self._proxy.base_url, api_key="none", timeout=clocks)

    async def answer(self, turn: Turn) -> Got:
        passed = len(self._proxy.passages)
        self._proxy.arm(turn.arms)
        got, _ = await asked(self._client, turn, _nothing)
        _compare(got, turn, self._proxy, passed)
        return got

    async def take_stock(self) -> None:
        await self._client.close()
        self._before = await settled(self._proxy)
        self._client = self._new()

    async def leaked(self) -> Stock:
        await self._client.close()
        return await settled(self._proxy) - self._before


class Litellm:
    """`litellm.Router` in its own process."""

    name = "litellm.Router"

    def __init__(self, proxy: FaultProxy, process: asyncio.subprocess.Process) -> None:
        self._proxy, self._process = proxy, process

    async def _say(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def answer(self, turn: Turn) -> Got:
        passed = len(self._proxy.passages)
        self._proxy.arm(turn.arms)
        got = Got(**await self._say(json.dumps({"prompt": turn.prompt, "limit": turn.limit})))
        _compare(got, turn, self._proxy, passed)
        return got

    async def take_stock(self) -> None:
        await self._say("warm")

    async def leaked(self) -> Stock:
        return +Stock(await self._say("close"))


def _compare(got: Got, turn: Turn, proxy: FaultProxy, passed: int) -> None:
    """Whether a client with one writer per answer got all of it, by what the proxy let through."""
    passages = proxy.passages[passed:]
    if turn.fault is not None:
        got.met = any(p.struck for p in passages) or turn.fault.kind in DOORS
    cut = passages and passages[-1].struck and turn.fault is not None and turn.fault.moment is not Moment.LAST
    if not got.text or (cut and 0 < len(got.times) <= passages[-1].tokens):
        got.wrong = "the text is not all there"
    elif got.restarts:
        got.wrong = "it begins anew"


async def settled(proxy: FaultProxy) -> Stock:
    """The stock once closed connections are gone."""
    await asyncio.to_thread(proxy.wait_idle, 30.0)
    await asyncio.sleep(0.5)
    return stock()


@contextlib.asynccontextmanager
async def litellm_process(
    python: str, proxy: str, spare: LlamaServer
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The client script, in its own environment."""
    script = Path(__file__).with_name("fault_litellm.py")
    arguments = (proxy, spare.base_url, spare.model, str(CONNECT_S), str(SILENCE_S))
    process = await asyncio.create_subprocess_exec(
        python,
        str(script),
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()
