"""Endpoints that fail more than once: which is left alone, when it is tried again, and which answers instead."""

from __future__ import annotations

import contextlib

import anyio
import moved_clock
import openai
import pytest
from watched import ask, endpoint, preset

from disco import AsyncDisco
from disco.client.request_options import RequestOptions
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

CRASHES = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
HERE, THERE = ("device", None), ("server", None)


@pytest.fixture
def anyio_backend():
    return moved_clock.virtual("trio")


class Down(SimulatedEndpoint):
    """A server that fails as long as `kind` is set, after `after_s` seconds."""

    def __init__(self, ttft_s: float = 0.1) -> None:
        super().__init__("server", SimulatedProfile(ttft_s=ttft_s, answer="So it is. " * 3))
        self.well = self.profile
        self.opened = 0

    def fail(self, kind: str | None, after_s: float = 0.0) -> None:
        fault = Fault(silence_s=after_s, kind=kind and FailureKind(kind))
        self.profile = self.well if kind is None else SimulatedProfile(fault=fault, answer="")

    def open(self, *asked):
        self.opened += 1
        return super().open(*asked)


class Client(AsyncDisco):
    """A device and a server that may be down."""

    def __init__(self, server: Down | None = None, policy="server_only", **more) -> None:
        policy = policy if isinstance(policy, Preset) else preset(policy)
        super().__init__(**{"local": endpoint("device"), "policy": policy, "api_key": "x", **more})
        self.server = server or Down()

    async def open(self, **options):
        return await self.router.open(
            ask(), self.server, stream=True, options=RequestOptions(**options), max_retries=0
        )

    async def get(self, **options):
        live = await self.open(**options)
        with contextlib.suppress(openai.OpenAIError):
            while await live.read():
                pass
        await live.wait_done()
        return live.record

    async def tried(self) -> list[tuple[str, str | None]]:
        return [(t.endpoint, t.failure) for t in (await self.get()).attempts]

    async def open_breaker(self) -> None:
        self.server.fail("connection")
        for _ in range(2):
            assert await self.tried() == [("server", "connection"), HERE]


async def test_a_dead_server_is_left_alone_tried_now_and_then_and_taken_back_when_it_lives():
    async with Client() as client:
        await client.open_breaker()
        record = await client.get()
        assert [t.endpoint for t in record.attempts] == ["device"]
        (rest,) = record.deprioritised
        assert (rest.endpoint, rest.reason, rest.failure) == ("server", "failures", "connection")
        assert rest.failures == 2
        assert record.to_dict()["deprioritised"][0]["for_s"] == pytest.approx(rest.for_s)
        probes = 0
        for _ in range(40):  # four minutes of asking
            await anyio.sleep(6.0)
            probes += len(await client.tried()) - 1
        assert 2 <= probes <= 8
        client.server.fail(None)
        await anyio.sleep(120)
        assert [await client.tried() for _ in range(2)] == [[THERE]] * 2


async def test_only_one_request_at_a_time_tries_a_server_that_has_rested_and_one_that_is_left_makes_room():
    async with Client() as client:
        await client.open_breaker()
        await anyio.sleep(2)
        client.server.fail("connection", after_s=20.0)
        before = client.server.opened
        first, *others = [await client.open() for _ in range(5)]
        await anyio.sleep(0.01)
        assert client.server.opened == before + 1
        first.cancel()
        await first.wait_done()
        assert (await client.get()).starts[0][0] == "server"
        for live in others:
            while await live.read():
                pass
            assert [t.endpoint for t in live.record.attempts] == ["device"]
            assert live.record.deprioritised[0].reason == "probed"


async def test_offline_the_device_speaks_at_once_and_the_server_is_the_last_resort():
    class Offline(Down):
        has_route = False

    async with Client(Offline()) as client:
        record = await client.get()
        assert [t.endpoint for t in record.attempts] == ["device"]
        assert [(r.endpoint, r.reason) for r in record.deprioritised] == [("server", "offline")]
        assert client.server.opened == 0
        client.router.local.profile = CRASHES
        assert await client.tried() == [("device", "crashed"), THERE]
