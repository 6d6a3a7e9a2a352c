"""Faults of real connections are what they are in memory."""

from __future__ import annotations

import anyio
import httpx2
import moved_clock
import pytest
from faults.cases import ON_SOCKETS
from faults.in_memory import MemoryServer, befallen
from faults.lab import asking, calm, device, get
from faults.proxy_server.fault import Kind, Moment

from disco.request import Timeouts

pytestmark = pytest.mark.real

CELLS = list(zip(ON_SOCKETS, ["asyncio", "trio"] * len(ON_SOCKETS), strict=False))


# So long that no busy machine uses them up; the clock is moved once a silence has begun for certain.
PATIENT = Timeouts(connect_s=10.0, first_content_s=20.0, gap_s=20.0, total_s=600.0)


async def ask(server, **more):
    async with anyio.create_task_group() as group, asking(server, device(), **more) as client:
        if more:
            # By less than what the driver takes for a process that stood still, whose silence then counts anew; and
            # so many steps that what came before the silence has been read long before a clock runs out.
            group.start_soon(moved_clock.pass_silence, server.is_silent, 0.1)
        answer = await get(client)
        group.cancel_scope.cancel()
        return answer


async def ask_really(proxy):
    return await ask(proxy, timeouts=PATIENT, http_client=httpx2.AsyncClient(verify=False))


@pytest.mark.parametrize(("case", "loop"), CELLS, ids=map(str, ON_SOCKETS))
def test_a_fault_of_a_real_connection_is_the_one_in_memory(proxy, case, loop):
    proxy.passages.clear()
    proxy.arm([case.fault])
    name, options = moved_clock.backend(loop)
    real = anyio.run(ask_really, proxy, backend=name, backend_options=options)
    name, options = moved_clock.virtual(loop)
    virtual = anyio.run(ask, MemoryServer(befallen(case.fault)), backend=name, backend_options=options)

    calm(real)
    if (case.fault.kind, case.fault.moment) == (
        Kind.STALL,
        Moment.HEAD,
    ):  # a hedge is there before this patience ends
        assert real.attempts == [("server", None), ("device", None)]
    else:
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
    assert not proxy.errors
