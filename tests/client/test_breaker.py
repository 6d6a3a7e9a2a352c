"""Endpoints that fail more than once: which is left alone, when it is tried again, and which answers instead."""

from __future__ import annotations

import anyio
import moved_clock
import openai
import pytest
from watched import ask, endpoint, preset

from disco.client.request_options import RequestOptions
from disco.client.router import Router
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

SERVER_FIRST = preset("server_only")


@pytest.fixture
def anyio_backend():
    """In virtual time; `test_options` has the other loop."""
    return moved_clock.virtual("trio")


class Down(SimulatedEndpoint):
    """A server that fails as long as `kind` is set, after `after_s` seconds."""

    def __init__(self, name: str = "server", *, ttft_s: float = 0.1, **more) -> None:
        super().__init__(name, SimulatedProfile(ttft_s=ttft_s, answer="So it is. " * 3, **more))
        self.well = self.profile
        self.opened_at: list[float] = []

    def fail(self, kind: str | None, after_s: float = 0.0, *, retry_after_s: float | None = None) -> None:
        fault = Fault(silence_s=after_s, kind=kind and FailureKind(kind), retry_after_s=retry_after_s)
        self.profile = self.well if kind is None else SimulatedProfile(fault=fault, answer="")

    def open(self, request, prefix=None):
        self.opened_at.append(anyio.current_time())
        return super().open(request, *() if prefix is None else (prefix,))


class Client:
    """A router on a device and a server; `get` is one answer's record."""

    def __init__(self, server, *, policy=SERVER_FIRST, device=None, **more) -> None:
        self.server = server
        self.device = endpoint("device") if device is None else device or None
        self.router = Router(local=self.device, preset=policy, seed=0, **more)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.router.aclose()

    async def open(self, **options):
        return await self.router.open(
            ask(), self.server, stream=True, options=RequestOptions(**options), max_retries=0
        )

    async def get(self, **options):
        live = await self.open(**options)
        try:
            while await live.read():
                pass
        except openai.OpenAIError:
            pass
        await live.wait_done()
        return live.record

    async def open_breaker(self) -> None:
        self.server.fail("connection")
        await self.get()
        await self.get()

    async def tried(self) -> list[tuple[str, str | None]]:
        return [(t.endpoint, t.failure) for t in (await self.get()).attempts]


async def test_a_hiccup_changes_nothing():
    async with Client(Down()) as client:
        client.server.fail("server")
        assert await client.tried() == [("server", "server"), ("device", None)]
        client.server.fail(None)
        for _ in range(3):
            record = await client.get()
            assert [t.endpoint for t in record.attempts] == ["server"]
            assert record.deprioritised == ()


async def test_a_dead_server_is_left_alone_tried_now_and_then_and_taken_back_when_it_lives():
    async with Client(Down()) as client:
        client.server.fail("connection")
        assert await client.tried() == [("server", "connection"), ("device", None)]
        assert await client.tried() == [("server", "connection"), ("device", None)]
        record = await client.get()
        assert [t.endpoint for t in record.attempts] == ["device"]
        (rest,) = record.deprioritised
        assert (rest.endpoint, rest.reason) == ("server", "failures")
        assert (rest.failure, rest.failures) == ("connection", 2)
        assert record.to_dict()["deprioritised"][0]["for_s"] == pytest.approx(rest.for_s)
        probes = 0
        for _ in range(100):  # ten minutes of asking
            await anyio.sleep(6.0)
            probes += len(await client.tried()) - 1
        assert 3 <= probes <= 12
        client.server.fail(None)
        await anyio.sleep(120)
        assert await client.tried() == [("server", None)]
        assert await client.tried() == [("server", None)]


async def test_a_probe_that_stays_silent_costs_no_more_than_a_slow_first_token():
    async with Client(Down()) as client:
        await client.open_breaker()
        client.server.fail("connection", after_s=29.0)
        await anyio.sleep(2)
        record = await client.get()
        assert record.starts[0] == ("server", 0.0)
        name, after_s = record.starts[1]
        assert name == "device"
        assert after_s < 5
        assert record.winner == "device"
        assert record.pace.ttft_raw_s < after_s + 1
        # Nor does the next request wait for it: that it was mute for so long is an answer, too.
        record = await client.get()
        assert record.starts == (("device", 0.0),)
        assert record.deprioritised[0].failures == 3


