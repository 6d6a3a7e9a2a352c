"""A client in shadow mode: the other preset's plan is recorded, and nothing but the real plan is carried out."""

from __future__ import annotations

import json
import logging

import anyio
import numpy as np
import pytest
from defects.asking import ask, client, create, device, preset, question, text_of
from faults.in_memory import MemoryServer, Reply, anyio_backend  # noqa: F401 - a fixture
from scripted_server import chunk, sse, usage

from disco import AsyncDisco, Disco, PowerReadings, RouteLog
from disco.client.shadow.shadow_preset import Shadow
from disco.dispatch import Preset
from disco.dispatch.power.power_section import PowerSection
from disco.errors import ConfigurationError, EndpointFailure, FailureKind
from disco.record import read_record
from disco.replay.formats import read_trace
from disco.replay.shadow.shadow_recording import read_shadowed

pytestmark = pytest.mark.anyio

TTFT_S, WORDS = 0.5, 10


def reply(ttft_s: float = TTFT_S) -> Reply:
    words = [chunk(f"word{i} ") for i in range(WORDS)]
    return Reply([ttft_s, sse(*words, chunk(finish="stop"), usage(12, WORDS))])


def here(ttft_s: float = 1.0, **more):
    return device(ttft_s=ttft_s, decode_tps=1e3, answer_tokens=WORDS, **more)


def shadowed(real: str, other: str | Preset, ttft_s: float = 1.0, **more) -> tuple[MemoryServer, AsyncDisco]:
    server = MemoryServer(reply())
    shadow = preset(other) if isinstance(other, str) else other
    return server, client(server, local=here(ttft_s), preset=preset(real), shadow=shadow, **more)


async def test_the_other_plan_is_recorded_and_only_the_real_one_is_carried_out():
    server, one = shadowed("device_only", "race")
    async with one:
        route = (await ask(one)).route
    assert server.requests == []
    assert [a.endpoint for a in route.attempts] == ["device"]
    shadow = route.shadow
    assert shadow.plan.starts == (("device", 0.0), ("server", 0.0))
    assert shadow.real.starts == (("device", 0.0),)
    assert shadow.differs == ("starts", "fallbacks")
    assert json.loads(route.to_json())["shadow"]["plan"]["starts"] == [["device", 0.0], ["server", 0.0]]
    assert read_record(route.to_json()).shadow.plan == shadow.plan


async def test_the_other_preset_judges_the_same_battery_by_its_own_rule():
    low = PowerReadings(on_battery=True, battery_share=0.15)
    plans = []
    for section in ({}, {"low_share": 0.1}, {"enabled": False}):
        other = Preset(
            name="other",
            dispatch={"policy": "auto"},
            power=section,
            cost={"exchange_rate": 0.0},
            migration={"enabled": False},
        )
        _, one = shadowed("server_only", other, power=lambda: low)
        async with one:
            route = (await ask(one)).route
        assert route.power.spared == "low"
        plans.append([name for name, _ in route.shadow.plan.starts])
        spared = [(r.endpoint, r.reason) for r in route.shadow.deprioritised]
        assert spared == ([("device", "low")] if section == {} else [])
    assert plans == [["server"], ["device"], ["device"]]


async def test_without_shadow_mode_the_record_has_no_shadow():
    async with client(local=here(), preset="private") as one:
        route = (await ask(one)).route
    assert route.shadow is None
    assert route.to_dict()["shadow"] is None


async def test_what_was_seen_is_measured_and_what_was_not_is_expected():
    """Both sides raced; what either would have done alone is known, as far as it got."""
    _, one = shadowed("race", "server_only")
    async with one:
        won_by_server = (await ask(one)).route
    assert won_by_server.winner == "server"
    shadow = won_by_server.shadow
    assert (shadow.sooner_s, shadow.cheaper_usd) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert (shadow.winner, shadow.ttft_basis, shadow.cost_basis) == ("server", "measured", "measured")
    assert shadow.ttft_s == pytest.approx(won_by_server.pace.ttft_raw_s)
    assert shadow.policy_cost == pytest.approx(won_by_server.policy_cost)

    _, one = shadowed("race", "device_only")
    async with one:
        shadow = (await ask(one)).route.shadow
    assert shadow.winner == "device"
    assert shadow.ttft_basis == "assumed"  # the device has not shown its speed yet
    assert shadow.ttft_s >= TTFT_S  # it had not written when the server did
    assert shadow.sooner_s <= 0
    assert shadow.cheaper_usd > 0
    assert (shadow.bill_usd, shadow.policy_cost) == (
        0.0,
        0.0,
    )  # at the exchange rate of this preset, the device is free


