"""Whom `bench_faults.py` compares disco with: the bare SDK, and `litellm.Router` in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import helpers.tests_path  # noqa: F401
import httpx2
import openai
from faults.proxy_server.fault import Kind, Moment
from faults.proxy_server.proxy import FaultProxy
from helpers.fault_answers import Got, Stock, asked, stock
from helpers.fault_schedule import Turn
from servers import LlamaServer

CONNECT_S, SILENCE_S = 1.5, 4.0
DOORS = (Kind.REFUSE, Kind.BLACK_HOLE)


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
        create = self._client.chat.completions.create
        got, _ = await asked(create, turn.prompt, turn.limit, model="smollm2-135m")
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
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = await asyncio.create_subprocess_exec(python, str(script), *arguments, **pipes)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()
