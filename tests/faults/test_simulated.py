"""The same faults in the event simulator: the same failures, the same decisions and the same cuts as a client's."""

from __future__ import annotations

import pytest
from defects.parts import play
from faults.cases import CASES, each
from faults.in_memory import MemoryServer, anyio_backend, befallen  # noqa: F401 - a fixture
from faults.lab import VIRTUAL, asking, device, get
from faults.proxy_server.fault import Moment
from faults.proxy_server.origin import TEXT
from faults.proxy_server.simulate import simulated

from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Plan, Start

PLANS = {"with a device": Plan((Start("server"),), ("device",)), "alone": Plan((Start("server"),))}


@pytest.mark.anyio
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@each(CASES)
async def test_a_simulated_session_goes_as_a_real_one(case, plan):
    server = MemoryServer(befallen(case.fault))
    async with asking(server, device() if plan.fallbacks else None, max_retries=1) as client:
        live = await get(client)
    profiles = {
        "server": SimulatedProfile(answer=TEXT, ttft_s=0.01, decode_tps=1000.0, fault=simulated(case)),
        "device": SimulatedProfile(answer=TEXT, decode_tps=5000.0),
    }
    profiles = {name: profiles[name] for name in ("server", *plan.fallbacks)}
    run = play(profiles, plan, timeouts=VIRTUAL, max_retries=1)
    attempts = run.session.attempts
    assert (run.error is None) == (live.error is None)
    assert run.finished == live.route.finish_reason
    if (
        plan.fallbacks or case.fault.moment is not Moment.LAST
    ):  # with all written, nothing is lost the second time
        assert live.attempts == [(a.candidate.name, a.failure) for a in attempts]
    if case.fault.moment is Moment.MIDDLE and case.fault.after_bytes is None and plan.fallbacks:
        cuts = [(t.prefix_chars, t.tokens) for t in live.route.attempts]
        assert cuts == [(len(a.prefix.text), a.tokens) for a in attempts]
