"""A split model in its host: what a session learns of an answer is what it would learn in one process, and a host that
ends in mid-answer costs no text.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from dataclasses import replace

import anyio
import httpx2
import openai
import pytest

from disco import AsyncDisco
from disco.endpoints.event_coding import speculation_fields, speculation_of, usage_of, used
from disco.endpoints.host.host_split import HostSplit
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, Ended, SpeculationReport, Usage
from disco.testing.asking import next_event
from tests.endpoints.split.asking import ask, asked, running, split_of, whole_of
from tests.endpoints.split.layer_stand_in import LayerStandIn
from tests.endpoints.split.test_faults import CHUNKS, scripted
from tests.endpoints.split.test_split_client import PARAMS, Other, preset, split, whole_answer

pytestmark = [pytest.mark.real, pytest.mark.anyio]
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="it is killed by signals here")

STORY = "Once upon a time there was a mill at a river, and the miller said: "
REQUEST = ask(STORY, temperature=0.8, seed=3, max_tokens=16)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def told(endpoint, request=REQUEST):
    """The deltas of an answer, its end, and its attempt."""
    attempt, deltas = endpoint.open(request), []
    async with attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                return deltas, event, attempt
            deltas += event if isinstance(event, list) else []
    raise AssertionError("no end")


def content(deltas: list[Delta]):
    return [(one.text, one.ids, one.tokens, one.logprobs) for one in deltas]


async def test_an_undrafted_answer_is_told_as_in_one_process(tiny):
    """Each has a server of its own, which has read nothing before."""
    found = []
    requests = [REQUEST, ask(STORY, max_tokens=4, logprobs=True, top_logprobs=2)]
    for kind in ({}, {"made": HostSplit}):
        with closing(LayerStandIn(tiny.cloud)) as server:
            async with running(split_of(tiny, server, chunks=16, **kind)) as endpoint:
                able = endpoint.capabilities()
                for request in requests:
                    deltas, ended, attempt = await told(endpoint, request)
                    seconds = {"verify_s": 0, "wire_s": 0, "queue_s": 0, "timed_windows": ()}
                    report = speculation_fields(attempt.speculation, 0) | seconds
                    outcome = content(deltas), ended, attempt.usage, attempt.traffic, attempt.seam, report
                    found.append((*outcome, able))
    assert found[: len(requests)] == found[len(requests) :]
    _, ended, usage, traffic, *_ = found[0]
    assert (ended.finish_reason, ended.usage) == ("length", usage)
    assert usage.shares == (("split", Usage(usage.prompt_tokens, 16)),)
    assert traffic.bytes_up > 4 * 64 * len(STORY)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_drafted_answer_brings_its_report_its_shares_and_its_times(tiny, stand_in, anyio_backend):
    stand_in.delay_s = 0.01
    async with running(whole_of(tiny, batch_tokens=16)) as whole:
        wanted = await asked(whole, REQUEST)
    endpoint = split_of(tiny, stand_in, drafted=True, chunks=16, branches=2, made=HostSplit)
    async with running(endpoint):
        began_at = anyio.current_time()
        deltas, ended, attempt = await told(endpoint)
        ended_at = anyio.current_time()
    assert "".join(one.text for one in deltas) == wanted.text
    report, usage = attempt.speculation, attempt.usage
    assert ended.usage == usage
    assert report.drafted > 0
    assert report.distributed_tokens + report.alone_tokens == usage.completion_tokens == 16
    assert len(report.timed_windows) == sum(rounds for drafted, rounds in report.windows if drafted)
    for sent_s, judged_s, *_ in report.timed_windows:  # on this event loop's clock
        assert began_at <= sent_s <= judged_s <= ended_at
    shares = dict(usage.shares)
    assert set(shares) == {"split", "split-drafts"}
    assert shares["split"].drafted == (0, report.rejected, 0)
    assert shares["split-drafts"].completion_tokens >= report.drafted
    assert min(attempt.traffic.bytes_up, attempt.traffic.bytes_down) > 0


async def test_a_draft_budget_reaches_the_host(tiny, stand_in):
    endpoint = split_of(tiny, stand_in, drafted=True, chunks=16, branches=0, made=HostSplit)
    async with running(endpoint):
        _, _, attempt = await told(endpoint, replace(REQUEST, drafts=0))
        assert attempt.speculation.drafted == 0
        _, _, attempt = await told(endpoint, replace(REQUEST, drafts=5))
        assert 0 < attempt.speculation.drafted <= 5


async def test_answers_at_once_wait_as_in_one_process(tiny, stand_in):
    for made in ({}, {"made": HostSplit}):
        endpoint = split_of(tiny, stand_in, chunks=16, **made)
        async with running(endpoint):
            stand_in.delay_s = 0.05
            assert endpoint.capabilities().waiting == 0
            attempts = [endpoint.open(ask(f"{number} {STORY}", max_tokens=40)) for number in range(3)]
            async with anyio.create_task_group() as group:
                for attempt in attempts:
                    group.start_soon(next_event, attempt)
                with anyio.fail_after(20):
                    while endpoint.capabilities().waiting != 2:  # noqa: ASYNC110 - somebody else's state
                        await anyio.sleep(0.005)
                assert [attempts[0].pause(), attempts[0].park(), attempts[0].follow()] == [False] * 3
                group.cancel_scope.cancel()
            stand_in.delay_s = 0.0
            for attempt in attempts:
                await attempt.aclose()


@pytest.mark.parametrize(
    ("what", "kind", "error"),
    [
        (401, FailureKind.ACCOUNT, openai.AuthenticationError),
        ("busy", FailureKind.RATE_LIMIT, IncompleteAnswerError),
        ("garbage", FailureKind.GARBAGE, IncompleteAnswerError),
        ("silent", FailureKind.CONNECTION, openai.APIConnectionError),
    ],
)
async def test_a_failure_of_the_layer_server_comes_as_it_is_and_the_host_goes_on(
    tiny, stand_in, what, kind, error
):
    def script(at, _frame):
        if at < CHUNKS + 2:
            return None
        if what == 401:
            stand_in.upgrades = [401] * 9
            return "drop"
        return what

    async with running(split_of(tiny, stand_in, chunks=16, patience_s=0.3, made=HostSplit)) as endpoint:
        pid = endpoint.process_id
        attempt = endpoint.open(REQUEST)
        with scripted(stand_in, script), pytest.raises(EndpointFailure) as failed:
            async for _ in attempt:
                pass
        assert (failed.value.kind, type(failed.value.error)) == (kind, error)
        assert STORY[:9] not in str(failed.value.error)
        assert failed.value.retry_after_s == (1.0 if what == "busy" else None)
        assert attempt.usage.prompt_tokens > len(STORY)
        await attempt.aclose()
        stand_in.upgrades.clear()
        assert (await asked(endpoint, ask(max_tokens=3))).finish_reason == "length"
        assert endpoint.process_id == pid


async def test_waiting_for_the_network_is_no_hanging(tiny, stand_in):
    """A process is ended that computes without a step; a reply that is late has limits of its own."""
    async with running(split_of(tiny, stand_in, chunks=16, patience_s=60.0)) as endpoint:
        with scripted(stand_in, lambda at, _frame: "silent" if at >= 2 else None):
            attempt = endpoint.open(REQUEST)
            async with anyio.create_task_group() as group:
                group.start_soon(next_event, attempt)
                with anyio.fail_after(20):
                    while not endpoint.model.link.waits:  # noqa: ASYNC110 - a thread's
                        await anyio.sleep(0.005)
                    while len(stand_in.frames) < 3:  # noqa: ASYNC110 - as above
                        await anyio.sleep(0.005)
                pulses = []
                while len(pulses) < 20:
                    await anyio.sleep(0.005)
                    pulses.append((endpoint.inner.pulse[0], endpoint.pulse[0]))
                assert pulses.count((True, False)) > 10
                group.cancel_scope.cancel()
            await attempt.aclose()


async def test_a_plain_client_gets_plain_answers(tiny, stand_in):
    async with running(split_of(tiny, stand_in, chunks=16, made=HostSplit)) as endpoint:
        wanted = await asked(endpoint, REQUEST)
        serving = endpoint._host.host
        transport = httpx2.AsyncHTTPTransport(uds=serving.socket)
        async with openai.AsyncOpenAI(
            api_key=serving.api_key,
            base_url=serving.base_url,
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        ) as client:
            found = await client.chat.completions.create(
                model="split", messages=REQUEST.messages, **REQUEST.params
            )
            with pytest.raises(openai.NotFoundError):  # it drafts and verifies for nobody else
                await client.post("/disco/rounds", cast_to=object, body={})
    assert found.choices[0].message.content == wanted.text
    assert found.usage.completion_tokens == 16


BLOWS = [(signal.SIGKILL, 0), (signal.SIGABRT, 4)] if sys.platform != "win32" else []


async def struck(client, blow, **params):
    """An answer in the middle of which the host of the split is killed."""
    host = client.router.endpoints.tiers[0].endpoint
    text, was = "", None
    stream = await client.chat.completions.create(**PARAMS, **params, stream=True)
    async with stream:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            if len(text) >= 6 and was is None:
                was = host.process_id
                os.kill(was, blow)
    return text, stream.route


@needs_signals
@pytest.mark.parametrize(("blow", "drafted"), BLOWS)
async def test_another_model_goes_on_where_the_host_is_killed_in_mid_answer(tiny, stand_in, blow, drafted):
    wanted = await whole_answer(tiny, max_tokens=40)
    stand_in.delay_s = 0.02
    here, tier = Other(), split(tiny, stand_in, window=drafted)
    async with AsyncDisco(local=here, tiers=[tier], policy=preset("server_only")) as client:
        await client.warm_up()
        text, route = await struck(client, blow, max_tokens=40)
    assert [(one.endpoint, one.failure) for one in route.attempts] == [("cut", "crashed"), ("device", None)]
    written = text.removesuffix(" and so on")
    assert 6 <= len(written) < len(text)
    assert wanted.startswith(written)
    assert here.prefixes[-1].text == written
    assert route.attempts[0].bytes_up > 0


@needs_signals
@pytest.mark.parametrize(("blow", "drafted"), BLOWS)
async def test_the_only_model_goes_on_in_a_new_host(tiny, stand_in, blow, drafted):
    stand_in.delay_s = 0.02
    wanted = await whole_answer(tiny, max_tokens=40)
    tier = split(tiny, stand_in, window=drafted)
    async with AsyncDisco(tiers=[tier], policy="cascade") as client:
        await client.warm_up()
        text, route = await struck(client, blow, max_tokens=40)
    assert [(one.endpoint, one.failure) for one in route.attempts] == [("cut", "crashed"), ("cut", None)]
    assert (text, route.finish_reason, route.seamless) == (wanted, "stop", True)


def test_reports_and_shares_are_coded_whole():
    share = Usage(0, 9, 0, drafted=(0, 9, 0))
    usage = Usage(5, 7, 1, shares=(("cut", Usage(5, 8, 1, drafted=(0, 1, 0))), ("cut-drafts", share)))
    assert usage_of(used(usage)) == usage
    report = SpeculationReport(3, 8, windows=((4, 2),), wire_s=0.5, timed_windows=((1.0, 2.0, 4, 3),) * 3)
    first = SpeculationReport(timed_windows=report.timed_windows[:2])
    assert speculation_of(speculation_fields(report, 2), first) == report
