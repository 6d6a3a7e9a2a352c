"""Endpoints that fail more than once: which is left alone, when it is tried again, and which answers instead."""

from __future__ import annotations

import anyio
import pytest
from defects.asking import client, create, preset, tried
from defects.asking import device as simulated
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

HERE, THERE = ("device", None), ("server", None)


def failing(kind: str = "connection", after_s: float = 0.0) -> SimulatedProfile:
    return SimulatedProfile(fault=Fault(silence_s=after_s, kind=FailureKind(kind)), answer="")


class Server(SimulatedEndpoint):
    """It is down until it has another profile. Mutable: `opened`, how often it was asked."""

    opened, has_route = 0, True

    def __init__(self) -> None:
        super().__init__("server", failing())

    def open(self, *asked):
        self.opened += 1
        return super().open(*asked)


def asking(server: Server) -> AsyncDisco:
    local = simulated(ttft_s=0.01, decode_tps=1000.0, answer_tokens=4)
    nowhere = {"api_key": "x", "base_url": "http://127.0.0.1:9/v1"}
    made = client(local=local, policy=preset("server_only"), **nowhere)
    made.server = server
    return made


async def open_breaker(one: AsyncDisco) -> None:
    for _ in range(2):
        assert tried(await create(one)) == [("server", "connection"), HERE]


async def test_a_dead_server_is_left_alone_tried_now_and_then_and_taken_back_when_it_lives():
    async with asking(Server()) as one:
        await open_breaker(one)
        left = await create(one)
        assert tried(left) == [HERE]
        (rest,) = left.route.deprioritised
        assert (rest.endpoint, rest.reason, rest.failure) == ("server", "failures", "connection")
        assert rest.failures == 2
        assert left.route.to_dict()["deprioritised"][0]["for_s"] == pytest.approx(rest.for_s)
        probes = 0
        for _ in range(40):  # four minutes of asking
            await anyio.sleep(6.0)
            probes += len(tried(await create(one))) - 1
        assert 2 <= probes <= 8
        one.server.profile = SimulatedProfile(ttft_s=0.1)
        await anyio.sleep(120)
        assert [tried(await create(one)) for _ in range(2)] == [[THERE]] * 2


async def test_only_one_request_at_a_time_tries_a_server_that_has_rested_and_one_that_is_left_makes_room():
    async with asking(Server()) as one:
        await open_breaker(one)
        await anyio.sleep(2)
        one.server.profile = failing(after_s=20.0)
        async with anyio.create_task_group() as group:
            group.start_soon(create, one)
            await anyio.sleep(0.01)
            others = [await create(one) for _ in range(4)]
            assert one.server.opened == 3
            group.cancel_scope.cancel()
        assert [tried(other) for other in others] == [[HERE]] * 4
        assert {other.route.deprioritised[0].reason for other in others} == {"probed"}
        assert (await create(one)).route.starts[0][0] == "server"


async def test_offline_the_device_speaks_at_once_and_the_server_is_the_last_resort():
    server = Server()
    server.has_route, server.profile = False, SimulatedProfile(ttft_s=0.1)
    async with asking(server) as one:
        here = await create(one)
        assert tried(here) == [HERE]
        assert [(r.endpoint, r.reason) for r in here.route.deprioritised] == [("server", "offline")]
        assert server.opened == 0
        one.router.local.profile = failing("crashed")
        assert tried(await create(one)) == [("device", "crashed"), THERE]
