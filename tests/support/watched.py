"""Answers to watch: a client's router on simulated endpoints, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import trio.testing

from disco.client.live_driver import LiveSession
from disco.client.request_options import RequestOptions
from disco.client.router import Router
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.request import Request

CANARY = "canary-7f3a"


def virtually(function: Callable[..., Any], *arguments: object) -> Any:
    """Run an async function in virtual time."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return anyio.run(function, *arguments, backend="trio", backend_options={"clock": clock})


def endpoint(name: str, **profile: Any) -> SimulatedEndpoint:
    """Slow, sure and wordy, unless `profile` says otherwise."""
    profile = {"ttft_s": 0.1, "decode_tps": 50.0, "answer": f"It is {CANARY} and no more. " * 8, **profile}
    place = "device" if name == "device" else "server"
    return SimulatedEndpoint(name, SimulatedProfile(**profile), place=place)


def preset(policy: str = "race", *, moves: bool = False, pace_tps: float | str = "off") -> Preset:
    parts = {"playback": {"pace_tps": pace_tps}, "migration": {"enabled": moves}}
    # The device is free: answers move to it.
    return Preset(name="watched", dispatch={"policy": policy}, cost={"exchange_rate": 0.0}, **parts)


def ask(**params: Any) -> Request:
    messages = [{"role": "user", "content": f"What is {CANARY}?"}]
    return Request(messages=messages, model="gpt-4o-mini", params={"user": CANARY, **params})


def answer(
    device: SimulatedEndpoint | None,
    server: SimulatedEndpoint | None,
    policy: Preset,
    *,
    request: Request | None = None,
    stream: bool = True,
    leave_after: int | None = None,
    max_retries: int = 0,
    **more: Any,
) -> LiveSession:
    """One answer, read to its end, or left after so many deltas. What it fails with stays in `error`."""

    async def main() -> LiveSession:
        router = Router(local=device, preset=policy, seed=0, **more)
        how = {"stream": stream, "options": RequestOptions(), "max_retries": max_retries}
        live = await router.open(request or ask(), server, **how)
        read = 0
        try:
            while batch := await live.read():
                read += len(batch)
                if leave_after is not None and read >= leave_after:
                    live.cancel()
        except Exception as error:
            if error is not live.error:
                raise
        await live.wait_done()
        await router.aclose()
        return live

    return virtually(main)
