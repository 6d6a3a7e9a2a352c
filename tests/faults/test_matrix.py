"""Every fault of the table, at every moment, in virtual time: who goes on, who is asked again, and the simulator too.

Client, adapter and session are real, the connection is in memory; `test_sockets` holds that to real connections.
"""

from __future__ import annotations

import anyio
import httpx2
import openai
import pytest
from faults.cases import FAILING, FINE, OF_THE_CALLER, RETRIED, each, simulated
from faults.in_memory import MemoryServer, Reply, befallen
from faults.lab import VIRTUAL, Answer, asking, calm, device, get
from faults.proxy_server.fault import Kind, Moment
from faults.proxy_server.origin import TEXT, answer_events
from session.plays import play

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind
from disco.plan import Plan, Start

pytestmark = pytest.mark.anyio
on_trio = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
SDK = openai.OpenAI(api_key="x")
FIRST_RETRY_S = 0.5
CRASH = Fault(12, kind=FailureKind.CRASHED)
IN_THE_MIDDLE = [case for case in FAILING if case.fault.moment is Moment.MIDDLE]


async def ask(case, local=None, *, stream=True, once=True, **more) -> tuple[Answer, MemoryServer]:
    """An answer that the fault befalls; further requests go well, unless it is not only `once`."""

    began = anyio.current_time()

    def good(asked):
        # What is asked again at once, without what disco has added, fares no better; a retry waits first.
        is_amended = len(server.requests) == 2 and asked.get("model") and "stream_options" not in asked
        is_amended = is_amended and anyio.current_time() - began < FIRST_RETRY_S
        reply = befallen(case.fault if is_amended else None)
        return reply(asked) if callable(reply) else reply

    server = MemoryServer(befallen(case.fault), *[good] * once)
    async with asking(server, local, **more) as client:
        answer = await get(client, stream=stream)
    assert (server.open, local.busy if local else 0) == (0, 0)
    return answer, server


def goes_as_simulated(case, live: Answer, *fallbacks: str) -> None:
    """The same fault in the event simulator: the same failures, the same decisions and the same cuts."""
    profiles = {
        "server": SimulatedProfile(answer=TEXT, ttft_s=0.01, decode_tps=1000.0, fault=simulated(case)),
        **{name: SimulatedProfile(answer=TEXT, decode_tps=5000.0) for name in fallbacks},
    }
    run = play(profiles, Plan((Start("server"),), fallbacks), timeouts=VIRTUAL, max_retries=1)
    attempts = run.session.attempts
    assert (run.error is None) == (live.error is None)
    assert run.finished == live.route.finish_reason
    if fallbacks or case.fault.moment is not Moment.LAST:  # with all written, nothing is lost the second time
        assert live.attempts == [(a.candidate.name, a.failure) for a in attempts]
    if fallbacks and case.fault.moment is Moment.MIDDLE and case.fault.after_bytes is None:
        cuts = [(t.prefix_chars, t.tokens) for t in live.route.attempts]
        assert cuts == [(len(a.prefix.text), a.tokens) for a in attempts]


def shows_text(case) -> bool:
    return case.fault.moment in (Moment.MIDDLE, Moment.LAST) and case.fault.after_bytes not in (1, 300)


@each(FAILING)
async def test_the_device_goes_on_where_the_server_stopped(case):
    answer, _ = await ask(case, device())
    calm(answer)
    if (case.fault.kind, case.fault.moment) == (
        Kind.THROTTLE,
        Moment.HEAD,
    ):  # it lives: the device starts beside it
        assert answer.attempts == [("server", None), ("device", None)]
        return
    goes_as_simulated(case, answer, "device")
    assert answer.attempts == [("server", case.failure), ("device", None)]
    lost, next_one = answer.route.attempts
    begun = ["server"] * shows_text(case)
    # Behind the last token the device may find nothing to add.
    assert answer.writers in ([*begun, "device"], ["server"] if case.fault.moment is Moment.LAST else None)
    if len(answer.writers) == 2:  # from the last whole word
        assert 0 < next_one.prefix_chars <= answer.route.segments[-1].start_char
    # It is charged for what it was at work on: not where it never was, or turned the request away.
    in_an_answer = case.fault.moment in (Moment.FIRST, Moment.MIDDLE, Moment.LAST)
    assert (lost.policy_cost > 0) == (case.silent or in_an_answer or case.fault.kind is Kind.PAGE)
    if case.fault.moment is Moment.MIDDLE and case.fault.after_bytes is None:
        assert lost.completion_tokens >= case.fault.tokens

    answer, _ = await ask(case, device(), stream=False)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("device", None)]


