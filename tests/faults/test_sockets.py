"""One cell of the matrix for each kind, direction and outcome, on real connections: as the ones in memory are."""

from __future__ import annotations

import functools

import anyio
import moved_clock
import pytest
from faults.cases import REPRESENTATIVES, name_of
from faults.in_memory import MemoryServer, befallen
from faults.lab import PATIENT, asking, calm, device, get
from faults.proxy_server.fault import Direction, Kind, Moment

pytestmark = pytest.mark.real

CELLS = list(zip(REPRESENTATIVES, ["asyncio", "trio"] * len(REPRESENTATIVES), strict=False))


async def ask(server):
    async with asking(server, device()) as client:
        return await get(client)


@pytest.mark.parametrize(("case", "loop"), CELLS, ids=[f"{name_of(case)}-{loop}" for case, loop in CELLS])
def test_a_fault_of_a_real_connection_is_the_one_in_memory(proxy, case, loop):
    proxy.arm([case.fault])
    run = functools.partial(anyio.run, ask)
    name, options = moved_clock.backend(loop)
    real = run(proxy, backend=name, backend_options=options)
    name, options = moved_clock.virtual(loop)
    virtual = run(MemoryServer(befallen(case.fault)), backend=name, backend_options=options)

    assert real.error is None or real.error.status_code == virtual.error.status_code
    assert real.attempts == virtual.attempts
    assert real.attempts[0] == ("server", case.failure)
    if real.error is None:
        calm(real)
    # A reset may take with it what was not read yet; when a server notices that its client left is its business.
    if case.fault.moment is Moment.MIDDLE and case.fault.kind is not Kind.RESET:
        cuts = [[(t.prefix_chars, t.tokens) for t in answer.route.attempts] for answer in (real, virtual)]
        assert cuts[0] == cuts[1] or case.fault.direction is Direction.UP
    if case.fault.kind is Kind.BLACK_HOLE:  # by the clock of connecting, not by the one of the first content
        assert real.route.attempts[0].ended_s < PATIENT.first_content_s
    elif case.fault.kind is not Kind.REFUSE:
        assert [p.struck for p in proxy.passages] == [True]
    proxy.wait_idle()
