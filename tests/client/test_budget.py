"""Absolute budgets as an application sees them: a server that is paid for, and a device that is not."""

from __future__ import annotations

import json
import re

import openai
import pytest
from defects.asking import client, create, device, preset, tried
from faults.in_memory import SILENCE, MemoryServer, Reply, anyio_backend  # noqa: F401 - a fixture
from scripted_server import chunk, sse, usage

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.dispatch.two_sided import TwoSided
from disco.errors import BudgetExceededError, ConfigurationError

pytestmark = pytest.mark.anyio

RACE = {"policy": preset("race"), "tokens": 10**6}
KNOWN = {**RACE, "server_profile": "gpt-4o-mini-2024"}


def reply(tokens: int = 4, finish: str = "stop") -> Reply:
    words = [chunk(f"word{i} ") for i in range(tokens)]
    return Reply([sse(*words, chunk(finish=finish), usage(12, tokens))])


def here(ttft_s: float = 0.0):
    return device(ttft_s=ttft_s, decode_tps=1e4, answer_tokens=30)


def paid(script: Reply, *, tokens=None, usd=None, **more) -> tuple[MemoryServer, AsyncDisco]:
    """A server that costs so much a day, and a client of it."""
    amounts = {"server_tokens": tokens, "usd": usd, "window_s": 86_400}
    budget = {name: amount for name, amount in amounts.items() if amount is not None}
    server = MemoryServer(script)
    return server, client(server, budget=budget, **{"policy": preset("server_only"), "price": None, **more})


async def test_a_budget_is_spent_to_the_end_and_then_refused():
    """A single user's tokens add up to the limit and never past it; the refusal is the API's own kind of error."""
    server, one = paid(reply(40), tokens=600)
    async with one:
        with pytest.raises(openai.RateLimitError) as refused:  # noqa: PT012
            for _ in range(20):
                answer = await create(one, max_tokens=40)
                assert answer.route.budget["server_tokens"]["spent"] == 52
        error, spent = refused.value, 52 * len(server.requests)
        assert isinstance(error, BudgetExceededError)
        assert error.code == "insufficient_quota"
        assert "left of 600 tokens in any 24 hours" in error.message
        assert "frees up in 24 hours" in error.message
        assert "Only this program spends it." in error.message
        assert "sea" not in error.message
        assert 5 * 52 <= spent <= 600
        assert one.router.limiter.left(0.0) == {"server_tokens": 600 - spent}
        assert one.router.budgets_left()["server_tokens"]["left"] == 600 - spent


async def test_a_server_is_told_of_a_lowered_limit_and_the_device_writes_on():
    """The answer is one: what the server wrote, and the device's continuation."""
    server, one = paid(reply(80, finish="length"), local=here(), tokens=400)
    async with one:
        await create(one, max_tokens=300)
    told = server.requests[0]["max_tokens"]
    assert 64 <= told < 300
    _, one = paid(reply(told, finish="length"), local=here(), tokens=400)
    async with one:
        answer = await create(one, max_tokens=300)
    assert tried(answer) == [("server", "budget"), ("device", None)]
    assert answer.route.winner == "server"
    assert answer.choices[0].message.content.startswith("word0 ")
    assert answer.route.answer_tokens > told - 2
    assert answer.choices[0].finish_reason == "stop"


async def test_what_was_not_used_is_given_back():
    """By a reader who leaves, and by a start that failed."""
    _, one = paid(Reply([sse(chunk("word "), done=False), SILENCE]), tokens=5000)
    async with one:
        stream = await create(one, stream=True)
        await anext(aiter(stream))
        assert one.router.limiter.left(0.0)["server_tokens"] < 4000
        await stream.close()
        assert one.router.limiter.left(0.0)["server_tokens"] > 4900
    _, one = paid(Reply(status=500), tokens=5000)
    async with one:
        with pytest.raises(openai.InternalServerError):
            await create(one)
        assert one.router.limiter.left(0.0) == {"server_tokens": 5000}


