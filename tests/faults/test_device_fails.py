"""The device fails and the server goes on, at every moment, in virtual time."""

from __future__ import annotations

import math

import pytest
from faults.in_memory import MemoryServer, anyio_backend, befallen  # noqa: F401 - a fixture
from faults.lab import asking, calm, device, get
from faults.proxy_server.fault import Fault, Kind, Moment
from faults.proxy_server.origin import TEXT, begun_by

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

LAST = len(tokenise(TEXT))
FAILURES = [FailureKind.CRASHED, FailureKind.INCOMPLETE, FailureKind.SEAM, FailureKind.CONTEXT_LENGTH]


class Breaking(SimulatedEndpoint):
    """A device with a bug: after so many tokens it raises what no endpoint may raise."""

    def __init__(self, after: int) -> None:
        super().__init__("device", device().profile, place="device")
        self.after = after

    def open(self, *arguments):
        attempt, after = super().open(*arguments), self.after
        step = attempt.__anext__

        class Attempt(type(attempt)):
            async def __anext__(self):
                if self.usage.completion_tokens >= after:
                    raise ZeroDivisionError("a bug")
                return await step()

        attempt.__class__ = Attempt
        return attempt


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize(
    "after", [0, 1, 12, LAST], ids=["at first", "after a token", "in the middle", "at last"]
)
@pytest.mark.parametrize("how", [*FAILURES, "silent", "bug"])
async def test_the_server_goes_on_where_the_device_stopped(how, after):
    if how == "silent":
        local = device(fault=Simulated(after, silence_s=math.inf, kind=None))
        failure = "stalled" if after else "timeout"
    elif how == "bug":
        local, failure = Breaking(after), "crashed"
    else:
        local, failure = device(fault=Simulated(after, kind=how)), how
    server = MemoryServer(befallen(None))
    async with asking(server, local, policy="device_only") as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("device", failure), ("server", None)]
    assert local.busy == 0

    # The server was given what the device wrote, less a last word that may be half of one.
    begun, written = begun_by(server.requests[-1]), "".join(tokenise(TEXT)[:after])
    assert written.startswith(begun)
    if after <= 1:  # of a first word that was shown, nothing can be sent: the server writes it again
        assert begun == ""
        assert answer.writers == ["device", "server"][1 - after :]
    else:
        assert 0 < len(written) - len(begun) <= len(" hinausfährt,")
        assert begun
        assert answer.writers == ["device", "server"][: 1 if after == LAST else 2]


async def test_an_endpoint_that_fails_at_a_seam_far_behind_it_is_not_sent_back_to_it():
    """Only one that stumbles at the seam itself may go on behind the last word; what came since was read."""
    local = device(fault=Simulated(20, kind=FailureKind.SEAM))
    async with asking(MemoryServer(befallen(Fault(Kind.CLOSE, Moment.MIDDLE))), local) as client:
        answer = await get(client)
    assert answer.error is not None
    assert TEXT.startswith(answer.text)
    assert answer.attempts == [("server", "connection"), ("device", "seam")]
