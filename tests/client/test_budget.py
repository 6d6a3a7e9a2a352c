"""Absolute budgets as an application sees them: a real HTTP server that is paid for, and a device that is not."""

from __future__ import annotations

import contextlib
import re

import anyio
import openai
import pytest
from scripted_server import chunk, scripted_server, sse, stream, usage

from disco import AsyncDisco, Disco
from disco.dispatch import Preset, load_preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import BudgetExceededError, ConfigurationError

pytestmark = [pytest.mark.real, pytest.mark.anyio]


@pytest.fixture
def anyio_backend():
    """What is counted does not depend on the loop."""
    return "asyncio"


SEA = [{"role": "user", "content": "Tell me about the sea."}]
SERVER_FIRST = Preset(
    dispatch={"policy": "server_only"}, playback={"pace_tps": "off"}, migration={"enabled": False}
)
RACE = Preset(dispatch={"policy": "race"}, playback={"pace_tps": "off"}, migration={"enabled": False})


def reply(tokens: int = 4, *, finish: str = "stop", prompt: int = 12) -> list:
    words = [chunk(f"word{i} ") for i in range(tokens)]
    return stream(sse(*words, chunk(finish=finish), usage(prompt, tokens)))


def device() -> SimulatedEndpoint:
    return SimulatedEndpoint(
        "device", SimulatedProfile(ttft_s=0.0, decode_tps=1e4, answer_tokens=30), place="device"
    )


@contextlib.asynccontextmanager
async def paid(script, *, policy=SERVER_FIRST, tokens=None, usd=None, **more):
    """A server that costs so much a day, and a client of it."""
    amounts = {"server_tokens": tokens, "server_usd": usd, "window_s": 86_400}
    budget = {name: amount for name, amount in amounts.items() if amount is not None}
    async with scripted_server(script) as server:
        more = {"base_url": server.base_url, "api_key": "secret-key-1234", "max_retries": 0, **more}
        async with AsyncDisco(policy=policy, budget=budget, **more) as disco:
            yield server, disco


def ask(disco, **more):
    return disco.chat.completions.create(model="gpt-4o-mini", messages=SEA, **more)


async def test_a_budget_is_spent_to_the_end_and_then_refused():
    """A single user's tokens add up to the limit and never past it; the refusal is the API's own kind of error."""
    async with paid(reply(40), tokens=600) as (server, disco):

        async def ask_on() -> None:
            for _ in range(20):
                answer = await ask(disco, max_tokens=40)
                assert answer.route.budget["server_tokens"]["spent"] == 52

        with pytest.raises(openai.RateLimitError) as refused:
            await ask_on()
        error = refused.value
        assert isinstance(error, BudgetExceededError)
        assert error.code == "insufficient_quota"
        assert "server_tokens = 600 tokens in 86400 s" in error.message
        assert "frees up in 24.0 hours" in error.message
        assert "sea" not in error.message
        spent = 52 * len(server.requests)
        assert spent <= 600
        assert len(server.requests) >= 5
        assert disco.router.limiter.left(0.0) == {"server_tokens": 600 - spent}


async def test_without_money_the_device_answers():
    async with paid(reply(40), local=device(), usd=1e-6, price=(1.0, 2.0)) as (server, disco):
        answer = await ask(disco)
        assert answer.route.winner == "device"
        assert [(w.endpoint, w.what, w.why) for w in answer.route.budget_cuts] == [
            ("server", "start", "spent")
        ]
        assert answer.route.to_dict()["budget"]["server_usd"]["left"] == 1e-6
        assert server.requests == []


async def test_a_burst_does_not_overspend():
    """All at once: every answer reserves before it starts, so the last ones are the device's."""
    async with paid(reply(40), local=device(), tokens=1500) as (server, disco):
        winners = []

        async def one() -> None:
            winners.append((await ask(disco, max_tokens=40)).route.winner)

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(one)
        assert 3 <= winners.count("server") < 12
        assert len(winners) == 12
        assert len(server.requests) == winners.count("server")
        assert 52 * len(server.requests) <= 1500


async def test_a_server_is_told_of_a_lowered_limit_and_the_device_writes_on():
    """The answer is one: what the server wrote, and the device's continuation."""
    async with paid(reply(80, finish="length"), local=device(), tokens=400) as (server, disco):
        answer = await ask(disco, max_tokens=300)
        told = server.requests[0][2]["max_tokens"]
        assert 64 <= told < 300
    async with paid(reply(told, finish="length"), local=device(), tokens=400) as (server, disco):
        answer = await ask(disco, max_tokens=300)
        assert [t.failure for t in answer.route.attempts] == ["budget", None]
        assert answer.route.winner == "server"
        assert answer.choices[0].message.content.startswith("word0 ")
        assert answer.route.answer_tokens > told - 2
        assert answer.choices[0].finish_reason == "stop"


