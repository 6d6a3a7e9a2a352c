"""Drawn schedules of faults on real sockets: as long as one endpoint is well, every answer is complete and exact."""

from __future__ import annotations

from unittest.mock import patch

import anyio
from faults.cases import CASES, FAILING, RETRIED
from faults.fault import Kind
from faults.lab import asking, calm, device, get, preset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.errors import FailureKind
from disco.session.switching import failover_rule

DOORS = (Kind.REFUSE, Kind.BLACK_HOLE)
QUICK = [case for case in CASES if not case.silent and case.fault.kind not in DOORS]
ANY = [case for case in QUICK if case.failure is None or case in FAILING]
AGAIN = [case for case in QUICK if case.failure is None or (case in RETRIED and not case.fault.headers)]

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


def answers(proxy, cases, count=1, **client_options):
    """Ask `count` times while the proxy plays the schedule."""

    async def main():
        async with asking(proxy, **client_options) as client:
            proxy.arm([case.fault if case is not None else None for case in cases])
            return [await get(client, stream=stream) for stream in [True, False, True][:count]]

    with patch.object(failover_rule, "RETRY_S", 0.002):
        return anyio.run(main)


@some
@given(cases=st.lists(st.none() | st.sampled_from(ANY), max_size=4), policy=policies)
def test_the_device_is_well(proxy, cases, policy):
    for answer in answers(proxy, cases, 3, local=device(), policy=preset(policy)):
        calm(answer)


@some
@given(fault=device_faults, policy=policies)
def test_the_server_is_well(proxy, fault, policy):
    for answer in answers(proxy, [], 3, local=device(fault=fault), policy=preset(policy)):
        calm(answer)


@some
@given(
    cases=st.lists(
        st.none() | st.sampled_from(AGAIN), max_size=2
    ),  # the device takes its share of the retries
    fault=device_faults,
    policy=policies,
)
def test_the_server_gets_well_before_its_retries_are_used_up(proxy, cases, fault, policy):
    for answer in answers(proxy, cases, local=device(fault=fault), policy=preset(policy), max_retries=4):
        calm(answer)
