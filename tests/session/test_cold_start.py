"""A model that is not loaded yet: it loads while the server writes, and the plan knows how long that takes."""

from __future__ import annotations

import threading
from dataclasses import replace

import anyio
import moved_clock
import numpy as np
import pytest
from defects.asking import ask, client, create, preset, prose
from faults.in_memory import MemoryServer, anyio_backend, no_thread, spoken  # noqa: F401 - fixtures
from hypothesis import given
from hypothesis import strategies as st
from session.plays import NO_CLOCKS, check, play, session_of

from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics
from disco.dispatch import Candidate, Dispatcher, Features, Preset
from disco.dispatch.cold_start import with_writer
from disco.endpoints.contract import Capabilities
from disco.endpoints.host import HostEndpoint
from disco.endpoints.host.host_process import HostProcess
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import CoolDown, Migration, Plan, Start
from disco.playback import Pace
from disco.profiles import Empirical, Lengths, Rolling
from disco.rates import Rates

pytestmark = pytest.mark.anyio

WORDS = prose(60)
COLD = Candidate("device", "device", prefill_tps=200.0, load_s=3.0, loads=True)
CLOUD = Candidate("cloud", "any", rates=Rates(1e-6, 1e-6), overhead_s=0.8)
SPARE = Candidate("spare", "any", rates=Rates(2e-6, 2e-6), overhead_s=0.2, standby=True)


class ColdDevice(SimulatedEndpoint):
    """A device that loads its model for `load_s` seconds. Mutable: `load_s`, `since`, `loads` (how often it loaded)."""

    def __init__(self, load_s: float, **profile) -> None:
        super().__init__("device", SimulatedProfile(**profile), place="device")
        self.load_s, self.since, self.loads = load_s, None, 0

    @property
    def left_s(self) -> float:
        return (
            self.load_s if self.since is None else max(0.0, self.since + self.load_s - anyio.current_time())
        )

    def capabilities(self, model=None):
        loads = self.since is not None and self.left_s > 0
        return replace(
            super().capabilities(model),
            ready=self.left_s == 0,
            loads=True,
            loading_s=anyio.current_time() - self.since if loads else None,
            load_s=self.load_s if self.left_s == 0 else None,
        )

    async def warm_up(self):
        if self.since is None:
            self.since, self.loads = anyio.current_time(), self.loads + 1
        await anyio.sleep(self.left_s)

    def open(self, request, prefix=None, *, wants=frozenset()):
        attempt = super().open(request, *(() if prefix is None else (prefix,)))
        step, opened = type(attempt).__anext__, self

        async def loaded_first(one):
            await opened.warm_up()
            return await step(one)

        attempt.__class__ = type("Cold", (type(attempt),), {"__anext__": loaded_first})
        return attempt


def slow_spoken():
    """Sixty words, five a second."""
    return spoken(WORDS, first_s=0.1, gap_s=0.2)


async def test_the_server_writes_while_the_model_loads_and_the_next_answer_is_the_devices():
    device = ColdDevice(0.9, ttft_s=0.05, decode_tps=50.0)
    chosen = preset("length_threshold", budget=0.0)  # every prompt is the device's
    async with client(MemoryServer(slow_spoken()), local=device, preset=chosen) as one:
        first = await ask(one)
        assert first.text == "".join(WORDS)
        assert (first.route.winner, device.loads) == ("server", 1)
        statistics = next(s for s in one.router.statistics.endpoints.values() if s.line is not None)
        assert statistics.load_s == pytest.approx(0.9)  # not the two seconds that were assumed
        second = await ask(one)
        assert [(a.endpoint, a.cold) for a in second.route.attempts] == [("device", False)]


async def test_a_device_that_is_only_a_fallback_or_a_target_loads_from_the_first_request_on():
    device = ColdDevice(3.0, ttft_s=0.05, decode_tps=50.0)
    async with client(MemoryServer(slow_spoken()), local=device, preset=preset("server_only")) as one:
        stream = await create(one, stream=True)
        async with stream as chunks:
            async for _ in chunks:
                break
            assert (device.loads, device.left_s > 0) == (1, True)
            await anyio.sleep(3.1)
            assert device.left_s == 0
    idle = ColdDevice(3.0)
    async with client(MemoryServer(slow_spoken()), local=idle, preset=preset("server_only")) as one:
        answer = await ask(one, reach="any", budget_class="standard")
        assert (idle.loads, answer.route.winner) == (1, "server")


