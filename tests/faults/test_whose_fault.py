"""What starts no other endpoint: oddities, mistakes of the caller's, and that there is none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import openai
import pytest
from faults.cases import CASES, FAILING, FINE, OF_THE_CALLER, RETRIED, each
from faults.fault import Fault, Kind, Moment, refusal
from faults.lab import asking, calm, device, get, nothing_left
from faults.origin import TEXT

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.errors import FailureKind
from disco.session.switching import failover_rule

pytestmark = pytest.mark.anyio


@each(FINE)
async def test_what_is_no_failure_starts_nobody(proxy, case):
    async with asking(proxy, device()) as client:
        proxy.arm([case.fault])
        answer = await get(client)
    calm(answer)
    if case.fault.kind is not Kind.RESET:  # which may take the finish reason with it
        assert answer.attempts == [("server", None)]
    assert [p.struck for p in proxy.passages] == [True]
    await nothing_left(proxy)


@each(OF_THE_CALLER)
async def test_a_mistake_of_the_callers_starts_nobody_and_is_raised(proxy, case):
    async with asking(proxy, device(), max_retries=2) as client:
        proxy.arm([case.fault])
        answer = await get(client)
    assert isinstance(answer.error, openai.APIStatusError)
    assert answer.attempts == [("server", case.failure)]
    assert len(proxy.passages) == 1
    await nothing_left(proxy)


@each([case for case in FAILING if case.fault.moment in (Moment.MIDDLE, Moment.LAST) and not case.silent])
async def test_a_whole_answer_is_begun_anew_or_gone_on_with_and_is_whole(proxy, case):
    async with asking(proxy, device()) as client:
        proxy.arm([case.fault])
        answer = await get(client, stream=False)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("device", None)]


@each(FAILING)
async def test_alone_it_is_raised_with_what_was_written(proxy, case):
    async with asking(proxy) as client:
        proxy.arm([case.fault])
        answer = await get(client)  # which compares the error's `partial_text` with what was read
    assert isinstance(answer.error, openai.APIError)
    assert answer.attempts == [("server", case.failure)]
    assert TEXT.startswith(answer.text)
    if case.fault.moment is Moment.MIDDLE and case.fault.kind is not Kind.RESET:
        assert answer.text or case.fault.after_bytes in (1, 300)
    assert answer.route.finish_reason is None
    await nothing_left(proxy)


# Not where the door stays shut, and not where the server asks for more patience than a test has: see below.
@each([c for c in RETRIED if c.fault.kind not in (Kind.REFUSE, Kind.BLACK_HOLE) and not c.fault.headers])
async def test_alone_it_is_asked_again_and_goes_on_where_it_stopped(proxy, case, monkeypatch):
    monkeypatch.setattr(failover_rule, "RETRY_S", 0.01)
    async with asking(proxy, max_retries=1) as client:
        proxy.arm([case.fault, None])
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", case.failure), ("server", None)]
    await nothing_left(proxy)


@each([case for case in RETRIED if case.fault.moment is Moment.MIDDLE and not case.silent])
async def test_a_whole_answer_that_nobody_can_continue_is_begun_anew(proxy, case, monkeypatch):
    """Nothing of it was shown; the plain SDK would ask again as well."""
    monkeypatch.setattr(failover_rule, "RETRY_S", 0.01)
    async with asking(proxy, continuation="none", max_retries=1) as client:
        proxy.arm([case.fault, None])
        answer = await get(client, stream=False)
        calm(answer)
        assert answer.attempts == [("server", case.failure), ("server", None)]
        assert answer.route.attempts[1].prefix_chars == 0
        proxy.arm([case.fault, None])
        answer = await get(client)  # shown, it cannot be taken back
    if answer.error is None:  # none had been
        assert case.fault.kind is Kind.RESET or case.fault.after_bytes in (1, 300)
        calm(answer)
    else:
        assert answer.attempts == [("server", case.failure)]
        assert isinstance(answer.error, openai.APIError)


@pytest.mark.parametrize("asks_to_wait", [False, True])
async def test_the_server_is_asked_again_when_the_device_that_took_over_dies(
    proxy, monkeypatch, asks_to_wait
):
    monkeypatch.setattr(failover_rule, "RETRY_S", 0.01)
    broken = device(fault=Simulated(4, kind=FailureKind.CRASHED))
    async with asking(proxy, broken, max_retries=1) as client:
        busy = refusal(429, headers=(("retry-after-ms", "150"),))
        proxy.arm([busy if asks_to_wait else refusal(503), None])
        answer = await get(client)
    calm(answer)
    kind = "rate_limit" if asks_to_wait else "server"
    assert answer.attempts == [("server", kind), ("device", "crashed"), ("server", None)]
    if asks_to_wait:
        assert answer.route.attempts[2].started_s >= 0.15


@each([case for case in CASES if case.failure is not None and case not in RETRIED])
async def test_what_would_be_the_same_again_is_not_asked_again(proxy, case, monkeypatch):
    monkeypatch.setattr(failover_rule, "RETRY_S", 0.01)
    async with asking(proxy, max_retries=2) as client:
        proxy.arm([case.fault])
        answer = await get(client)
    assert answer.error is not None
    assert answer.attempts == [("server", case.failure)]
    assert len(proxy.passages) == 1


async def test_a_server_that_comes_back_is_found(proxy, monkeypatch):
    monkeypatch.setattr(failover_rule, "RETRY_S", 0.05)
    async with asking(proxy, max_retries=8) as client, anyio.create_task_group() as group:
        proxy.arm([Fault(Kind.REFUSE)])

        async def ask() -> None:
            answers.append(await get(client))

        answers = []
        group.start_soon(ask)
        await anyio.sleep(0.1)
        proxy.arm([])
    calm(answers[0])
    assert {t.failure for t in answers[0].route.attempts[:-1]} == {"connection"}


LATER = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


@pytest.mark.parametrize("wait", ["3600", "3600.0", pytest.param(LATER, id="date")])
async def test_a_rate_limit_that_outlasts_the_deadline_is_not_waited_for(proxy, wait):
    """Read wrongly, as no number or no date, it would be asked again after the usual back-off."""
    async with asking(proxy, max_retries=2) as client:
        proxy.arm([refusal(429, headers=(("Retry-After", wait),))])
        answer = await get(client, extra_body={"disco": {"deadline_s": 20}})
    assert isinstance(answer.error, openai.RateLimitError)
    assert answer.attempts == [("server", "rate_limit")]
    assert len(proxy.passages) == 1


async def test_a_rate_limit_is_waited_for_no_longer_than_it_says(proxy, monkeypatch):
    monkeypatch.setattr(failover_rule, "RETRY_S", 1000.0)
    async with asking(proxy, max_retries=1) as client:
        proxy.arm([refusal(429, headers=(("retry-after-ms", "20"),)), None])
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", "rate_limit"), ("server", None)]
