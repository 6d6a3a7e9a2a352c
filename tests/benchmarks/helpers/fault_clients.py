"""The clients of `bench_faults.py`: disco, the bare SDK, and `litellm.Router` in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import helpers.tests_path  # noqa: F401
import httpx2
import openai
from faults.proxy_server.fault import Kind, Moment
from faults.proxy_server.proxy import FaultProxy
from faults.witness import Device, Witness, complaint
from helpers.fault_answers import Got, Stock, asked, stock
from helpers.fault_schedule import Turn, healthy_schedule
from servers import LlamaServer

from disco import AsyncDisco, Timeouts
from disco.endpoints.continuation import Continuation
from disco.session.records.route_record import RouteRecord

CONNECT_S, SILENCE_S = 1.5, 4.0
DOORS = (Kind.REFUSE, Kind.BLACK_HOLE)
KILL_SOON_S = 0.03  # "just asked"


class _Here:
    """A client in this process: what it holds is counted while it is closed."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def _settled(self) -> Stock:
        """The stock once closed connections are gone."""
        await self._close()
        await asyncio.to_thread(self._proxy.wait_idle, 30.0)
        await asyncio.sleep(0.5)
        return stock()

    async def take_stock(self) -> None:
        """Begin counting: everything that is made once has been made."""
        self._before = await self._settled()
        self._open()

    async def leaked(self) -> Stock:
        return await self._settled() - self._before


class Sdk(_Here):
    """`openai.AsyncOpenAI` as it comes, with the same clocks."""

    name = "openai SDK"

    def _open(self) -> None:
        clocks = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        self._client = openai.AsyncOpenAI(base_url=self._proxy.base_url, api_key="none", timeout=clocks)

    async def _close(self) -> None:
        await self._client.close()

    async def answer(self, turn: Turn) -> Got:
        passed = len(self._proxy.passages)
        self._proxy.arm(turn.arms)
        create = self._client.chat.completions.create
        got, _ = await asked(create, turn.prompt, turn.limit, model="smollm2-135m")
        return _compared(got, turn, self._proxy, passed)


class Litellm:
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
        return _compared(got, turn, self._proxy, passed)

    async def take_stock(self) -> None:
        await self._say("warm")

    async def leaked(self) -> Stock:
        return +Stock(await self._say("close"))


def _compared(got: Got, turn: Turn, proxy: FaultProxy, passed: int) -> Got:
    """With whether a client with one writer per answer got all of it, by what the proxy let through."""
    passages = proxy.passages[passed:]
    if turn.fault is not None:
        got.met = any(p.struck for p in passages) or turn.fault.kind in DOORS
    cut = passages and passages[-1].struck and turn.fault is not None and turn.fault.moment is not Moment.LAST
    if not got.text or (cut and 0 < len(got.times) <= passages[-1].tokens):
        got.wrong = "the text is not all there"
    elif got.restarts:
        got.wrong = "it begins anew"
    return got


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