async def test_no_race_before_the_server_is_known():
    """Its first answers are its own; then there is data, and both start."""
    _, one = paid(reply(2), local=here(), **RACE)
    async with one:
        *first, last = [(await create(one)).route for _ in range(6)]
    assert [r.starts[0] for r in first] == [("server", 0.0)] * 5
    assert all(w.why == "unknown" for r in first for w in r.budget_cuts)
    assert [after_s for _, after_s in last.starts] == [0.0, 0.0]
    _, one = paid(reply(2), local=here(), **KNOWN)
    async with one:
        routes = [(await create(one)).route for _ in range(2)]
    assert len(routes[0].starts) == 2
    assert not routes[1].budget_cuts


async def test_no_hedge_goes_to_a_server_that_pushes_back():
    limited = Reply(status=429, headers={"Retry-After": "30"})
    server, one = paid(limited, local=here(ttft_s=0.3), **KNOWN)
    async with one:
        first, *others = [await create(one) for _ in range(3)]
    assert len(first.route.starts) == 2
    assert ("server", "rate_limit") in tried(first)
    assert [[name for name, _ in answer.route.starts] for answer in others] == [["device"]] * 2
    assert len(server.requests) == 1


async def test_another_policy_or_a_copy_does_not_get_around_the_clients_budget():
    server, one = paid(reply(40), local=here(), tokens=100)
    async with one:
        answer = await create(one, disco={"policy": "fast", "budget_class": "urgent"})
        assert [name for name, _ in answer.route.starts] == ["device"]
        assert (await create(one.with_options(timeout=5.0))).route.winner == "device"
    assert [(w.endpoint, w.what, w.why) for w in answer.route.budget_cuts] == [("server", "start", "spent")]
    assert server.requests == []


async def test_a_request_that_is_refused_takes_no_room_in_the_policys_budget(monkeypatch):
    """The limits of both sides are used up, so nothing starts on the second request."""
    settled = []
    monkeypatch.setattr(TwoSided, "settle", lambda _, spend, *, used: settled.append((spend.ticket, used)))
    budget = {"server_tokens": 300, "device_tokens": 300, "window_s": 86_400}
    one = client(
        MemoryServer(reply(40)), local=here(), budget=budget, policy=preset("length_threshold", budget=0.5)
    )
    async with one:
        with pytest.raises(BudgetExceededError):  # noqa: PT012
            while True:
                await create(one, max_tokens=40)
    *answered, refused = settled
    assert answered
    assert refused == (len(settled), False)


async def test_money_needs_a_price():
    _, one = paid(reply(), usd=0.5)
    async with one:
        with pytest.raises(ConfigurationError, match=re.escape("price=(usd_per_million_in")):
            await create(one, model="nobody-knows-me")
        spent = (await create(one)).route.budget["usd"]["spent"]
    assert spent == pytest.approx(12 * 0.15e-6 + 4 * 0.6e-6)


async def test_money_holds_where_the_server_charges_more_for_input_that_it_caches():
    """How much that was it does not say, so a budget counts all of it at that price; the ledger does not."""
    _, one = paid(reply(), usd=0.5, price="openai/gpt-6.1-sol")  # 2 USD in, 2.5 into the cache, 10 out
    async with one:
        route = (await create(one, max_tokens=100)).route
    (spent,) = route.budget.values()
    assert route.bill_usd == pytest.approx(12 * 2e-6 + 4 * 10e-6)
    assert spent["spent"] == pytest.approx(12 * 2.5e-6 + 4 * 10e-6)
    assert spent["reserved"] > 128 * 2.5e-6 + 100 * 10e-6  # of the prompt, an upper bound


