"""The same faults in the event simulator: the same kind of failure, and the same decision, as on a real connection.

`test_server_fails` and `test_whose_fault` hold real connections to the table in `cases`; here the simulator is held
to it.
"""

from __future__ import annotations

import pytest
from faults.cases import CASES, FAILING, FINE, OF_THE_CALLER, RETRIED, each
from faults.fault import Direction, Kind, Moment
from faults.lab import asking, device, get
from faults.origin import TEXT
from faults.simulate import simulated
from faults.virtual import play

from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Plan, Start
from disco.request import Timeouts

# A reset may take with it what was not read yet, and when a server notices that its client has left is its own
# business.
EXACT = [
    case
    for case in FAILING
    if case.fault.moment is Moment.MIDDLE
    and case.fault.after_bytes is None
    and case.fault.kind is not Kind.RESET
    and case.fault.direction is Direction.DOWN
]
DEVICE = SimulatedProfile(answer=TEXT, decode_tps=5000.0)


CLOCKS = Timeouts(
    connect_s=0.2, first_content_s=0.25, gap_s=0.25, total_s=60.0
)  # shorter than a throttled event
SERVER_FIRST = Plan((Start("server"),), ("device",))


def virtually(case, plan=SERVER_FIRST, **more):
    server = SimulatedProfile(answer=TEXT, ttft_s=0.01, decode_tps=1000.0, fault=simulated(case.fault))
    profiles = {"server": server, "device": DEVICE}
    names = {*plan.fallbacks, *(start.endpoint for start in plan.starts)}
    used = {name: profiles[name] for name in names}
    return play(used, plan, timeouts=CLOCKS, **more)


def tries(run) -> list[tuple[str, str | None]]:
    return [(a.candidate.name, a.failure) for a in run.session.attempts]


@each(FAILING)
def test_the_device_goes_on(case):
    run = virtually(case)
    assert run.text == TEXT
    assert run.finished == "stop"
    assert tries(run) == [("server", case.failure), ("device", None)]


@each(FINE)
def test_what_is_no_failure_starts_nobody(case):
    run = virtually(case)
    assert run.text == TEXT
    assert tries(run) == [("server", None)]


@each(OF_THE_CALLER)
def test_a_mistake_of_the_callers_starts_nobody(case):
    run = virtually(case, max_retries=2)
    assert run.error is not None
    assert tries(run) == [("server", case.failure)]


# The fault comes again and again here; with all the text written, the second time there would be nothing to lose.
@each([case for case in CASES if case.failure is not None and case.fault.moment is not Moment.LAST])
def test_alone_it_is_asked_again_only_where_that_may_help(case):
    run = virtually(case, Plan((Start("server"),)), max_retries=1)
    assert run.error is not None
    assert tries(run) == [("server", case.failure)] * (2 if case in RETRIED else 1)


@pytest.mark.anyio
@each(EXACT)
async def test_live_and_simulated_cut_in_the_same_place(proxy, case, anyio_backend):
    async with asking(proxy, device()) as client:
        proxy.arm([case.fault])
        answer = await get(client)
    run = virtually(case)
    live = [(t.endpoint, t.failure, t.prefix_chars, t.tokens) for t in answer.route.attempts]
    assert live == [(a.candidate.name, a.failure, len(a.prefix.text), a.tokens) for a in run.session.attempts]
