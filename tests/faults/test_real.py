"""The same proxy before the real llama.cpp server, with the real model on this device: a few faults of each sort.

Greedy answers of one model on two machines may differ in a word, so the text is held to the route record here: each
piece of it is what its writer wrote, without a gap and without an overlap.
"""

from __future__ import annotations

import zlib

import anyio
import anyio.to_thread
import pytest
from faults.lab import asking, device, get
from faults.proxy_server.fault import Cut, Fault, Kind, Moment, refusal
from faults.proxy_server.proxy import fault_proxy

from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind
from disco.request import Timeouts

pytestmark = [pytest.mark.real, pytest.mark.anyio]

QUESTION = [{"role": "user", "content": "Write three short sentences about the sea, please."}]
M = Moment.MIDDLE
# The clock is moved where the server stalls; the models need as long as they need.
PATIENT = Timeouts(connect_s=10.0, first_content_s=120.0, gap_s=60.0, total_s=600.0)
FAULTS = [
    ("connection", Fault(Kind.CLOSE, M, cut=Cut.LINE)),
    ("connection", Fault(Kind.REFUSE)),
    ("stalled", Fault(Kind.STALL, M, tokens=6)),
    ("garbage", Fault(Kind.GARBAGE, M, body=b"data: {oops\n\n")),
    ("server", Fault(Kind.ERROR, M, body=b'{"error": {"message": "Boom."}}')),
    ("incomplete", Fault(Kind.END, M, tokens=8)),
    ("rate_limit", refusal(429, headers=(("Retry-After", "3600"),))),
]
ASKED = {"max_tokens": 24, "temperature": 0, "messages": QUESTION}


@pytest.fixture(scope="module")
def _real(llama_server):
    with fault_proxy(llama_server.base_url) as proxy:
        yield proxy


@pytest.fixture
def real(_real):
    _real.arm([])
    _real.passages.clear()
    _real.asked = 0
    return _real


@pytest.fixture(scope="module")
def local(llama_server):
    made = LlamaCppEndpoint(model=str(llama_server.gguf), name="device", context_tokens=1024, threads=1)
    yield made
    anyio.run(made.aclose)


def whole(answer) -> None:
    route, at = answer.route, 0
    assert answer.error is None
    assert answer.text
    assert "\ufffd" not in answer.text
    assert route.seamless
    assert route.finish_reason in ("stop", "length")
    for piece in route.segments:
        assert piece.start_char == at
        at = piece.end_char
        text = answer.text[piece.start_char : piece.end_char].encode()
        assert piece.written_crc32 == piece.delivered_crc32 == zlib.crc32(text)
    assert at == len(answer.text)


@pytest.mark.parametrize(("failure", "fault"), FAULTS, ids=str)
async def test_the_real_device_goes_on(real, local, failure, fault):
    async with asking(real, local, policy="server_only", timeouts=PATIENT) as client:
        real.arm([fault])
        answer = await get(client, **ASKED)
        whole(answer)
        assert [(t.endpoint, t.failure) for t in answer.route.attempts] == [
            ("server", failure),
            ("device", None),
        ]
    await anyio.to_thread.run_sync(real.wait_idle)


BEGUN = "The sea is deep and wide, and the waves of the sea are never the same twice."


@pytest.mark.parametrize(
    ("after", "fault"), [(0, None), (9, None), (5, Fault(Kind.CLOSE, M, tokens=4))], ids=str
)
async def test_the_real_server_goes_on(real, llama_server, after, fault, monkeypatch):
    """And once more where it stopped itself."""
    monkeypatch.setattr("disco.session.switching.failover_rule.RETRY_S", 0.01)
    how = Continuation(method="completions", template=str(llama_server.gguf))
    broken = device(BEGUN, fault=Simulated(after, kind=FailureKind.CRASHED))
    async with asking(
        real, broken, policy="device_only", continuation=how, max_retries=1, timeouts=PATIENT
    ) as client:
        real.arm([fault])
        answer = await get(client, **ASKED)
    whole(answer)
    assert answer.text.startswith("".join(tokenise(BEGUN)[:after]))
    again = [("server", "connection")] if fault else []
    # Where the model would have chosen another word than the one that was shown, it goes on behind it.
    tries = [t for t in answer.attempts if t != ("server", "seam")]
    assert tries == [("device", "crashed"), *again, ("server", None)]
    assert {p.path for p in real.passages} <= {"/v1/chat/completions", "/v1/completions"}