async def test_what_earlier_answers_have_shown_is_expected():
    _, one = shadowed("device_only", "race", ttft_s=0.1)
    async with one:
        for _ in range(6):
            await ask(one)
        shadow = (await ask(one)).route.shadow
    assert shadow.winner == "device"
    assert shadow.ttft_basis == "assumed"  # a server that was never asked might have been faster
    server, one = shadowed("server_only", "device_only", ttft_s=0.1)
    async with one:
        for _ in range(6):
            await ask(one, local_only=True)
        shadow = (await ask(one)).route.shadow
    assert len(server.requests) == 1
    assert shadow.winner == "device"
    assert shadow.ttft_basis == "expected"
    assert shadow.ttft_s == pytest.approx(0.1, abs=0.15), "its profile has not been forgotten yet"


async def test_the_real_plans_are_those_of_a_client_without_a_shadow():
    """Same seed, same requests: not a random choice, not a rounding remainder, not a time differs."""
    taken: list[list[tuple]] = []
    for shadow in (None, preset("random", budget=0.3), preset("length_threshold", budget=0.2)):
        server = MemoryServer(reply())
        real = preset("random", budget=0.5)
        one = client(server, local=here(), preset=real, shadow=shadow)
        one.router._dispatchers._rng.bit_generator.state = _seeded()
        async with one:
            routes = [(await ask(one, question(4 + i))).route for i in range(24)]
        taken.append([(r.starts, round(r.pace.ttft_raw_s, 9), r.policy_cost, r.winner) for r in routes])
        if shadow is not None:
            assert all(r.shadow.preset == shadow.name for r in routes)
    assert taken[0] == taken[1] == taken[2]
    assert len({starts for starts, *_ in taken[0]}) == 2


def _seeded() -> dict:
    return np.random.default_rng(5).bit_generator.state


async def test_a_half_open_breaker_is_not_claimed_and_a_cool_down_is_seen():
    server = MemoryServer(Reply([], status=500))
    one = client(server, local=here(), preset=preset("device_only"), shadow=preset("server_only"))
    async with one:
        for _ in range(4):
            await ask(one)
        assert (await ask(one)).route.shadow.deprioritised == ()
        watch = one.router.watch(one.router.endpoints.members(one.server), "gpt-4o-mini")
        now = anyio.current_time()
        for _ in range(8):
            watch.failed("server", EndpointFailure(FailureKind.SERVER, RuntimeError()), now, now)
        shadow = (await ask(one)).route.shadow
        assert [r.endpoint for r in shadow.deprioritised] == ["server"]
        assert shadow.plan.starts == (("device", 0.0),)
        await anyio.sleep(3600.0)  # the cool-down is over: a request may probe
        for _ in range(2):
            assert (await ask(one)).route.shadow.plan.starts[0] == ("server", 0.0)
            assert watch.look(anyio.current_time())[1] == {"server"}, "the real preset's probe is not taken"
    assert server.requests == []


async def test_the_other_presets_own_limits_cut_its_plans_and_not_the_real_ones():
    limits = {"server_tokens": 420, "window_s": 1e4}
    other = preset("server_only").model_copy(update={"limits": Preset(limits=limits).limits})
    server, one = shadowed("server_only", other)
    async with one:
        routes = []
        for _ in range(16):
            stream = await create(one, stream=True, max_tokens=WORDS)
            await text_of(stream)
            routes.append(stream.route)
    assert len(server.requests) == 16
    starts = [r.shadow.plan.starts[0][0] for r in routes]
    assert starts[0] == "server"
    assert starts[-1] == "device"
    assert all(r.budget == {} for r in routes)
    assert any(r.shadow.budget_cuts for r in routes)


async def test_a_request_that_the_other_preset_would_refuse_is_recorded_as_refused():
    private = Preset(name="here", dispatch={"policy": "device_only"}, limits={"local_only": True})
    server, one = shadowed("server_only", private)
    async with one:
        stream = await create(one, stream=True, extra_body={"unheard_of": 1})
        await text_of(stream)
        shadow = stream.route.shadow
    assert len(server.requests) == 1
    assert shadow.refused == "NoEndpointError"
    assert shadow.plan is None
    assert shadow.ttft_s is None


