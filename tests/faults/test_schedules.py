"""Drawn schedules of faults, in virtual time: as long as one endpoint is well, every answer is complete and exact."""

from __future__ import annotations

import anyio
import moved_clock
from faults.cases import CASES, FAILING, RETRIED
from faults.in_memory import MemoryServer, befallen
from faults.lab import asking, calm, device, get, preset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.errors import FailureKind

ANY = [case for case in CASES if case.failure is None or case in FAILING]
AGAIN = [case for case in CASES if case.failure is None or case in RETRIED]

device_faults = st.none() | st.builds(
    Simulated,
    after_tokens=st.integers(0, 60) | st.none(),
    kind=st.sampled_from([FailureKind.CRASHED, FailureKind.INCOMPLETE, FailureKind.SEAM]),
)
policies = st.sampled_from(["server_only", "device_only", "race"])
some = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(cases, policy, count, **client_options) -> None:
    """Ask `count` times while the faults befall one request after the other."""

    async def main():
        server = MemoryServer(*(befallen(case and case.fault) for case in cases), befallen(None))
        async with asking(server, policy=preset(policy), **client_options) as client:
            for stream in [True, False, True][:count]:
                calm(await get(client, stream=stream))

    name, options = moved_clock.virtual("asyncio")
    anyio.run(main, backend=name, backend_options=options)


@some
@given(cases=st.lists(st.none() | st.sampled_from(ANY), max_size=4), policy=policies)
def test_the_device_is_well(cases, policy):
    check(cases, policy, 3, local=device())


@some
@given(fault=device_faults, policy=policies)
def test_the_server_is_well(fault, policy):
    check([], policy, 3, local=device(fault=fault))


# The device takes its share of the retries.
@some
@given(cases=st.lists(st.none() | st.sampled_from(AGAIN), max_size=2), fault=device_faults, policy=policies)
def test_the_server_gets_well_before_its_retries_are_used_up(cases, fault, policy):
    check(cases, policy, 1, local=device(fault=fault), max_retries=4)
