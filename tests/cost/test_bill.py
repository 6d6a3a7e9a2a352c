"""What an answer costs is told apart: the money paid to servers, the user's own energy, and what policies count."""

from __future__ import annotations

import math

import pytest
from client.test_budget import reply
from client.test_tiers import home
from defects.asking import client, create, device, preset
from faults.in_memory import MemoryServer, anyio_backend, no_thread  # noqa: F401 - fixtures

from disco import AsyncDisco
from disco.profiles import DeviceProfile, Energy, FlopsPerToken

pytestmark = pytest.mark.anyio

BATTERY = 2500.0  # times the rate of mains power, as on a low battery
FLOPS = FlopsPerToken(prompt_tokens=(128.0,), prefill=(2e9,), decode=4e9)
MEASURED = Energy(prefill_j_per_token=0.5, decode_j_per_token=3.0)


def profile(**known) -> DeviceProfile:
    return DeviceProfile(name="mine", source="test", prefill_tps=100, decode_tps=20, flops=FLOPS, **known)


def here(**more):
    return device(**{"ttft_s": 0.1, "decode_tps": 1e3, "answer_tokens": 30, **more})


async def answered(policy="device_only", server=None, **more):
    settings = {"local": here(), "preset": preset(policy, rate=4e-12 * BATTERY), **more}
    async with client(server, **settings) as one:
        return (await create(one, max_tokens=40)).route


async def test_an_answer_of_this_machine_bills_nothing_and_has_its_measured_energy():
    route = await answered(device_profile=profile(energy=MEASURED))
    (attempt,) = route.attempts
    energy_j = 0.5 * (attempt.prompt_tokens - attempt.cached_tokens) + 3.0 * attempt.completion_tokens
    assert (route.bill_usd, attempt.bill_usd) == (0.0, 0.0)
    assert route.device_energy_j == pytest.approx(energy_j)
    assert attempt.device_energy_j == pytest.approx(energy_j)
    assert route.policy_cost > 0.0001  # policies count it all the same
    assert not hasattr(route, "cost")


async def test_energy_that_was_not_measured_is_estimated_from_the_operations_and_else_not_known():
    (attempt,) = (route := await answered(device_profile=profile())).attempts
    read = attempt.prompt_tokens - attempt.cached_tokens
    assert route.device_energy_j == pytest.approx((2e9 * read + 4e9 * attempt.completion_tokens) / 2e10)
    route = await answered()
    assert (route.bill_usd, route.device_energy_j) == (0.0, None)
    assert route.policy_cost > 0
    written = route.to_dict()
    assert (written["ledger"]["bill_usd"], written["ledger"]["device_energy_j"]) == (0.0, None)


async def test_the_bill_of_a_mixed_answer_is_the_servers_tokens_times_their_price():
    server = MemoryServer(reply(4))
    made = {"local": here(ttft_s=5.0), "price": (2.0, 10.0), "device_profile": profile(energy=MEASURED)}
    route = await answered("race", server, **made)
    assert {attempt.endpoint for attempt in route.attempts} == {"device", "server"}
    assert route.bill_usd == pytest.approx(12 * 2e-6 + 4 * 10e-6, rel=1e-12)
    by = route.ledger.by_endpoint()
    assert (by["server"].bill_usd, by["server"].device_energy_j) == (route.bill_usd, 0.0)
    assert by["device"].bill_usd == 0.0
    assert route.device_energy_j == by["device"].device_energy_j
    assert route.policy_cost == pytest.approx(route.bill_usd + by["device"].policy_cost)
    assert math.fsum(c.bill_usd for c in route.ledger.charges) == route.bill_usd
    assert route.to_dict()["schema"] == 5


async def test_a_budget_in_dollars_counts_no_energy_of_the_users_other_machines():
    """A box at home without a price costs energy. At a low battery's rate it would have spent this budget at once."""
    budget = {"usd": 1e-9, "window_s": 86_400}
    async with AsyncDisco(
        local=None, tiers=[home()], preset=preset("auto", rate=4e-12 * BATTERY), budget=budget
    ) as one:
        for _ in range(3):
            route = (await create(one, max_tokens=40)).route
            assert route.winner == "home"
            assert route.policy_cost > 1e-9
            assert (route.bill_usd, route.budget["usd"]["spent"]) == (0.0, 0.0)


async def test_a_stream_of_this_machine_says_meanwhile_that_nothing_is_billed():
    async with client(local=here(), preset=preset("device_only", rate=1e-9)) as one:
        stream = await create(one, stream=True, max_tokens=40)
        async with stream as chunks:
            async for _ in chunks:
                assert (stream.progress.bill_usd, stream.progress.device_energy_j) == (0.0, None)