@on_trio
@each([*FAILING, *OF_THE_CALLER])
async def test_alone_it_is_raised_with_what_was_written_and_asked_again_where_that_may_help(case):
    """A mistake of the caller's is raised even where there is a device."""
    local = device() if case in OF_THE_CALLER else None
    answer, _ = await ask(case, local)  # `get` compares the error's `partial_text` with what was read
    assert isinstance(answer.error, openai.APIError)
    if case.fault.kind is Kind.STATUS:  # the same class as the SDK's
        response = httpx2.Response(case.fault.status, request=httpx2.Request("POST", MemoryServer.base_url))
        assert type(answer.error) is type(SDK._make_status_error("", body=None, response=response))
    assert answer.attempts == [("server", case.failure)]
    assert TEXT.startswith(answer.text)
    assert bool(answer.text) == shows_text(case)
    assert answer.route.finish_reason is None

    answer, server = await ask(case, local, max_retries=1)
    again = case in RETRIED
    assert answer.attempts == [("server", case.failure), ("server", None)][: 1 + again]
    at_once = case.fault.kind is Kind.STATUS and case.fault.status == 500  # without what disco has added
    assert len(server.requests) == 1 + again + at_once
    if again:
        calm(answer)
        waited_s = answer.route.attempts[1].started_s - answer.route.attempts[0].ended_s
        assert waited_s == pytest.approx(3.0 if case.fault.headers else 0.5, abs=0.1)
    else:
        assert answer.error is not None
    goes_as_simulated(
        case, (await ask(case, local, once=False, max_retries=1))[0], *["device"] * (local is not None)
    )


@on_trio
@each(FINE)
async def test_what_is_no_failure_starts_no_other_endpoint(case):
    answer, server = await ask(case, device())
    calm(answer)
    goes_as_simulated(case, answer, "device")
    assert answer.attempts == [("server", None)]
    assert len(server.requests) == 1
    answer, _ = await ask(case, device(fault=CRASH), policy="device_only")
    calm(answer)
    assert answer.attempts == [("device", "crashed"), ("server", None)]


@each(FAILING)
async def test_when_both_fail_the_first_error_is_raised_with_all_that_was_written(case):
    answer, _ = await ask(case, device(fault=CRASH), policy="device_only")
    assert type(answer.error).__name__ == "LocalModelError"
    assert answer.attempts == [("device", "crashed"), ("server", case.failure)]
    assert answer.text.startswith("".join(tokenise(TEXT)[:12]))
    assert TEXT.startswith(answer.text)


@each(IN_THE_MIDDLE)
async def test_what_broke_off_in_the_middle_is_asked_once_more(case):
    """Where nothing can continue it, it is begun anew if nothing of it was shown."""
    answer, _ = await ask(case, device(fault=CRASH), policy="device_only", max_retries=1)
    if case not in RETRIED:
        assert isinstance(answer.error, openai.APIError)
        return
    calm(answer)
    assert answer.attempts == [("device", "crashed"), ("server", case.failure), ("server", None)]
    answer, _ = await ask(case, stream=False, continuation="none", max_retries=1)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("server", None)]
    assert answer.route.attempts[1].prefix_chars == 0
    answer, _ = await ask(case, continuation="none", max_retries=1)
    assert (answer.error is None) == (not shows_text(case))


@pytest.mark.parametrize("broken", [b'data: {"error": {"message": "Boom."}}\n\n', b"data: {oops\n\n"])
async def test_what_came_in_the_same_packet_as_an_error_came_before_it(broken):
    text = b"".join(event.data for event in answer_events(TEXT)[:6])
    async with asking(MemoryServer(Reply([text + broken]))) as client:
        answer = await get(client)
    assert answer.text == "".join(tokenise(TEXT)[:5])
    assert answer.attempts[0][1] in ("server", "garbage")
