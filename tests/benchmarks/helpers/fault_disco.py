"""disco's rows of `bench_faults.py`: a client, a device whose process is killed and frozen, and the judge's witness."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import helpers.tests_path  # noqa: F401
import httpx2
from faults.proxy_server.proxy import FaultProxy
from helpers.fault_answers import Got, Stock, asked
from helpers.fault_clients import CONNECT_S, DOORS, SILENCE_S, settled
from helpers.fault_schedule import Turn
from helpers.fault_witness import Device, Witness, complaint
from servers import LlamaServer

from disco import AsyncDisco, Timeouts
from disco.endpoints.continuation import Continuation
from disco.session.records.route_record import RouteRecord

KILL_SOON_S = 0.03  # "just asked"


class _Striker:
    """Kills or freezes the device's process at its moment."""

    def __init__(self, device: Device, turn: Turn) -> None:
        self._turn, self._pid, self.met = turn, device.process_id, False
        self._timer: asyncio.TimerHandle | None = None
        if turn.device is not None and turn.after == 0:
            self._timer = asyncio.get_running_loop().call_later(KILL_SOON_S, self._strike)

    def on_chunk(self, chunks: int) -> None:
        if self._turn.device is not None and chunks == self._turn.after:
            self._strike()

    def _strike(self) -> None:
        self.met = True
        self._send(signal.SIGKILL if self._turn.device == "killed" else signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def calm(self) -> None:
        """The answer is over."""
        if self._timer is not None:
            self._timer.cancel()
        if self.met and self._turn.device == "frozen":
            self._send(signal.SIGCONT)


class Disco:
    """disco's rows. Mutable: the client, its witness, and whose stretch it is."""

    def __init__(self, proxy: FaultProxy, server: LlamaServer, folder: Path, *, one_client: bool) -> None:
        self.name = "disco, one client" if one_client else "disco"
        self._proxy, self._server, self._folder, self._one_client = proxy, server, folder, one_client
        self._device = self._new_device()
        self._client: AsyncDisco | None = None
        self._witness = Witness()
        self._stretch: int | None = None

    def _new_device(self) -> Device:
        options = {"context_tokens": 2048, "threads": 1, "isolation": "process"}
        return Device(model="smollm2-135m", name="device", **options)

    async def answer(self, turn: Turn) -> Got:
        await self._revive()
        stays = self._one_client or (turn.stretch is not None and turn.stretch == self._stretch)
        if self._client is None or not stays:
            await self._renew()
        self._stretch = turn.stretch
        assert self._client is not None
        passed, said, did = len(self._proxy.passages), len(self._witness.heard), len(self._device.heard)
        self._proxy.arm(turn.arms if turn.device is None else ())
        struck = _Striker(self._device, turn)
        policy = self._folder / f"{turn.policy}{'-paced' * turn.paced}.toml"
        create = partial(self._client.chat.completions.create, model="smollm2-135m")
        more = {"extra_body": {"disco": {"policy": str(policy)}}}
        got, route = await asked(create, turn.prompt, turn.limit, struck.on_chunk, **more)
        struck.calm()
        if turn.device is not None:
            got.met = struck.met
        elif turn.fault is not None:
            met = any(p.struck for p in self._proxy.passages[passed:])
            got.met = met or (turn.fault.kind in DOORS and len(self._witness.heard) > said)
        if route is None:
            got.wrong = "no route record"
        else:
            got.wrong = complaint(got.text, route, self._witness.heard[said:], self._device.heard[did:])
            got.gaps = _gaps(got, route)
        return got

    async def _revive(self) -> None:
        """The device's process is there again: it is left alone for up to 30 s when it dies again and again."""
        for attempt in range(600):
            try:
                await self._device.warm_up()
            except Exception:
                if attempt == 599:
                    raise
                await asyncio.sleep(0.1)
            else:
                break

    async def _renew(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._witness = Witness()
        self._client = AsyncDisco(
            local=self._device,
            base_url=self._proxy.base_url,
            api_key="none",
            # It runs the device's file, so the file's chat template is the right one.
            continuation=Continuation(method="completions", template=str(self._server.gguf)),
            price=(0.15, 0.6),
            timeouts=Timeouts(connect_s=CONNECT_S, first_content_s=SILENCE_S, gap_s=SILENCE_S),
            http_client=httpx2.AsyncClient(transport=self._witness),
        )

    async def take_stock(self) -> None:
        """Begin counting: everything that is made once has been made."""
        await self._close()
        self._before = await settled(self._proxy)
        self._device = self._new_device()

    async def leaked(self) -> Stock:
        await self._close()
        return await settled(self._proxy) - self._before

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        await self._device.aclose()


def _gaps(got: Got, route: RouteRecord) -> list[tuple[float, bool]]:
    """The reader's wait around each failure that somebody took over from: last chunk, or the request, to the next."""
    marks = [0.0, *got.times, got.end]
    gaps = []
    for failed in route.attempts:
        at = failed.ended_s
        next_try = next((t for t in route.attempts if at is not None and t.started_s >= at), None)
        if failed.failure is None or next_try is None or next_try.failure is not None:
            continue
        first_s = next_try.first_content_s
        after = got.end if first_s is None else min((m for m in marks[1:] if m >= first_s), default=got.end)
        before = max((m for m in marks if m < after), default=0.0)
        gaps.append((after - before, before > 0))
    return gaps
