"""Plans follow what is known of this machine, whoever knows it; the record says so, and no answer is lost for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

import anyio
import httpx2
import pytest
from defects.asking import client, create, device, question
from faults.in_memory import MemoryServer, Reply, anyio_backend, no_thread, spoken  # noqa: F401 - fixtures

from disco import AsyncDisco, ConfigurationError, Disco, LocalServer, PowerReadings
from disco._resources import resource_dir
from disco.client import power_watch
from disco.client.endpoint_catalog.pairs import drafting_of
from disco.client.power_watch import EVERY_S, OLD_S, PowerWatch
from disco.client.request_options import NO_OPTIONS
from disco.cost.model_flops import ModelShapes
from disco.dispatch import Preset, available_presets, load_preset
from disco.dispatch.power.power_section import PowerSection
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.gguf_header import Header
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import CoolDown, Power
from disco.power import UNKNOWN, MachineSensors

pytestmark = pytest.mark.anyio

HELLO = spoken(["The sea ", "is wide."])
PLUGGED = PowerReadings(on_battery=False, battery_share=1.0, metered=False)
LOW = PowerReadings(on_battery=True, battery_share=0.1)


class Laptop:
    """Readings as the test sets them. Mutable: `now`."""

    def __init__(self, now: PowerReadings = PLUGGED):
        self.now = now

    def __call__(self) -> PowerReadings:
        return self.now


def preset(policy: str = "auto", **power) -> Preset:
    return Preset(
        name="here", dispatch={"policy": policy}, power={"stay_s": 0.0, **power}, migration={"enabled": False}
    )


def both(laptop, *replies, policy: Preset | None = None, **more) -> tuple[MemoryServer, AsyncDisco]:
    """A device and a server, on this laptop."""
    server = MemoryServer(*(replies or (HELLO,)))
    here = device(answer="From here.", decode_tps=1e4)
    return server, client(server, local=here, preset=policy or preset(), power=laptop, **more)


async def test_the_first_writer_follows_the_battery_and_the_record_says_why():
    laptop = Laptop()
    _, one = both(laptop)
    async with one:
        routes = []
        for now in (PLUGGED, LOW, PLUGGED):
            laptop.now = now
            routes.append((await create(one)).route)
        assert [r.winner for r in routes] == ["device", "server", "device"]
        plugged, low, _ = routes
        assert (plugged.power.conditions, plugged.power.energy_factor) == ((), 1.0)
        assert plugged.deprioritised == ()
        assert low.power.conditions == ("battery", "low")
        assert (low.power.energy_factor, low.power.spared) == (2500.0, "low")
        assert low.deprioritised == (CoolDown("device", "low"),)
        costs = [{e.name: e.cost_out for e in r.endpoints} for r in routes]
        assert costs[1]["device"] == pytest.approx(2500 * costs[0]["device"])
        assert costs[1]["server"] == costs[0]["server"]
        assert low.to_dict()["power"] == {
            "conditions": ("battery", "low"),
            "energy_factor": 2500.0,
            "spared": "low",
            "traffic_usd_per_mb": 0.0,
            "on_battery": True,
            "battery_share": 0.1,
            "clock_share": None,
            "load_share": None,
            "metered": None,
        }
        assert '"power": {"conditions": ["battery", "low"]' in low.to_json()


async def test_what_must_stay_here_is_answered_here_whatever_the_battery_says():
    server, one = both(Laptop(LOW), policy=preset("race"))
    async with one:
        answer = await create(one, disco={"local_only": True})
        assert answer.choices[0].message.content == "From here."
        assert answer.route.deprioritised == ()
        assert answer.route.power.spared == "low"
        assert server.requests == []
    _, one = both(Laptop(LOW), policy=Preset(limits={"local_only": True}))
    async with one:
        assert (await create(one)).route.winner == "device"


async def test_a_spared_device_still_takes_over_from_a_server_that_fails():
    _, one = both(Laptop(LOW), Reply(before=[httpx2.ConnectError("refused")]))
    async with one:
        answer = await create(one)
        assert answer.choices[0].message.content == "From here."
        assert [a.endpoint for a in answer.route.attempts] == ["server", "device"]


async def test_on_battery_the_device_can_become_the_side_that_is_spared():
    """At 10⁹ FLOPs a token, 1e-9 USD per 10⁶ FLOPs on battery is dearer than this server; on the mains it is not."""
    policy = Preset(
        dispatch={"policy": "auto", "budget": 0.0},
        cost={"exchange_rate": 4e-12},
        power={"battery_factor": 1000.0, "stay_s": 0.0},
        migration={"enabled": False},
    )
    laptop = Laptop()
    _, one = both(laptop, policy=policy)
    async with one:
        assert [s[0] for s in (await create(one)).route.starts] == ["device"]
        laptop.now = PowerReadings(on_battery=True, battery_share=0.9)
        route = (await create(one)).route
        assert route.starts[0] == ("server", 0.0)
        assert (route.power.conditions, route.power.spared, route.deprioritised) == (("battery",), None, ())


async def test_a_metered_network_makes_servers_dearer_for_plans_and_not_for_the_bill():
    laptop = Laptop()
    dear = preset("server_only", metered_usd_per_mb=0.01)
    _, one = both(laptop, policy=dear, budget={"usd": 1.0, "window_s": 60})
    async with one:
        free = (await create(one)).route
        laptop.now = PowerReadings(on_battery=False, metered=True)
        paid = (await create(one)).route
        assert paid.power.conditions == ("metered",)
        assert paid.power.traffic_usd_per_mb == 0.01
        assert paid.endpoints == free.endpoints
        assert paid.policy_cost == pytest.approx(free.policy_cost)
        assert paid.budget["usd"]["spent"] == pytest.approx(free.budget["usd"]["spent"])


async def test_of_the_shipped_presets_only_cheap_asks_for_the_network_with_a_program_and_its_file_says_so():
    asked = set()
    for name in available_presets():
        sensors = MachineSensors(metered=partial(asked.add, name))
        async with AsyncDisco(local=device(), power=sensors) as one:
            await one.router.power.look(load_preset(name).power)
            await anyio.to_thread.run_sync(sensors.read)
    assert asked == {"cheap"}
    assert "busctl" in (resource_dir("policies") / "cheap.toml").read_text(encoding="utf-8")


async def test_a_section_that_is_off_and_a_client_that_is_told_false_ask_nothing():
    def refuse():
        raise AssertionError("asked")

    _, one = both(refuse, policy=preset(enabled=False))
    async with one:
        assert (await create(one)).route.power is None
    _, one = both(False)
    async with one:
        assert (await create(one)).route.power is None
        assert not one.router.power.is_on


async def test_a_source_that_fails_costs_one_warning_and_no_answer(caplog):
    def broken():
        raise RuntimeError("secret text of the driver")

    for source in (broken, lambda: {"on_battery": True}):
        caplog.clear()
        _, one = both(source)
        with caplog.at_level(logging.WARNING, logger="disco"):
            async with one:
                for _ in range(3):
                    assert (await create(one)).route.power.conditions == ()
        (warning,) = (r.getMessage() for r in caplog.records)
        assert "cannot be read: " in warning
        assert "secret" not in warning


def test_a_source_of_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match=r"power is 'on'\. Give False"):
        AsyncDisco(local=device(), power="on")


class Sensors:
    """Mutable: `now`, `threads` that asked, `lets`."""

    def __init__(self, now: PowerReadings = LOW):
        self.now, self.threads = now, []
        self.lets = threading.Event()
        self.lets.set()

    def read(self) -> PowerReadings:
        self.threads.append(threading.get_ident())
        self.lets.wait()
        return self.now


class Clocks:
    """Mutable: `monotonic`, `unix`, s."""

    monotonic, unix = 50.0, 1e9

    def __call__(self):
        return self.monotonic, self.unix

    def awake(self, seconds):
        self.monotonic += seconds
        self.unix += seconds

    def asleep(self, seconds):
        self.unix += seconds


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_sensors_are_read_in_a_thread_at_most_every_few_seconds_and_again_after_sleep(monkeypatch):
    monkeypatch.setattr(power_watch, "WAIT_S", 60.0)  # this machine may be busy
    host, sensors, clocks, section = BackgroundTasks(), Sensors(), Clocks(), PowerSection()
    watch = PowerWatch(sensors, host, now=clocks)
    try:
        assert (await watch.look(section)).spared == "low"  # it waited for the first readings
        clocks.awake(EVERY_S - 1)
        await watch.look(section)
        assert len(sensors.threads) == 1
        assert threading.get_ident() not in sensors.threads
        sensors.now = PLUGGED
        clocks.asleep(8 * 3600.0)  # on some platforms the monotonic clock stands still meanwhile
        assert (await watch.look(section)).conditions == ()
        assert len(sensors.threads) == 2
    finally:
        await host.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_slow_sensors_delay_nothing_but_the_readings(monkeypatch):
    monkeypatch.setattr(power_watch, "WAIT_S", 0.001)
    host, sensors, clocks, section = BackgroundTasks(), Sensors(), Clocks(), PowerSection()
    watch = PowerWatch(sensors, host, now=clocks)
    sensors.lets.clear()
    try:
        assert (await watch.look(section)).conditions == ()
        clocks.awake(OLD_S)
        assert (await watch.look(section)).conditions == ()
        reading = watch._ends
        sensors.lets.set()
        await reading.wait()
        assert len(sensors.threads) == 1  # one reading at a time
        assert (await watch.look(section)).spared == "low"
    finally:
        sensors.lets.set()
        await host.aclose()


async def test_presets_of_one_client_judge_the_same_readings_each_by_its_own_thresholds():
    watch = PowerWatch(Laptop(PowerReadings(on_battery=True, battery_share=0.3)), BackgroundTasks())
    eager = PowerSection(low_share=0.5)
    assert (await watch.look(PowerSection())).spared is None
    assert (await watch.look(eager)).spared == "low"
    assert (await watch.look(PowerSection())).spared is None


async def test_the_state_stays_for_a_while():
    laptop, clocks = Laptop(LOW), Clocks()
    watch = PowerWatch(laptop, BackgroundTasks(), now=clocks)
    section = PowerSection(stay_s=60.0)
    assert (await watch.look(section)).spared == "low"
    laptop.now = PLUGGED
    clocks.awake(59.0)
    assert (await watch.look(section)).spared == "low"
    clocks.unix -= 1e6  # somebody sets the clock
    clocks.monotonic += 1.0
    assert (await watch.look(section)).spared is None


async def test_the_environment_switches_psutil_off_and_another_servers_work_is_no_load(monkeypatch):
    """The tests themselves run with it off."""
    host = BackgroundTasks()
    assert not PowerWatch(None, host).is_on
    monkeypatch.delenv("DISCO_POWER")
    assert PowerWatch(None, host).is_on
    monkeypatch.setattr(power_watch, "has_sensors", lambda: False)
    assert not PowerWatch(None, host).is_on
    beside = LocalServer(base_url="http://127.0.0.1:1/v1", model="m")
    for local, knows in ((device(), True), (beside, False)):
        one = AsyncDisco(local=local, power=False)
        assert one.router.endpoints.runs_here == knows
    monkeypatch.setattr(power_watch, "has_sensors", lambda: True)
    monkeypatch.setattr(power_watch, "MachineSensors", lambda: Sensors(PowerReadings(load_share=1.0)))
    loads = []
    for knows in (True, False):
        watch = PowerWatch(None, host, knows_own_load=[lambda: False, lambda: True][knows])
        watch._take(watch._sensors.read)
        loads.append(watch._readings)
    assert loads == [PowerReadings(load_share=1.0), UNKNOWN]


async def test_an_urgent_request_without_money_for_the_server_says_how_much_is_left():
    _, one = both(Laptop(LOW), price=(1e6, 1e6), budget={"usd": 400, "per": "day"}, state=False)
    async with one:
        assert (await create(one, question(5))).route.bill_usd > 0
        route = (await create(one, question(500), disco={"budget_class": "urgent"})).route
    (why,) = [reason for reason in route.why if reason.does == "starts"]
    assert why.code in ("budget_short", "budget_low")
    assert why.value == pytest.approx(route.budget["usd"]["left"] / 400)
    assert why.value < 1


def test_first_requests_that_are_cancelled_at_once_leave_nothing_behind():
    """Neither a reading that never ends, nor a place in the device's queue: in each event loop, the first one waits."""
    settings = {"local": device(answer="From here."), "preset": preset("device_only"), "state": False}
    watched, unwatched = (client(power=source, **settings) for source in (Sensors(), False))

    async def cut(one: AsyncDisco, turns: int) -> None:
        asking = asyncio.ensure_future(create(one))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    for turns in range(1, 6):
        for one in (watched, unwatched):
            asyncio.run(cut(one, turns))
    assert asyncio.run(create(watched)).route.winner == "device"
    assert [s.planned for s in unwatched.router.statistics.endpoints.values()] == [0]


