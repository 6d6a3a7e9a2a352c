"""With the real model behind a real `disco serve`: what one client's answers took, another knows before its first."""

from __future__ import annotations

import pytest
from serving import serving

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.request import Request

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ASKED = Request([{"role": "user", "content": "Tell me about the sea."}], "m", {"max_tokens": 3})


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_second_client_knows_what_the_answers_of_the_first_one_took():
    def client(server):
        device = SimulatedEndpoint("device", place="device")
        return AsyncDisco(local=device, preset="fast", api_key="any", base_url=server.base_url)

    with serving(lambda **more: AsyncDisco(local="smollm2-135m", policy="private", **more)) as server:
        async with client(server) as first:
            for _ in range(8):
                async with first.server.open(ASKED) as attempt:
                    async for _ in attempt:
                        pass
        async with client(server) as second:
            before = second.router.catalog.server.ttft().quantile(0.5)
            await second.warm_up("m")
            (known,) = (k for k in second.router.statistics.endpoints.values() if k.ttft is not None)
            assert known.told == pytest.approx(8, abs=0.1)
            assert second.router.catalog.knows(known)
            assert known.ttft.snapshot().quantile(0.1) < 0.5 * before  # a local model on loopback is faster
