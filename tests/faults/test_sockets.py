"""Faults of real connections are what they are in memory; and one of each sort with the real model on both sides."""

from __future__ import annotations

import functools
import zlib

import anyio
import anyio.to_thread
import moved_clock
import pytest
from faults.cases import ON_SOCKETS
from faults.in_memory import MemoryServer, befallen
from faults.lab import PATIENT, asking, calm, device, get
from faults.proxy_server.fault import Cut, Fault, Kind, Moment
from faults.proxy_server.proxy import fault_proxy

from disco.endpoints.continuation import Continuation
from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind
from disco.request import Timeouts

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


# ---------------------------------------------------------------------- the real model

BEGUN = "The sea is deep and wide, and the waves of the sea are never the same twice."
ASKED = {
    "max_tokens": 16,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Write three short sentences about the sea, please."}],
}


def whole(answer) -> None:
    """Greedy answers of one model on two machines may differ in a word; each piece is what its writer wrote."""
    route, at = answer.route, 0
    assert answer.error is None
    assert route.seamless
    assert route.finish_reason in ("stop", "length")
    for piece in route.segments:
        text = answer.text[piece.start_char : piece.end_char].encode()
        assert piece.start_char == at
        assert piece.written_crc32 == piece.delivered_crc32 == zlib.crc32(text)
        at = piece.end_char
    assert at == len(answer.text) > 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_real_models_go_on_on_both_sides(llama_server, thread_model, monkeypatch):
    """The device where the server broke off; the server where the device did, and again where it did itself."""
    monkeypatch.setattr("disco.session.switching.failover_rule.RETRY_S", 0.01)
    patient = {"timeouts": Timeouts(connect_s=20.0, first_content_s=120.0, gap_s=120.0, total_s=600.0)}
    how = Continuation(method="completions", template=str(llama_server.gguf))
    broken = device(BEGUN, fault=Simulated(5, kind=FailureKind.CRASHED))
    with fault_proxy(llama_server.base_url) as proxy:
        proxy.arm(
            [Fault(Kind.CLOSE, Moment.MIDDLE, cut=Cut.LINE), Fault(Kind.CLOSE, Moment.MIDDLE, tokens=4)]
        )
        async with asking(proxy, thread_model, **patient) as client:
            answer = await get(client, **ASKED)
        whole(answer)
        assert answer.attempts == [("server", "connection"), ("device", None)]
        async with asking(
            proxy, broken, policy="device_only", continuation=how, max_retries=1, **patient
        ) as client:
            answer = await get(client, **ASKED)
        whole(answer)
        assert answer.text.startswith("".join(tokenise(BEGUN)[:5]))
        # Where the model would have chosen another word than the one that was shown, it goes on behind it.
        tries = [t for t in answer.attempts if t != ("server", "seam")]
        assert tries == [("device", "crashed"), ("server", "connection"), ("server", None)]
        assert {p.path for p in proxy.passages} <= {"/v1/chat/completions", "/v1/completions"}
        await anyio.to_thread.run_sync(proxy.wait_idle)
