"""The device fails and the server goes on, and when a server is asked again, in virtual time."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import openai
import pytest
from faults.in_memory import MemoryServer, befallen
from faults.lab import asking, calm, device, get
from faults.proxy_server.fault import Fault, Kind, Moment, refusal
from faults.proxy_server.origin import TEXT, begun_by
from scripted_device import ScriptedDevice

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind
from disco.events import Delta

pytestmark = pytest.mark.anyio

TOKENS = tokenise(TEXT)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize("after", [0, 1, 12, len(TOKENS)])
@pytest.mark.parametrize("how", ["crashed", "seam", "silent", "bug"])
async def test_the_server_goes_on_where_the_device_stopped(how, after):
    local = device(fault=Simulated(after, kind=FailureKind.CRASHED if how == "crashed" else FailureKind.SEAM))
    failure = how
    if how == "silent":
        local = device(fault=Simulated(after, silence_s=math.inf, kind=None))
        failure = "stalled" if after else "timeout"
    elif how == "bug":  # it raises what no endpoint may raise
        local = ScriptedDevice(
            lambda _: [*([Delta(text)] for text in TOKENS[:after]), ZeroDivisionError("a bug")]
        )
        failure = "crashed"
    server = MemoryServer(befallen(None))
    async with asking(server, local, policy="device_only") as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("device", failure), ("server", None)]
    assert local.closed == 1 if how == "bug" else local.busy == 0

    # The server was given what the device wrote, less a last word that may be half of one.
    begun, written = begun_by(server.requests[-1]), "".join(TOKENS[:after])
    assert written.startswith(begun)
    if after <= 1:  # of a first word that was shown, nothing can be sent: the server writes it again
        assert begun == ""
        assert answer.writers == ["device", "server"][1 - after :]
    else:
        assert begun
        assert 0 < len(written) - len(begun) <= len(" hinausfährt,")
        assert answer.writers == ["device", "server"][: 1 if after == len(TOKENS) else 2]


async def test_an_endpoint_that_fails_at_a_seam_far_behind_it_is_not_sent_back_to_it():
    """Only one that stumbles at the seam itself may go on behind the last word; what came since was read."""
    local = device(fault=Simulated(20, kind=FailureKind.SEAM))
    async with asking(MemoryServer(befallen(Fault(Kind.CLOSE, Moment.MIDDLE))), local) as client:
        answer = await get(client)
    assert answer.error is not None
    assert TEXT.startswith(answer.text)
    assert answer.attempts == [("server", "connection"), ("device", "seam")]


LATER = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


@pytest.mark.parametrize("wait", ["3600", "3600.0", pytest.param(LATER, id="date")])
async def test_a_rate_limit_that_outlasts_the_deadline_is_not_waited_for(wait):
    """Read wrongly, as no number or no date, it would be asked again after the usual back-off."""
    server = MemoryServer(befallen(refusal(429, headers=(("Retry-After", wait),))))
    async with asking(server, max_retries=2) as client:
        answer = await get(client, extra_body={"disco": {"deadline_s": 20}})
    assert isinstance(answer.error, openai.RateLimitError)
    assert answer.attempts == [("server", "rate_limit")]
