"""The server fails, at every moment and in every way, and the device goes on: the reader sees one answer."""

from __future__ import annotations

import moved_clock
import pytest
from faults.cases import FAILING, Case, each
from faults.fault import Direction, Fault, Kind, Moment
from faults.lab import PATIENT, asking, calm, device, get, nothing_left
from faults.origin import TEXT

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return moved_clock.backend(request.param)


def writers(case: Case) -> list[list[str]]:
    """Who may have written the answer."""
    match case.fault:
        case Fault(moment=Moment.LAST):  # the device may find nothing to add
            return [["server", "device"], ["server"]]
        case (
            Fault(kind=Kind.RESET, moment=Moment.MIDDLE)
            | Fault(kind=Kind.HALF_CLOSE, direction=Direction.UP, moment=Moment.FIRST)
        ):  # a reset may take with it what was not read yet; a server may take its time to notice
            return [["server", "device"], ["device"]]
        case Fault(moment=Moment.MIDDLE, after_bytes=None):
            return [["server", "device"]]
        case Fault(moment=Moment.MIDDLE, after_bytes=int(passed)):
            return [["server", "device"] if passed > 1500 else ["device"]]
    return [["device"]]


@each(FAILING)
async def test_the_device_goes_on_where_the_server_stopped(proxy, case):
    async with asking(proxy, device()) as client:
        proxy.arm([case.fault])
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("device", None)]
    # What the server wrote stays; the device writes on from the last whole word of it.
    assert answer.writers in writers(case)
    if answer.writers == ["server", "device"]:
        assert 0 < answer.route.attempts[1].prefix_chars <= answer.route.segments[-1].start_char
    if case.fault.kind is Kind.BLACK_HOLE:  # by the clock of connecting, not by the one of the first content
        assert answer.route.attempts[0].ended_s < PATIENT.first_content_s
    if case.fault.kind not in (Kind.REFUSE, Kind.BLACK_HOLE):
        assert [p.struck for p in proxy.passages] == [True]
    await nothing_left(proxy)


def test_the_text_has_what_a_cut_could_damage():
    assert {len(character.encode()) for character in TEXT} == {1, 2, 3, 4}
