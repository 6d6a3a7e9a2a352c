"""Connections that are used again, that are dead when they are, and what is left of them."""

from __future__ import annotations

import anyio
import anyio.to_thread
import moved_clock
import pytest
from faults.lab import MESSAGES, asking, calm, device, get, preset
from faults.proxy_server.fault import Direction, Fault, Kind, Moment
from faults.proxy_server.origin import TEXT
from faults.proxy_server.proxy import fault_proxy

pytestmark = [pytest.mark.real, pytest.mark.anyio]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return moved_clock.backend(request.param)


@pytest.fixture
def kept(origin, monkeypatch):
    """A proxy that lets its connections be used again, however long the few bytes behind [DONE] take."""
    monkeypatch.setattr("disco.endpoints.openai_api.api_attempt._DRAIN_S", 60.0)
    with fault_proxy(origin.base_url, keep_alive=True) as proxy:
        yield proxy
        proxy.wait_idle()


async def until(proxy, what) -> None:
    await anyio.to_thread.run_sync(lambda: proxy.wait_for(what))


async def test_an_answer_that_was_read_to_its_end_leaves_its_connection_for_the_next(kept):
    async with asking(kept) as client:
        for _ in range(3):
            calm(await get(client))
    assert [p.reused for p in kept.passages][1:] == [True, True]


@pytest.mark.parametrize("kind", [Kind.CLOSE, Kind.RESET, Kind.END, Kind.STALL, Kind.GARBAGE])
async def test_a_broken_answer_takes_its_connection_with_it(kept, kind):
    async with asking(kept, device()) as client:
        kept.arm([None, Fault(kind, Moment.MIDDLE, body=b"data: {oops\n\n"), None])
        for _ in range(3):
            answer = await get(client)
            assert answer.text == TEXT
    assert [p.struck for p in kept.passages] == [False, True, False]
    assert kept.passages[1].reused
    if kind is not Kind.END:  # which ends properly as far as HTTP is concerned
        assert not kept.passages[2].reused


async def test_a_connection_that_its_server_gave_up_meanwhile_is_not_used(kept):
    async with asking(kept) as client:
        calm(await get(client))
        await anyio.to_thread.run_sync(kept.drop_idle)
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", None)]
    assert not kept.passages[1].reused


@pytest.mark.parametrize(
    ("fault", "helper"),
    [
        (Fault(Kind.CLOSE, Moment.HEAD), True),
        (Fault(Kind.RESET, Moment.HEAD), False),
        (Fault(Kind.CLOSE, Moment.REQUEST, after_bytes=40), False),
        (Fault(Kind.RESET, Moment.REQUEST, after_bytes=40), True),
        (Fault(Kind.HALF_CLOSE, Moment.REQUEST, Direction.UP, after_bytes=40), True),
    ],
    ids=str,
)
async def test_a_connection_given_up_at_the_moment_of_its_use_costs_nothing(kept, fault, helper, monkeypatch):
    """The server closes it as the request is on its way: no response, no answer, no bill."""
    monkeypatch.setattr("disco.session.switching.failover_rule.RETRY_S", 0.01)
    async with asking(kept, device() if helper else None, max_retries=1) as client:
        kept.arm([None, fault])
        await get(client)
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", "connection"), ("device" if helper else "server", None)]
    assert kept.passages[1].reused
    lost = answer.route.attempts[0]
    assert (lost.prompt_tokens, lost.completion_tokens, lost.cost) == (0, 0, 0.0)


@pytest.mark.parametrize("moment", [Moment.HEAD, Moment.MIDDLE])
async def test_a_reader_who_leaves_closes_the_connection(kept, moment):
    async with asking(kept) as client:
        kept.arm([Fault(Kind.STALL, moment)])

        async def read() -> None:
            async with await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True
            ) as chunks:
                async for _ in chunks:
                    pass

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await until(kept, lambda: any(p.silent for p in kept.passages))
            group.cancel_scope.cancel()
        await until(kept, lambda: kept.passages[0].over)


@pytest.mark.parametrize("moment", [Moment.HEAD, Moment.MIDDLE])
async def test_the_loser_of_a_race_is_closed_though_it_says_nothing(kept, moment):
    async with asking(kept, device(), policy=preset("race")) as client:
        kept.arm([Fault(Kind.STALL, moment, tokens=0)])
        answer = await get(client)
        calm(answer)
        # Not by closing the client: while that is open, too.
        await until(kept, lambda: all(p.over for p in kept.passages))
    assert ("device", None) in answer.attempts
