"""The device fails and the server behind the proxy goes on; and then the server fails as well."""

from __future__ import annotations

import math

import openai
import pytest
from faults.cases import FAILING, FINE, each
from faults.fault import Fault, Kind, Moment
from faults.lab import asking, calm, device, get, nothing_left
from faults.origin import TEXT

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

LAST = len(tokenise(TEXT))
MOMENTS = {"before the first token": 0, "after one token": 1, "in mid-answer": 12, "before its end": LAST}
at_each_moment = pytest.mark.parametrize("after", MOMENTS.values(), ids=MOMENTS.keys())
FAILURES = [FailureKind.CRASHED, FailureKind.INCOMPLETE, FailureKind.SEAM, FailureKind.CONTEXT_LENGTH]


class Breaking(SimulatedEndpoint):
    """A device with a bug: what it raises is none of the exceptions an endpoint may raise."""

    def open(self, *arguments):
        attempt = super().open(*arguments)
        step, left = attempt.__anext__, [self.after]

        class Attempt(type(attempt)):
            async def __anext__(self):
                if not left[0]:
                    raise ZeroDivisionError("a bug")
                left[0] -= 1
                return await step()

        attempt.__class__ = Attempt
        return attempt


def handed_over(answer, origin, after: int) -> None:
    """The server was given what the device wrote, less a last word, and wrote on from there."""
    last = origin.bodies[-1]["messages"][-1]
    if after <= 1:  # of a first word that was shown, nothing can be sent: the server writes it again
        assert last["role"] == "user"
        assert answer.writers == ["device", "server"][1 - after :]
        return
    written = "".join(tokenise(TEXT)[:after])
    assert last["role"] == "assistant"
    assert written.startswith(last["content"])
    assert (
        0 < len(written) - len(last["content"]) <= len(" hinausfährt,")
    )  # the last word, which may be half of one
    assert answer.writers == ["device", "server"][: 1 if after == LAST else 2]


@at_each_moment
@pytest.mark.parametrize("kind", FAILURES, ids=str)
async def test_the_server_goes_on_where_the_device_stopped(proxy, origin, kind, after):
    local = device(fault=Simulated(after, kind=kind))
    async with asking(proxy, local, policy="device_only") as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("device", kind), ("server", None)]
    handed_over(answer, origin, after)
    assert local.busy == 0
    await nothing_left(proxy)


@at_each_moment
async def test_a_device_that_falls_silent_is_replaced(proxy, origin, after):
    local = device(fault=Simulated(after, silence_s=math.inf, kind=None))
    async with asking(proxy, local, policy="device_only") as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("device", "stalled" if after else "timeout"), ("server", None)]
    handed_over(answer, origin, after)
    assert local.busy == 0


@pytest.mark.parametrize("after", [0, 12])
async def test_a_device_with_a_bug_is_replaced(proxy, origin, after):
    local = Breaking("device", device().profile, place="device")
    local.after = after
    async with asking(proxy, local, policy="device_only") as client:
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("device", "crashed"), ("server", None)]
    handed_over(answer, origin, after)


@each([case for case in FAILING if not case.silent])  # silence is waited for elsewhere
async def test_when_both_fail_the_first_error_is_raised_with_all_that_was_written(proxy, case):
    local = device(fault=Simulated(12, kind=FailureKind.CRASHED))
    async with asking(proxy, local, policy="device_only") as client:
        proxy.arm([case.fault])
        answer = await get(client)
    assert type(answer.error).__name__ == "LocalModelError"
    assert answer.attempts == [("device", "crashed"), ("server", case.failure)]
    written = "".join(tokenise(TEXT)[:12])
    assert answer.text.startswith(written)
    assert TEXT.startswith(answer.text)
    await nothing_left(proxy)


@each([case for case in FINE if case.fault.kind is not Kind.RESET])
async def test_a_server_that_goes_on_may_have_its_oddities(proxy, case):
    local = device(fault=Simulated(12, kind=FailureKind.CRASHED))
    async with asking(proxy, local, policy="device_only") as client:
        proxy.arm([case.fault])
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("device", "crashed"), ("server", None)]


async def test_who_has_written_on_behind_a_seam_is_not_sent_back_to_it(proxy):
    """Only who stumbles at the seam itself may go on behind the last word; what came since was read."""
    local = device(fault=Simulated(20, kind=FailureKind.SEAM))
    async with asking(proxy, local) as client:
        proxy.arm([Fault(Kind.CLOSE, Moment.MIDDLE)])
        answer = await get(client)
    assert answer.error is not None
    assert TEXT.startswith(answer.text)
    assert answer.attempts == [("server", "connection"), ("device", "seam")]


@each([case for case in FAILING if case.fault.moment is Moment.MIDDLE and not case.silent])
async def test_a_server_that_goes_on_and_fails_is_asked_once_more(proxy, case, monkeypatch):
    monkeypatch.setattr("disco.session.switching.failover_rule.RETRY_S", 0.01)
    local = device(fault=Simulated(12, kind=FailureKind.CRASHED))
    async with asking(proxy, local, policy="device_only", max_retries=1) as client:
        proxy.arm([case.fault, None])
        answer = await get(client)
    if case.failure is FailureKind.GARBAGE:
        assert isinstance(answer.error, openai.APIError)
        return
    calm(answer)
    assert answer.attempts == [("device", "crashed"), ("server", case.failure), ("server", None)]