async def test_only_one_request_at_a_time_tries_a_server_that_has_rested_and_one_that_is_left_makes_room():
    async with Client(Down()) as client:
        await client.open_breaker()
        await anyio.sleep(2)
        client.server.fail("connection", after_s=20.0)
        client.server.opened_at.clear()
        lives = [await client.open() for _ in range(5)]
        await anyio.sleep(0.01)
        assert len(client.server.opened_at) == 1
        first, *others = lives
        first.cancel()
        await first.wait_done()
        assert (await client.get()).starts[0][0] == "server"
        for live in others:
            while await live.read():
                pass
            assert [t.endpoint for t in live.record.attempts] == ["device"]
            assert live.record.deprioritised[0].reason == "probed"


async def test_a_rate_limit_is_kept_to_while_the_device_answers():
    async with Client(Down()) as client:
        client.server.fail("rate_limit", retry_after_s=30.0)
        assert await client.tried() == [("server", "rate_limit"), ("device", None)]
        at = anyio.current_time()
        client.server.fail(None)
        record = await client.get()
        (rest,) = record.deprioritised
        assert (rest.reason, rest.failures) == ("rate_limit", 1)
        assert 25 < rest.for_s <= 30
        assert await client.tried() == [("device", None)]
        await anyio.sleep_until(at + 30)
        assert await client.tried() == [("server", None)]


async def test_the_only_endpoint_is_never_refused_because_of_the_breaker():
    async with Client(Down(), device=False) as client:
        client.server.fail("server")
        for _ in range(6):
            assert await client.tried() == [("server", "server")]
        client.server.fail(None)
        record = await client.get()
        assert [t.endpoint for t in record.attempts] == ["server"]
        assert record.deprioritised == ()


async def test_a_server_that_rests_still_answers_when_the_device_fails():
    async with Client(Down()) as client:
        await client.open_breaker()
        client.server.fail(None)
        client.device.profile = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
        assert await client.tried() == [("device", "crashed"), ("server", None)]


@pytest.mark.parametrize("kind", ["bad_request", "content_filter", "authentication", "context_length"])
async def test_refusals_never_open_the_breaker(kind):
    async with Client(Down()) as client:
        client.server.fail(kind)
        for _ in range(6):
            assert (await client.tried())[0] == ("server", kind)


@pytest.mark.parametrize("kind", ["bad_request", "content_filter"])
async def test_what_the_caller_did_wrong_goes_nowhere_else(kind):
    async with Client(Down()) as client:
        client.server.fail(kind)
        assert await client.tried() == [("server", kind)]


async def test_a_probe_whose_time_never_came_makes_room():
    """The device waits for the server, which speaks first: the device has not been tried."""
    waits = Preset(dispatch={"policy": "wait_time", "budget": 0.05}, playback={"pace_tps": "off"})
    async with Client(Down(ttft_s=0.01), policy=waits) as client:
        client.device.profile = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
        for _ in range(3):
            await client.get(local_only=True)
        await anyio.sleep(5)
        for _ in range(2):
            record = await client.get()
            assert [s[0] for s in record.starts] == ["server", "device"]
            assert [t.endpoint for t in record.attempts] == ["server"]


async def test_losers_are_no_failures():
    async with Client(Down(ttft_s=5.0), policy=preset("race")) as client:
        for _ in range(10):
            await client.get()
        assert (await client.get()).deprioritised == ()


async def test_offline_the_device_speaks_at_once_and_the_server_is_the_last_resort():
    class Offline(Down):
        has_route = False

    async with Client(Offline()) as client:
        record = await client.get()
        assert [t.endpoint for t in record.attempts] == ["device"]
        assert [(r.endpoint, r.reason) for r in record.deprioritised] == [("server", "offline")]
        assert client.server.opened_at == []
        client.device.profile = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
        assert await client.tried() == [("device", "crashed"), ("server", None)]
