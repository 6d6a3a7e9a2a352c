"""A client that has seen its server's gaps does not wait for the clock when the server goes silent: in virtual time."""

from __future__ import annotations

import anyio
import pytest
from faults.in_memory import MemoryServer, befallen
from faults.lab import VIRTUAL, asking, calm, device, get
from faults.proxy_server.fault import Fault, Kind, Moment

from disco.profiles.upper_tail import FEWEST

pytestmark = pytest.mark.anyio
HEALTHY = [Fault(Kind.DELAY, moment, seconds=0.02) for moment in (Moment.HEAD, Moment.FIRST, Moment.MIDDLE)]


async def after_healthy_answers(fault: Fault, seen: int, **how):
    """The answer that the fault strikes, the seconds that it took, and the client's next answer."""
    healthy = [befallen(HEALTHY[n % len(HEALTHY)]) for n in range(seen)]
    server = MemoryServer(*healthy, befallen(fault), befallen(None))
    async with asking(server, device(), **how) as client:
        for _ in range(seen):
            answer = await get(client)
            calm(answer)
            assert [a.endpoint for a in answer.route.attempts] == ["server"], "a false alarm"
        began = anyio.current_time()
        struck = await get(client)
        took_s = anyio.current_time() - began
        after = await get(client)
        calm(after)
    assert server.open == 0
    return struck, took_s, after


@pytest.mark.parametrize(
    ("moment", "role", "failure"),
    [(Moment.HEAD, "hedge", None), (Moment.FIRST, "hedge", None), (Moment.MIDDLE, "heir", "stalled")],
)
async def test_a_server_that_stalls_is_replaced_within_a_fraction_of_the_clock(moment, role, failure):
    struck, took_s, _ = await after_healthy_answers(Fault(Kind.STALL, moment, tokens=12), FEWEST)
    calm(struck)
    assert took_s < 0.5 < VIRTUAL.gap_s
    assert [(a.endpoint, a.role) for a in struck.route.attempts] == [("server", "starter"), ("device", role)]
    assert struck.route.attempts[0].failure == failure
    assert struck.route.attempts[0].doubted_s is not None


async def test_before_there_is_data_the_clock_decides():
    struck, took_s, _ = await after_healthy_answers(Fault(Kind.STALL, Moment.MIDDLE, tokens=12), FEWEST - 1)
    calm(struck)
    assert took_s >= VIRTUAL.gap_s
    assert [a.role for a in struck.route.attempts] == ["starter", "takeover"]


async def test_a_server_that_only_pauses_goes_on_with_its_own_answer():
    """The heir is slow enough that the server is back before it writes."""
    slow = device(ttft_s=5.0)
    healthy = [befallen(HEALTHY[n % len(HEALTHY)]) for n in range(FEWEST)]
    server = MemoryServer(*healthy, befallen(Fault(Kind.DELAY, Moment.MIDDLE, tokens=12, seconds=1.0)))
    async with asking(server, slow) as client:
        for _ in range(FEWEST):
            await get(client)
        paused = await get(client)
    calm(paused)
    assert paused.writers == ["server"]
    assert [(m.reason, m.outcome) for m in paused.route.migrations] == [("silence", "source_back")]
    assert "hedge" in {c.phase for c in paused.route.ledger.charges}
    assert (slow.busy, server.open) == (0, 0)


async def test_an_answer_that_must_stay_on_this_machine_has_no_heir_elsewhere():
    server = MemoryServer(befallen(None))
    async with asking(server, device(), policy="device_only") as client:
        for _ in range(FEWEST + 1):
            answer = await get(client, extra_body={"disco": {"local_only": True}})
            assert [a.endpoint for a in answer.route.attempts] == ["device"]
    assert server.requests == []