async def test_an_error_in_shadow_mode_is_logged_once_and_harms_no_answer(monkeypatch, caplog):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("canary-text")

    _, one = shadowed("server_only", "race")
    with caplog.at_level(logging.ERROR, logger="disco"):
        async with one:
            monkeypatch.setattr(one.router._shadow._dispatchers, "of", broken)
            first = await ask(one)
            monkeypatch.undo()
            monkeypatch.setattr("disco.client.shadow.shadow_answer.estimate", broken)
            second = await ask(one)
            monkeypatch.undo()
            third = await ask(one)
    assert first.text == second.text == third.text
    assert first.route.shadow is None
    assert second.route.shadow is None
    assert third.route.shadow is not None
    said = [message for message in caplog.messages if "Shadow mode" in message]
    assert len(said) == 1
    assert "ValueError in broken" in said[0]
    assert "canary" not in caplog.text


async def test_an_unknown_preset_is_refused_when_the_client_is_made():
    with pytest.raises(ConfigurationError, match="no preset is called 'cheep'"):
        client(local=here(), shadow="cheep")


def test_the_synchronous_client_and_copies_have_the_same_shadow():
    with Disco(local=here(), preset="private", shadow="fast") as one:
        route = create(one.with_options(timeout=30.0)).route
    assert route.shadow.preset == "fast"


async def test_a_cascade_says_which_tier_starts_and_what_its_rule_hands_up():
    server, one = shadowed("server_only", "cascade")
    async with one:
        route = (await ask(one)).route
    shadow = route.shadow
    assert shadow.plan.starts == (("device", 0.0),)
    assert shadow.plan.tiers == (("device",), ("server",))
    assert (shadow.rises, shadow.rises_by) == (0.3, "rule")
    assert "logprobs" not in server.requests[0]
    paper = Preset(name="paper", dispatch={"policy": "cascade"}, cascade={"rule": "paper"})
    _, one = shadowed("server_only", paper)
    async with one:
        shadow = (await ask(one)).route.shadow
    assert (shadow.rises, shadow.rises_by) == (None, None), "no score has ever been seen"


async def test_no_prompt_and_no_answer_is_in_a_record_or_kept(tmp_path):
    canary = "xylophone-4711"
    server, one = shadowed("race", "cascade", on_route=RouteLog(tmp_path / "routes.jsonl"))
    async with one:
        answer = await ask(one, [{"role": "user", "content": f"What is a {canary}?"}])
    assert canary in json.dumps(server.requests)
    assert "word1" in answer.text
    written = (tmp_path / "routes.jsonl").read_text()
    assert '"shadow": {"preset"' in written
    assert len(read_trace(tmp_path / "routes.jsonl")[0]) == 1
    assert len(read_shadowed(tmp_path / "routes.jsonl").answers) == 1
    for text in (canary, "word1", "secret-key"):
        assert text not in written
        assert text not in repr(answer.route.shadow)


async def test_a_shadow_that_is_the_same_preset_never_differs():
    real = preset("length_threshold", budget=0.4)
    server = MemoryServer(reply())
    async with client(server, local=here(), preset=real, shadow=real) as one:
        assert isinstance(one.router._shadow, Shadow)
        one.router._dispatchers._rng.bit_generator.state = _seeded()
        one.router._shadow._dispatchers._rng.bit_generator.state = _seeded()
        routes = [(await ask(one, question(4 + i % 7))).route for i in range(20)]
    assert [r.shadow.differs for r in routes] == [()] * 20
    for route in routes:
        assert route.shadow.ttft_s == pytest.approx(route.pace.ttft_raw_s)
        assert route.shadow.ttft_basis == "measured"


async def test_what_plans_count_for_traffic_is_in_no_bill_of_the_other_preset():
    real = preset("server_only").model_copy(update={"power": PowerSection(metered_usd_per_mb=1.0, spare=())})
    server = MemoryServer(reply())
    metered = PowerReadings(metered=True)
    async with client(server, local=here(), preset=real, shadow=real, power=lambda: metered) as one:
        route = (await ask(one)).route
    assert route.shadow.bill_usd == pytest.approx(route.bill_usd)
    assert route.shadow.policy_cost == pytest.approx(route.policy_cost)
    assert route.shadow.cheaper_usd == pytest.approx(0.0)