def test_the_answer_does_not_wait_for_a_model_that_is_not_needed():
    """Its end is the answer's end, even where loading takes an hour or fails."""

    class Broken(ColdDevice):
        async def warm_up(self):
            await super().warm_up()
            raise RuntimeError("no such file")

    async def run(device):
        async with client(MemoryServer(spoken(WORDS)), local=device, preset=preset("server_only")) as one:
            began_at = anyio.current_time()
            assert (await ask(one)).text == "".join(WORDS)
            return anyio.current_time() - began_at

    for device in (ColdDevice(3600.0), Broken(0.0)):
        name, options = moved_clock.virtual("asyncio")
        assert anyio.run(run, device, backend=name, backend_options=options) < 60


def test_a_migration_counts_the_time_that_is_left():
    """The model loads while the server writes: what is over of it need not be banked."""
    profiles = {
        "server": SimulatedProfile(ttft_s=0.2, decode_tps=20.0, answer_tokens=200),
        "device": SimulatedProfile(ttft_s=0.1, decode_tps=40.0, answer_tokens=200),
    }
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")})
    how = {"costs": {"server": 1e-3, "device": 1e-9}, "pace": Pace(tps=5.0), "timeouts": NO_CLOCKS}

    def decided_s(**of_device):
        (move,) = check(play(profiles, plan, believed={"device": of_device}, **how)).migrations
        assert move.late_tokens == 0
        return move.decided_s

    warm_s, loading_s = decided_s(), decided_s(load_s=3.0, loads=True)
    assert warm_s < loading_s < decided_s(load_s=3.0) - 0.2


def test_once_loaded_the_targets_time_is_known():
    profiles = {"server": SimulatedProfile(), "device": SimulatedProfile()}
    plan = Plan((Start("server"),), ("device",), {"server": Migration("device")})
    believed = {"device": {"load_s": 3.0, "loads": True, "prefill_tps": 100.0}}
    session = session_of(profiles, plan, believed=believed, costs={"server": 1e-3, "device": 1e-9})
    session.start(0.0)
    session.migration.writer_is(session.attempts[0])
    assert session.migration._rule(target_has_prompt=False).order == "make_before_break"
    session.loaded("device", 1.0)
    assert session.migration._rule(target_has_prompt=False).order == "break_before_make"
    assert session.candidates["device"].load_s == 0.0
    assert believed["device"]["load_s"] == 3.0


@given(
    load_s=st.floats(0.0, 20.0),
    loads=st.booleans(),
    overhead_s=st.floats(0.0, 20.0),
    spared=st.sets(st.sampled_from(["cloud"])),
    after_s=st.floats(0.0, 2.0),
)
def test_another_endpoint_writes_only_if_it_is_sooner_and_may(load_s, loads, overhead_s, spared, after_s):
    cold, cloud = replace(COLD, load_s=load_s, loads=loads), replace(CLOUD, overhead_s=overhead_s)
    starts = (Start("device", after_s),)
    found = with_writer(starts, [cold, cloud, SPARE], spared, 100)
    helps = load_s > 0 and loads and not spared and overhead_s < after_s + load_s + 0.5
    assert found == ((*starts, Start("cloud")) if helps else starts)
    assert with_writer((*starts, Start("cloud", 1.0)), [cold, cloud], spared, 100)[2:] == ()


