"""`disco serve` starts whatever its servers do, and leaves no connection open at its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
from functools import partial
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from scripted_server import scripted_server
from serving import HELLO, serving

from disco import AsyncDisco, Backup, LocalModelError, Tier
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import serve

pytestmark = pytest.mark.real

FAST = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": "off"})
DEVICE = SimulatedProfile(gap_s=0.001, answer_tokens=4)


@contextlib.contextmanager
def silent():
    """A server that accepts and says nothing."""
    scripted = scripted_server([3600.0])
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(scripted) as server:
        yield server


def client(server, **more):
    others = {"price": (1, 1), "api_key": "k", "base_url": server.base_url}
    return AsyncDisco(
        local=SimulatedEndpoint("device", DEVICE, place="device"),
        policy=FAST,
        tiers=[Tier(model="t", **others)],
        backups=[Backup(model="b", **others)],
        **others,
        **more,
    )


def test_silent_servers_do_not_hold_up_the_start_and_are_asked_all_the_same():
    with silent() as server:
        began_at = time.monotonic()
        with serving(partial(client, server)) as served:
            took_s = time.monotonic() - began_at
            answer = served.ask("/v1/chat/completions", {"model": "m", "messages": HELLO})
            assert server.requests[0][0].startswith("GET /v1/models ")
        assert time.monotonic() - began_at < 8.0, "nor does what is still asked hold up the end"
    assert answer.status == 200
    assert took_s < 5.0


class Unloadable(SimulatedEndpoint):
    async def warm_up(self) -> None:
        raise LocalModelError("no such model")


def test_a_model_that_cannot_be_loaded_is_told_of_although_servers_are_silent():
    def made(server, **more):
        local = Unloadable("device", DEVICE, place="device")
        return AsyncDisco(
            local=local, policy="balanced", price=(1, 1), api_key="k", base_url=server.base_url, **more
        )

    began_at = time.monotonic()
    with (
        silent() as server,
        pytest.raises(LocalModelError, match="no such model"),
        serving(partial(made, server)),
    ):
        pytest.fail("it serves")
    assert time.monotonic() - began_at < 5.0


@pytest.mark.parametrize("turns", range(5))
def test_connections_that_are_just_being_accepted_at_the_end_are_closed(turns):
    """However far they have come: pytest fails where a connection is left to the garbage collector."""
    opened = [socket.socket() for _ in range(40)]

    async def connect(url, scope):
        for each in opened:  # they wait for the listener when the loop goes on
            each.connect((urlsplit(url).hostname, urlsplit(url).port))
        for _ in range(turns):
            await asyncio.sleep(0)
        scope.cancel()

    async def main():
        device = SimulatedEndpoint("device", DEVICE, place="device")
        tasks = set()
        async with AsyncDisco(local=device, policy=FAST) as one:
            with anyio.CancelScope() as scope:

                def ready(url):
                    tasks.add(asyncio.ensure_future(connect(url, scope)))

                await serve(one, port=0, grace_s=0.0, on_ready=ready)

    asyncio.run(main())
    gc.collect()
    for each in opened:
        with each, contextlib.suppress(ConnectionError):
            each.settimeout(10)
            assert each.recv(1) == b""