class Disco(_Here):
    """A device whose process is killed and frozen, and the judge's witness. Mutable: whose stretch it is, too."""

    def __init__(
        self, proxy: FaultProxy, server: LlamaServer, folder: Path, *, one_client: bool, learns: int = 0
    ) -> None:
        self.name = "disco, one client" if one_client else "disco"
        self.learns, self._learnt = learns, None
        self._server, self._folder, self._one_client = server, folder, one_client
        self._client: AsyncDisco | None = None
        self._stretch: int | None = None
        super().__init__(proxy)

    def _open(self) -> None:
        options = {"context_tokens": 2048, "threads": 1}
        self._device = Device(model="smollm2-135m", name="device", **options)

    async def _close(self) -> None:
        await self._leave()
        await self._device.aclose()

    async def _leave(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def learn(self) -> None:
        """Let one client see healthy answers; every later one begins with what that one has learnt."""
        one_client, self._one_client = self._one_client, True
        for policy in ("server_only", "device_only"):
            for turn in healthy_schedule(self.learns, seed=7):
                await self.answer(replace(turn, policy=policy))
        assert self._client is not None
        self._learnt = self._client.router.statistics
        self._one_client = one_client
        await self._leave()
        for key, known in self._learnt.endpoints.items():
            slow = known.silences.slow_start()
            print(f"learnt of {key[0]}: silence {known.silences.silence_s()}, slow start {slow}")

    async def answer(self, turn: Turn) -> Got:
        await self._revive()
        if not (self._one_client or (turn.stretch is not None and turn.stretch == self._stretch)):
            await self._leave()
        if self._client is None:
            self._client = self._new()
        self._stretch = turn.stretch
        passed, said, did = len(self._proxy.passages), len(self._witness.heard), len(self._device.heard)
        self._proxy.arm(turn.arms if turn.device is None else ())
        policy = self._folder / f"{turn.policy}{'-paced' * turn.paced}.toml"
        create = partial(self._client.chat.completions.create, model="smollm2-135m")
        more = {"extra_body": {"disco": {"policy": str(policy)}}}
        pid, struck = self._device.process_id, []

        def send(number: signal.Signals) -> None:
            with contextlib.suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, number)

        def strike(chunks: int = 0) -> None:
            if turn.device is not None and chunks == turn.after:
                struck.append(chunks)
                send(signal.SIGKILL if turn.device == "killed" else signal.SIGSTOP)

        timer = asyncio.get_running_loop().call_later(KILL_SOON_S, strike)
        got, route = await asked(create, turn.prompt, turn.limit, strike, **more)
        timer.cancel()
        if struck and turn.device == "frozen":
            send(signal.SIGCONT)
        got.met = bool(struck)
        if turn.device is None and turn.fault is not None:
            met = any(p.struck for p in self._proxy.passages[passed:])
            got.met = met or (turn.fault.kind in DOORS and len(self._witness.heard) > said)
        if route is None:
            got.wrong = "no route record"
        else:
            got.wrong = complaint(got.text, route, self._witness.heard[said:], self._device.heard[did:])
            got.gaps = _gaps(got, route)
            got.hedged = [a.role for a in route.attempts if a.role in ("hedge", "heir")]
        return got

    async def _revive(self) -> None:
        """The device's process is there again: it is left alone for up to 30 s when it dies again and again."""
        for _ in range(599):
            with contextlib.suppress(Exception):
                return await self._device.warm_up()
            await asyncio.sleep(0.1)
        return await self._device.warm_up()

    def _new(self) -> AsyncDisco:
        self._witness = Witness()
        client = AsyncDisco(
            local=self._device,
            base_url=self._proxy.base_url,
            api_key="none",
            # It runs the device's file, so the file's chat template is the right one.
            continuation=Continuation(method="completions", template=str(self._server.gguf)),
            price=(0.15, 0.6),
            state=False,  # each client knows what it is given, and nothing else
            timeouts=Timeouts(connect_s=CONNECT_S, first_content_s=SILENCE_S, gap_s=SILENCE_S),
            http_client=httpx2.AsyncClient(transport=self._witness),
        )
        if self._learnt is not None:
            client.router.statistics = client.router.catalog.statistics = copy.deepcopy(self._learnt)
        return client


def _gaps(got: Got, route: RouteRecord) -> list[tuple[float, bool]]:
    """The reader's wait around each failure that somebody took over from: last chunk, or the request, to the next."""
    marks, gaps = [*got.times, got.end], []
    for failed in route.attempts:
        at = failed.ended_s
        later = route.attempts[route.attempts.index(failed) + 1 :]
        taken = next((t for t in later if at is not None and (t.started_s >= at or t.role == "heir")), None)
        if failed.failure is not None and taken is not None and taken.failure is None:
            first_s = taken.first_content_s
            after = got.end if first_s is None else min((m for m in marks if m >= first_s), default=got.end)
            before = max((m for m in marks if m < after), default=0.0)
            gaps.append((after - before, before > 0))
    return gaps
