"""Every fault of the table, at every moment and in both directions, in virtual time: who goes on, who is asked again.

Client, adapter and session are real, the connection is in memory; `test_sockets` holds that to real connections.
"""

from __future__ import annotations

import openai
import pytest
from faults.cases import CASES, FAILING, FINE, OF_THE_CALLER, RETRIED, each
from faults.in_memory import MemoryServer, Reply, anyio_backend, befallen  # noqa: F401 - a fixture
from faults.lab import VIRTUAL, Answer, asking, calm, device, get
from faults.proxy_server.fault import Fault, Kind, Moment
from faults.proxy_server.origin import TEXT, answer_events

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio
both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
CRASH = Simulated(12, kind=FailureKind.CRASHED)
IN_AN_ANSWER = (Moment.FIRST, Moment.MIDDLE, Moment.LAST)
IN_THE_MIDDLE = [case for case in FAILING if case.fault.moment is Moment.MIDDLE]


async def ask(case, local=None, *, stream=True, **more) -> tuple[Answer, MemoryServer]:
    """An answer that the fault befalls; further requests go well."""
    server = MemoryServer(befallen(case.fault), befallen(None))
    async with asking(server, local, **more) as client:
        answer = await get(client, stream=stream)
    assert local is None or local.busy == 0
    return answer, server


def writers(fault: Fault) -> list[list[str]]:
    """Which endpoints may have written the answer when the device takes over."""
    match fault:
        case Fault(moment=Moment.LAST):  # the device may find nothing to add
            return [["server", "device"], ["server"]]
        case Fault(moment=Moment.MIDDLE, after_bytes=None):
            return [["server", "device"]]
        case Fault(moment=Moment.MIDDLE, after_bytes=int(passed)) if passed > 1500:
            return [["server", "device"]]
    return [["device"]]


@both_loops
@each(FAILING)
async def test_the_device_goes_on_where_the_server_stopped(case):
    answer, _ = await ask(case, device())
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("device", None)]
    assert answer.writers in writers(case.fault)
    if answer.writers == ["server", "device"]:  # from the last whole word
        assert 0 < answer.route.attempts[1].prefix_chars <= answer.route.segments[-1].start_char
    lost = answer.route.attempts[0]
    # It is charged for what it was at work on: not where it never was, or turned the request away.
    assert (lost.cost > 0) == (
        case.silent or case.fault.moment in IN_AN_ANSWER or case.fault.kind is Kind.PAGE
    )
    if case.fault.moment is Moment.MIDDLE and case.fault.after_bytes is None:
        assert lost.completion_tokens >= case.fault.tokens


@each(FINE)
async def test_what_is_no_failure_starts_no_other_endpoint(case):
    answer, server = await ask(case, device())
    calm(answer)
    assert answer.attempts == [("server", None)]
    assert len(server.requests) == 1


@each(OF_THE_CALLER)
async def test_a_mistake_of_the_callers_is_raised_and_starts_no_other_endpoint(case):
    answer, server = await ask(case, device(), max_retries=2)
    assert isinstance(answer.error, openai.APIStatusError)
    assert answer.attempts == [("server", case.failure)]
    assert len(server.requests) == 1


@each(FAILING)
async def test_a_whole_answer_is_whole(case):
    answer, _ = await ask(case, device(), stream=False)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("device", None)]


@each(FAILING)
async def test_alone_it_is_raised_with_what_was_written(case):
    answer, _ = await ask(case)  # `get` compares the error's `partial_text` with what was read
    assert isinstance(answer.error, openai.APIError)
    assert answer.attempts == [("server", case.failure)]
    assert TEXT.startswith(answer.text)
    shown = case.fault.moment in (Moment.MIDDLE, Moment.LAST) and case.fault.after_bytes not in (1, 300)
    assert bool(answer.text) == shown
    assert answer.route.finish_reason is None


@pytest.mark.parametrize("broken", [b'data: {"error": {"message": "Boom."}}\n\n', b"data: {oops\n\n"])
async def test_what_came_in_the_same_packet_as_an_error_came_before_it(broken):
    text = b"".join(event.data for event in answer_events(TEXT)[:6])
    async with asking(MemoryServer(Reply([text + broken]))) as client:
        answer = await get(client)
    assert answer.text == "".join(tokenise(TEXT)[:5])
    assert answer.attempts[0][1] in ("server", "garbage")


@each([case for case in CASES if case.failure is not None])
async def test_alone_it_is_asked_again_where_that_may_help(case):
    answer, server = await ask(case, max_retries=1)
    again = case in RETRIED
    assert answer.attempts == [("server", case.failure), ("server", None)][: 1 + again]
    assert len(server.requests) == 1 + again
    if again:
        calm(answer)
        waited_s = answer.route.attempts[1].started_s - answer.route.attempts[0].ended_s
        assert waited_s == pytest.approx(3.0 if case.fault.headers else 0.5, abs=0.1)
    else:
        assert answer.error is not None


@each([case for case in IN_THE_MIDDLE if case in RETRIED])
async def test_a_whole_answer_that_nothing_can_continue_is_begun_anew(case):
    """Nothing of it was shown. What was shown cannot be taken back."""
    answer, _ = await ask(case, stream=False, continuation="none", max_retries=1)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("server", None)]
    assert answer.route.attempts[1].prefix_chars == 0
    answer, _ = await ask(case, continuation="none", max_retries=1)
    assert (answer.error is None) == (case.fault.after_bytes in (1, 300))  # no text had come


@each(FAILING)
async def test_when_both_fail_the_first_error_is_raised_with_all_that_was_written(case):
    answer, _ = await ask(case, device(fault=CRASH), policy="device_only")
    assert type(answer.error).__name__ == "LocalModelError"
    assert answer.attempts == [("device", "crashed"), ("server", case.failure)]
    assert answer.text.startswith("".join(tokenise(TEXT)[:12]))
    assert TEXT.startswith(answer.text)


@each(FINE)
async def test_a_server_that_goes_on_may_have_its_oddities(case):
    answer, _ = await ask(case, device(fault=CRASH), policy="device_only")
    calm(answer)
    assert answer.attempts == [("device", "crashed"), ("server", None)]


@each(IN_THE_MIDDLE)
async def test_a_server_that_goes_on_and_fails_is_asked_once_more(case):
    answer, _ = await ask(case, device(fault=CRASH), policy="device_only", max_retries=1)
    if case in RETRIED:
        calm(answer)
        assert answer.attempts == [("device", "crashed"), ("server", case.failure), ("server", None)]
    else:
        assert isinstance(answer.error, openai.APIError)


def test_the_text_has_what_a_cut_could_damage():
    assert {len(character.encode()) for character in TEXT} == {1, 2, 3, 4}


def test_the_clocks_tell_silence_from_slowness():
    assert VIRTUAL.connect_s < VIRTUAL.first_content_s  # or a black hole would be told by the wrong clock
