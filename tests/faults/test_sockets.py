"""Faults of real connections are what they are in memory."""

from __future__ import annotations

import functools

import anyio
import moved_clock
import pytest
from faults.cases import ON_SOCKETS
from faults.in_memory import MemoryServer, befallen
from faults.lab import PATIENT, asking, calm, device, get
from faults.proxy_server.fault import Kind, Moment

pytestmark = pytest.mark.real

CELLS = list(zip(ON_SOCKETS, ["asyncio", "trio"] * len(ON_SOCKETS), strict=False))


async def ask(server):
    async with asking(server, device()) as client:
        return await get(client)


@pytest.mark.parametrize(("case", "loop"), CELLS, ids=map(str, ON_SOCKETS))
def test_a_fault_of_a_real_connection_is_the_one_in_memory(proxy, case, loop):
    proxy.arm([case.fault])
    run = functools.partial(anyio.run, ask)
    name, options = moved_clock.backend(loop)
    real = run(proxy, backend=name, backend_options=options)
    name, options = moved_clock.virtual(loop)
    virtual = run(MemoryServer(befallen(case.fault)), backend=name, backend_options=options)

    calm(real)
    assert real.attempts == virtual.attempts
    assert real.attempts[0] == ("server", case.failure)
    # A reset may take with it what was not read yet.
    if case.fault.moment is Moment.MIDDLE and case.fault.kind is not Kind.RESET:
        cuts = [[(t.prefix_chars, t.tokens) for t in answer.route.attempts] for answer in (real, virtual)]
        assert cuts[0] == cuts[1]
    if case.fault.kind is Kind.BLACK_HOLE:  # by the clock of connecting, not by the one of the first content
        assert real.route.attempts[0].ended_s < PATIENT.first_content_s
    elif case.fault.kind is not Kind.REFUSE:
        assert [p.struck for p in proxy.passages] == [True]
    proxy.wait_idle()