@pytest.mark.parametrize(("policy", "joins"), [("auto", True), ("device_only", False), ("cascade", False)])
def test_the_plan_of_a_cold_start(policy, joins):
    dear = replace(CLOUD, rates=Rates(1.0, 1.0), continues=True)
    known = {"lengths": Lengths.from_samples([100]), "ttft": Empirical.from_samples([0.5])}
    one = Dispatcher(Preset(dispatch={"policy": policy}), **known, rng=np.random.default_rng(0))
    for device, expected in ((COLD, joins), (replace(COLD, load_s=0.0), False)):
        plan = one.plan(Features(20), [device, dear], {})
        assert plan.starts[0].endpoint == "device"
        assert (len(plan.starts) == 2) == expected
        assert plan.loading({"device": device, "cloud": dear}) == (["device"] if device.load_s else [])
    background = one.plan(Features(20), [COLD, dear], {}, budget_class="background")
    assert len(background.starts) == 1
    local = one.plan(Features(20, reach="device"), [COLD, dear], {})
    assert [start.endpoint for start in local.starts] == ["device"]


def test_a_model_that_is_spared_or_cools_down_is_not_loaded_before_it_is_needed():
    known = {"lengths": Lengths.from_samples([100]), "ttft": Empirical.from_samples([0.5])}
    one = Dispatcher(Preset(dispatch={"policy": "server_only"}), **known, rng=np.random.default_rng(0))
    both = {"device": COLD, "cloud": CLOUD}
    assert one.plan(Features(20), [COLD, CLOUD], {}).loading(both) == ["device"]
    for away in (
        {"spared": {"device": CoolDown("device", "low")}},
        {"resting": {"device": CoolDown("device", "failures")}},
    ):
        plan = one.plan(Features(20), [COLD, CLOUD], {}, **away)
        assert plan.fallbacks == ("device",)
        assert plan.loading(both) == []
        local = one.plan(Features(20, reach="device"), [COLD, CLOUD], {}, **away)
        assert local.loading(both) == ["device"]


def test_what_is_left_of_loading_and_what_is_learnt():
    known = EndpointStatistics(
        ttft=Rolling(prior=Empirical.from_samples([0.5]), prior_weight=1.0), load_s=4.0
    )

    def left_s(**able):
        return known.candidate("device", "device", Rates(), Capabilities(**able)).load_s

    assert [left_s(ready=True), left_s(ready=False), left_s(ready=False, loading_s=3.0)] == [0.0, 4.0, 1.0]
    assert left_s(ready=False, loading_s=3.9) == pytest.approx(0.4)  # it may be late
    assert left_s(ready=False, loading_s=60.0) == pytest.approx(
        6.0
    )  # who is that late is not expected at once
    known.saw(Capabilities(ready=False))
    assert known.load_s == 4.0
    known.saw(Capabilities(load_s=1.5))
    assert left_s(ready=False) == 1.5


@pytest.mark.real
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_real_model_loads_while_the_server_writes(monkeypatch):
    """The whole answer comes while the model is held up in its loading; the loop goes on."""
    gate, begun, start = threading.Event(), threading.Event(), HostProcess._start

    class Server(MemoryServer):
        async def handle_async_request(self, request):
            assert await anyio.to_thread.run_sync(begun.wait, 60.0), "the model was not loaded"
            return await super().handle_async_request(request)

    def held_up(process):
        begun.set()
        gate.wait(60)
        return start(process)

    monkeypatch.setattr(HostProcess, "_start", held_up)
    device = HostEndpoint(name="device", context_tokens=512, threads=1)
    chosen = preset("length_threshold", budget=0.0)
    try:
        async with client(Server(spoken(WORDS)), local=device, preset=chosen) as one:
            first = await ask(one)
            assert (first.text, first.route.winner) == ("".join(WORDS), "server")
            able = device.capabilities()
            assert (able.ready, able.load_s, able.loading_s > 0) == (False, None, True)
            gate.set()
            await device.warm_up()
            assert device.capabilities().load_s > 0.01
            second = await create(one, [{"role": "user", "content": "Hello"}], max_tokens=2)
            assert [(a.endpoint, a.cold) for a in second.route.attempts] == [("device", False)]
            statistics = next(s for s in one.router.statistics.endpoints.values() if s.line is not None)
            assert statistics.load_s == pytest.approx(device.capabilities().load_s)
    finally:
        gate.set()
        await device.aclose()
