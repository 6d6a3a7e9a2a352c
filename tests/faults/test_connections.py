"""Connections that are used again, that are dead when they are, and what is left of them."""

from __future__ import annotations

import anyio
import anyio.to_thread
import moved_clock
import pytest
from faults.lab import MESSAGES, asking, calm, device, get
from faults.proxy_server.fault import Fault, Kind, Moment

pytestmark = [
    pytest.mark.real,
    pytest.mark.anyio,
    pytest.mark.parametrize("proxy", [True], indirect=True, ids=["kept"]),
]


@pytest.fixture
def anyio_backend(request):
    return moved_clock.backend(getattr(request, "param", "asyncio"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """However long the few bytes behind [DONE] take; and no time between two tries."""
    monkeypatch.setattr("disco.endpoints.openai_api.api_attempt._DRAIN_S", 60.0)
    monkeypatch.setattr("disco.session.switching.failover_rule.RETRY_S", 0.01)


async def until(proxy, what) -> None:
    await anyio.to_thread.run_sync(lambda: proxy.wait_for(what))


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
async def test_an_answer_that_was_read_to_its_end_leaves_its_connection_for_the_next(proxy):
    async with asking(proxy) as client:
        for _ in range(2):
            calm(await get(client))
        await anyio.to_thread.run_sync(proxy.drop_idle)  # its server gave it up meanwhile: it is not used
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", None)]
    assert [p.reused for p in proxy.passages] == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    [(Kind.CLOSE, "asyncio"), (Kind.END, "trio"), (Kind.STALL, "trio"), (Kind.GARBAGE, "asyncio")],
    indirect=["anyio_backend"],
)
async def test_a_broken_answer_takes_its_connection_with_it(proxy, kind):
    async with asking(proxy, device()) as client:
        proxy.arm([None, Fault(kind, Moment.MIDDLE, body=b"data: {oops\n\n"), None])
        for _ in range(3):
            calm(await get(client))
    assert [p.struck for p in proxy.passages] == [False, True, False]
    assert proxy.passages[1].reused
    if kind is not Kind.END:  # which ends properly as far as HTTP is concerned
        assert not proxy.passages[2].reused


@pytest.mark.parametrize(
    ("fault", "helper"),
    [(Fault(Kind.CLOSE, Moment.HEAD), True), (Fault(Kind.RESET, Moment.REQUEST, after_bytes=40), False)],
    ids=str,
)
async def test_a_connection_given_up_at_the_moment_of_its_use_costs_nothing(proxy, fault, helper):
    """The server closes it as the request is on its way: no response, no answer, no bill."""
    async with asking(proxy, device() if helper else None, max_retries=1) as client:
        proxy.arm([None, fault])
        await get(client)
        answer = await get(client)
    calm(answer)
    assert answer.attempts == [("server", "connection"), ("device" if helper else "server", None)]
    assert proxy.passages[1].reused
    lost = answer.route.attempts[0]
    assert (lost.prompt_tokens, lost.completion_tokens, lost.cost) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("moment", "anyio_backend"),
    [(Moment.HEAD, "asyncio"), (Moment.MIDDLE, "trio")],
    indirect=["anyio_backend"],
)
async def test_whoever_is_not_read_any_more_is_closed_though_it_says_nothing(proxy, moment):
    """The server of a reader who leaves, and the loser of a race, while the client is open."""
    proxy.arm([Fault(Kind.STALL, moment), Fault(Kind.STALL, moment, tokens=0)])
    async with asking(proxy) as client, anyio.create_task_group() as group:

        async def read() -> None:
            async for _ in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
                pass

        group.start_soon(read)
        await until(proxy, lambda: any(p.silent for p in proxy.passages))
        group.cancel_scope.cancel()
    await until(proxy, lambda: proxy.passages[0].over)
    async with asking(proxy, device(), policy="race") as client:
        answer = await get(client)
        calm(answer)
        await until(proxy, lambda: all(p.over for p in proxy.passages))
    assert ("device", None) in answer.attempts