def test_a_budget_takes_the_place_of_the_presets():
    policy = Preset(limits={"server_tokens": 10, "usd": 2.0, "window_s": 60})
    limits = AsyncDisco(local=here(), policy=policy, budget={"usd": 1.0}).router.preset.limits
    assert (limits.server_tokens, limits.usd, limits.window_s) == (10, 1.0, 60)
    limits = AsyncDisco(local=here(), policy=policy, budget={"per": "month"}).router.preset.limits
    assert (limits.usd, limits.per, limits.window_s) == (2.0, "month", None)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"usd": 0.5}, "usd needs the time"),
        ({"window_s": 60}, "window_s needs an amount"),
        ({"usd": 0, "window_s": 60}, "greater than 0"),
        ({"usd": 1, "window_s": -1}, "window_s: Input should be greater than or equal to 0.001"),
        ({"usd": 5, "window_s": 1e308}, "window_s: Input should be less than or equal to 1000000000"),
        ({"usd": 5, "window_s": "60"}, "window_s: must be a number"),
        ({"usd": "5", "per": "month"}, "usd: must be a number, not '5'"),
        ({"usd": True, "per": "month"}, "usd: must be a number, not True"),
        ({"usd": 1e308, "per": "hour"}, "usd: Input should be less than or equal to 1000000000"),
        ({"server_tokens": "many", "per": "day"}, "server_tokens: must be a number"),
        ({"usd": 5, "per": "x" * 10_000}, r"not 'x+\.\.\.x+'$"),
        ({1: 2}, "unknown key 1"),
        ({"server_usd": 1, "window_s": 60}, "Known: .*usd"),
        ({"usd": 1, "per": "month", "window_s": 60}, "remove one of the two"),
        ({"usd": 1, "per": "year"}, "'hour', 'day', 'week' or 'month'"),
        ({"per": "month"}, "per needs an amount"),
        (5, r'budget=\{"usd": 5, "per": "month"\}'),
        ("5 USD", r'budget=\{"usd": 5, "per": "month"\}'),
        ({"usd": 1, "window_s": 60, "local_only": True}, "local_only forbids every server"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(budget, says):
    for kind in (AsyncDisco, Disco):
        with pytest.raises(ConfigurationError, match=says):
            kind(local=here(), budget=budget)


@pytest.mark.parametrize(("budget", "warned"), [({"server_tokens": 600, "per": "day"}, 1), (None, 0)])
async def test_what_no_budget_counts_is_said_once_where_there_is_one(budget, warned, caplog):
    vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
    body = {
        "object": "list",
        "data": [vector],
        "model": "m",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    document = Reply([json.dumps(body).encode()], 200, {"content-type": "application/json"})
    one = client(MemoryServer(document), policy=preset("server_only"), budget=budget)
    async with one:
        for free in (
            "/files",
            "/moderations",
            "/uploads/u/parts",
            "/threads/t/messages",
            "/responses/r/cancel?a=b",
        ):
            await one.post(free, cast_to=object, body={})
        assert [record for record in caplog.records if record.name == "disco"] == []
        for _ in range(2):
            made = await one.embeddings.create(model="m", input="sea", encoding_format="float")
            assert made.data[0].embedding == [0.5]
    said = [record.getMessage() for record in caplog.records if record.name == "disco"]
    assert [line.partition(":")[0] for line in said] == [
        "POST /embeddings goes to the server as it is"
    ] * warned


@pytest.mark.parametrize(
    "path", ["/completions", "/images/generations", "/threads/runs", "/rerank", "/batches"]
)
async def test_whatever_may_cost_is_said_to_be_uncounted(path, caplog):
    document = Reply([b"{}"], 200, {"content-type": "application/json"})
    budget = {"server_tokens": 600, "per": "day"}
    async with client(MemoryServer(document), policy=preset("server_only"), budget=budget) as one:
        await one.post(path, cast_to=object, body={})
    said = [record.getMessage() for record in caplog.records if record.name == "disco"]
    assert [line.partition(" goes")[0] for line in said] == [f"POST {path}"]
