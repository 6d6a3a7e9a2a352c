"""When a server is asked again, in virtual time: after what it asks to wait, no longer, and not beyond the deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import openai
import pytest
from faults.in_memory import MemoryServer, anyio_backend, befallen  # noqa: F401 - a fixture
from faults.lab import asking, calm, device, get
from faults.proxy_server.fault import Fault, Kind, refusal

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio


def busy(name: str, value: str) -> Fault:
    return refusal(429, headers=((name, value),))


@pytest.mark.parametrize(
    ("fault", "kind", "wait_s"),
    [(refusal(503), "server", 0.0), (busy("retry-after-ms", "5000"), "rate_limit", 5.0)],
)
async def test_the_server_is_asked_again_when_the_device_that_took_over_dies(fault, kind, wait_s):
    server = MemoryServer(befallen(fault), befallen(None))
    async with asking(server, device(fault=Simulated(4, kind=FailureKind.CRASHED)), max_retries=1) as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", kind), ("device", "crashed"), ("server", None)]
    assert wait_s <= answer.route.attempts[2].started_s < wait_s + 1.0


async def test_a_server_that_comes_back_is_found():
    server = MemoryServer(*[befallen(Fault(Kind.REFUSE))] * 5, befallen(None))
    async with asking(server, max_retries=8) as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", "connection")] * 5 + [("server", None)]


LATER = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


@pytest.mark.parametrize("wait", ["3600", "3600.0", pytest.param(LATER, id="date")])
async def test_a_rate_limit_that_outlasts_the_deadline_is_not_waited_for(wait):
    """Read wrongly, as no number or no date, it would be asked again after the usual back-off."""
    server = MemoryServer(befallen(busy("Retry-After", wait)))
    async with asking(server, max_retries=2) as client:
        answer = await get(client, extra_body={"disco": {"deadline_s": 20}})
    assert isinstance(answer.error, openai.RateLimitError)
    assert answer.attempts == [("server", "rate_limit")]
    assert len(server.requests) == 1


@pytest.mark.parametrize("wait_s", [0.02, 0.7])
async def test_a_rate_limit_is_waited_for_as_long_as_it_says(wait_s):
    server = MemoryServer(befallen(busy("retry-after-ms", f"{1e3 * wait_s:g}")), befallen(None))
    async with asking(server, max_retries=1) as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", "rate_limit"), ("server", None)]
    assert answer.route.attempts[1].started_s == pytest.approx(wait_s, abs=0.01)