async def test_a_reader_who_leaves_gives_back_what_was_not_used():
    hanging = [*reply(3)[:1], *stream(sse(chunk("word "), done=False))[1:-1], 30.0]
    async with paid(hanging, tokens=5000) as (_, disco):
        streamed = await ask(disco, stream=True)
        async for _ in streamed:
            break
        assert disco.router.limiter.left(0.0)["server_tokens"] < 4000
        await streamed.close()
        assert disco.router.limiter.left(0.0)["server_tokens"] > 4900


async def test_a_failed_start_costs_nothing():
    broken = [b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"]
    async with paid(broken, tokens=5000) as (_, disco):
        with pytest.raises(openai.InternalServerError):
            await ask(disco)
        assert disco.router.limiter.left(0.0) == {"server_tokens": 5000}


async def test_no_race_before_the_server_is_known():
    """Its first answers are its own; then there is data, and both start."""
    async with paid(reply(2), local=device(), policy=RACE, tokens=10**6) as (_, disco):
        starts = [(await ask(disco)).route for _ in range(6)]
        assert [r.starts[0] for r in starts[:5]] == [("server", 0.0)] * 5
        assert all(w.why == "unknown" for r in starts[:5] for w in r.budget_cuts)
        assert [after_s for _, after_s in starts[5].starts] == [0.0, 0.0]
    known = {"policy": RACE, "tokens": 10**6, "server_profile": "gpt-4o-mini-2024"}
    async with paid(reply(2), local=device(), **known) as (_, disco):
        assert len((await ask(disco)).route.starts) == 2
        assert not (await ask(disco)).route.budget_cuts


async def test_no_hedge_goes_to_a_server_that_pushes_back():
    limited = [b"HTTP/1.1 429 X\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n"]
    slow = SimulatedEndpoint("device", SimulatedProfile(ttft_s=0.3, decode_tps=1e4), place="device")
    known = {"policy": RACE, "tokens": 10**6, "server_profile": "gpt-4o-mini-2024"}
    async with paid(limited, local=slow, **known) as (server, disco):
        first = await ask(disco)
        assert len(first.route.starts) == 2
        assert "rate_limit" in [t.failure for t in first.route.attempts]
        for _ in range(2):
            assert [name for name, _ in (await ask(disco)).route.starts] == ["device"]
        assert len(server.requests) == 1


async def test_another_policy_does_not_get_around_the_clients_budget():
    async with paid(reply(40), local=device(), tokens=100) as (server, disco):
        answer = await ask(disco, extra_body={"disco": {"policy": "fast", "budget_class": "urgent"}})
        assert [name for name, _ in answer.route.starts] == ["device"]
        copy = disco.with_options(timeout=5.0)
        assert (await ask(copy)).route.winner == "device"
        assert server.requests == []


async def test_money_needs_a_price():
    async with paid(reply(), usd=0.5) as (_, disco):
        with pytest.raises(ConfigurationError, match=re.escape("price=(usd_per_million_in")):
            await disco.chat.completions.create(model="nobody-knows-me", messages=SEA)
        assert (await ask(disco)).route.budget["server_usd"]["spent"] == pytest.approx(
            12 * 0.15e-6 + 4 * 0.6e-6
        )


def test_the_sync_client_has_the_same_budget():
    with (
        Disco(local=device(), policy="private", budget={"device_tokens": 200, "window_s": 60}) as disco,
        pytest.raises(BudgetExceededError, match="device_tokens"),
    ):
        ask(disco)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"server_usd": 0.5}, "server_usd needs window_s"),
        ({"window_s": 60}, "window_s needs an amount"),
        ({"server_usd": 0, "window_s": 60}, "greater than 0"),
        ({"server_usd": 1, "window_s": -1}, "greater than 0"),
        ({"server_euros": 1, "window_s": 60}, "Did you mean 'server_usd'"),
        ({"server_usd": 1, "window_s": 60, "local_only": True}, "local_only forbids every server"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(budget, says):
    with pytest.raises(ConfigurationError, match=says):
        AsyncDisco(local=device(), budget=budget)


def test_a_budget_takes_the_place_of_the_presets():
    policy = Preset(limits={"server_tokens": 10, "server_usd": 2.0, "window_s": 60})
    disco = AsyncDisco(local=device(), policy=policy, budget={"server_usd": 1.0})
    limits = disco.router.preset.limits
    assert (limits.server_tokens, limits.server_usd, limits.window_s) == (10, 1.0, 60)
    assert not load_preset("balanced").limits.budgets