def test_the_synchronous_client_has_it_too():
    with Disco(preset="balanced", local=device(answer="From here."), power=Laptop(LOW)) as one:
        route = one.chat.completions.create(model="m", messages=question()).route
    assert (route.winner, route.power.spared) == ("device", "low")


def test_a_model_without_a_profile_is_charged_by_its_shapes_and_few_rates_are_kept():
    """Nothing is loaded for that: the file's header is read."""
    with Disco(local="smollm2-135m", power=False) as one:
        catalog, (member,) = one.router.catalog, one.router.endpoints.members(None)
        header = member.endpoint.header
        shapes = ModelShapes.of(header.metadata, vocabulary=header.tokens)
        known = catalog.rates(member, "m", one.router.preset)
        usd_per_flop = one.router.preset.cost.exchange_rate / 1e6
        assert known.cost_in == pytest.approx(usd_per_flop * shapes.prefill(128))
        assert known.cost_out == pytest.approx(usd_per_flop * shapes.decode(512))
        for factor in (1.0, 100.0, 2500.0) * 50:
            rates = catalog.rates(member, "m", one.router.preset, Power(energy_factor=factor))
            assert rates.cost_in == pytest.approx(factor * known.cost_in)
            assert rates is catalog.rates(member, "m", one.router.preset, Power(energy_factor=factor))
        assert catalog.rates(member, "m", one.router.preset) is known
        assert len(catalog._rates) == 3


def test_a_kind_of_model_that_the_count_does_not_know_counts_by_its_weights_once_they_are_known():
    class Unknown(SimulatedEndpoint):
        header = Header({"general.architecture": "mamba"}, None, 0)
        parameters = None

    here = Unknown("device", SimulatedProfile(), place="device")
    with Disco(local=here, power=False) as one:
        catalog, (member,) = one.router.catalog, one.router.endpoints.members(None)
        assumed = catalog.rates(member, "m", one.router.preset)
        assert assumed.cost_out == pytest.approx(4e-18 * 1e9)
        Unknown.parameters = 3_000_000_000
        assert catalog.rates(member, "m", one.router.preset).cost_out == pytest.approx(4e-18 * 6e9)


async def test_a_spared_device_drafts_for_nobody():
    spares = Power(spared="low")
    assert drafting_of(NO_OPTIONS, preset(), None) is not None
    assert drafting_of(NO_OPTIONS, preset(), spares) is None
    assert drafting_of(NO_OPTIONS, preset(), Power(spared="metered")) is not None
