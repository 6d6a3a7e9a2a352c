"""The rule of [power]: nothing flaps, nothing unknown counts, and no request is refused because of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.dispatch import Candidate, Dispatcher, Features, Preset, Start, load_preset
from disco.dispatch.power.power_rule import (
    CLOCK_BAND,
    LOAD_BAND,
    LOW_BAND,
    PowerState,
    power_of,
    spared_by,
    step,
    with_offline,
    with_traffic,
)
from disco.dispatch.power.power_section import PowerSection
from disco.errors import ConfigurationError
from disco.plan import CoolDown, Power
from disco.power import UNKNOWN, PowerReadings
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

SECTION = PowerSection()
AT_ONCE = PowerSection(stay_s=0.0)
SHARES = st.none() | st.floats(0, 1)
FLAGS = st.sampled_from([None, False, True])
READINGS = st.builds(
    PowerReadings,
    on_battery=FLAGS,
    battery_share=SHARES,
    clock_share=SHARES,
    load_share=SHARES,
    metered=FLAGS,
)
SECTIONS = st.builds(
    PowerSection,
    low_share=st.floats(0, 1),
    throttled_clock=st.floats(0, 1),
    loaded_share=st.floats(0, 1),
    stay_s=st.sampled_from([0.0, 5.0, 60.0]),
    spare=st.lists(st.sampled_from(["low", "throttled", "loaded", "metered"]), unique=True).map(tuple),
)
LAPTOP = Candidate("laptop", "device", rates=Rates(1e-9, 1e-9, cached_share=0.0), continues=True, parks=True)
CLOUD = Candidate("cloud", "any", rates=Rates(1.5e-7, 6e-7), continues=True, overhead_s=1.5)
HOME = replace(CLOUD, name="home", reach="own", rates=Rates(1e-7, 1e-7))


def after(*readings: PowerReadings, section: PowerSection = AT_ONCE) -> PowerState:
    """The state after these readings, a second apart."""
    state = PowerState()
    for now, one in enumerate(readings):
        state = step(state, one, section, float(now))
    return state


def planned(features: Features, candidates, *, preset: str | Preset = "balanced", power=None, resting=()):
    dispatcher = Dispatcher(
        load_preset(preset),
        lengths=Lengths.from_samples([10, 20, 400]),
        ttft=Empirical.from_samples([0.3, 0.5, 4.0]),
        rng=np.random.default_rng(0),
    )
    cooling = {name: CoolDown(name, "offline") for name in resting}
    return dispatcher.plan(features, candidates, {}, resting=cooling, spared=spared_by(power, candidates))


@given(st.lists(st.tuples(st.floats(0.01, 30.0), READINGS), max_size=60), SECTIONS)
def test_no_condition_changes_twice_within_its_stay_whatever_the_readings_do(course, section):
    state, now, changes = PowerState(), 0.0, {}
    for after_s, readings in course:
        now += after_s
        new = step(state, readings, section, now)
        assert (new is state) == (new.holding == state.holding)
        for condition in new.holding ^ state.holding:
            changes.setdefault(condition, []).append(now)
        state = new
    for times in changes.values():
        assert all(b - a >= section.stay_s for a, b in pairwise(times))


@given(
    st.sampled_from(
        [
            ("battery_share", 0.2, 0.2 + LOW_BAND, "low"),
            ("clock_share", 0.6, 0.6 + CLOCK_BAND, "throttled"),
            ("load_share", 0.9 - LOAD_BAND, 0.9, "loaded"),
        ]
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=50),
    st.booleans(),
)
def test_noise_inside_a_band_changes_nothing_from_either_side(band, noise, held):
    """Without any shortest stay: the band alone holds."""
    name, low, high, condition = band
    inside = [low + (high - low) * (0.001 + 0.998 * part) for part in noise]
    extreme = {"load_share": 1.0}.get(name, 0.0)  # a reading at which the condition holds for sure
    begun = [PowerReadings(on_battery=True, **{name: extreme})] if held else []
    state = after(*begun)
    assert (condition in state.holding) == held
    for now, value in enumerate(inside, 1):
        state = step(state, PowerReadings(on_battery=True, **{name: value}), AT_ONCE, float(now))
        assert (condition in state.holding) == held


@given(READINGS, SECTIONS)
def test_what_is_not_known_begins_nothing_and_the_extremes_begin_what_they_say(readings, section):
    assert step(PowerState(), UNKNOWN, section, 0.0).holding == frozenset()
    state = step(PowerState(), readings, section, 0.0)
    said = {
        "battery": readings.on_battery is True,
        "metered": readings.metered is True,
        "throttled": readings.clock_share is not None and readings.clock_share <= section.throttled_clock,
        "loaded": readings.load_share is not None and readings.load_share >= section.loaded_share,
        "low": readings.battery_share is not None
        and readings.on_battery is not False
        and readings.battery_share <= section.low_share,
    }
    assert state.holding == {name for name, holds in said.items() if holds}
    power = power_of(state, readings, section)
    assert power.energy_factor == (
        section.low_factor
        if "low" in state.holding
        else section.battery_factor
        if "battery" in state.holding
        else 1.0
    )
    assert power.spared is None or (power.spared in state.holding and power.spared in section.spare)
    assert (power.spared is None) == state.holding.isdisjoint(section.spare)


def test_a_clock_that_goes_back_stands_still():
    low = PowerReadings(on_battery=True, battery_share=0.1)
    state = step(PowerState(), low, SECTION, 1000.0)
    full = PowerReadings(on_battery=False, battery_share=1.0)
    assert step(state, full, SECTION, 0.0) is state
    assert step(state, full, SECTION, 1059.0) is state
    assert step(state, full, SECTION, 1060.0).holding == frozenset()


POWERS = st.builds(Power, spared=st.sampled_from([None, "low", "throttled", "loaded", "metered"]))


@given(
    POWERS,
    st.lists(st.sampled_from([LAPTOP, CLOUD, HOME]), min_size=1, unique=True),
    st.sampled_from(["balanced", "cheap", "server-first", "fast", "private"]),
    st.sampled_from(["device", "own", "any"]),
    st.frozensets(st.sampled_from(["cloud", "home"])),
)
def test_a_spared_endpoint_is_still_there_and_no_request_is_refused_because_of_it(
    power, candidates, preset, reach, offline
):
    features = Features(300, reach=reach)
    try:
        before = planned(features, candidates, preset=preset, resting=offline)
    except Exception as refusal:  # noqa: BLE001 - the same must be refused, for the same reason
        with pytest.raises(type(refusal)):
            planned(features, candidates, preset=preset, power=power, resting=offline)
        return
    plan = planned(features, candidates, preset=preset, power=power, resting=offline)

    def serving(of):
        return {s.endpoint for s in of.starts} | set(of.fallbacks)

    assert serving(plan) == serving(before)
    spared = {rest.endpoint for rest in plan.deprioritised if rest.is_spared}
    assert spared <= set(spared_by(power, candidates))
    assert not spared & {s.endpoint for s in plan.starts}
    assert not spared & {move.target for move in plan.migrations.values()}
    if {c.reach for c in candidates if c.name in serving(plan)} == {"device"}:
        assert plan == before


LOW = Power(spared="low")


def test_a_low_device_waits_behind_servers_that_work_and_before_one_that_cannot_be_reached():
    both = [LAPTOP, CLOUD]
    assert planned(Features(5), both).starts == (Start("laptop"),)
    plan = planned(Features(5), both, power=LOW)
    assert (plan.starts, plan.fallbacks) == ((Start("cloud"),), ("laptop",))
    assert plan.deprioritised == (CoolDown("laptop", "low"),)
    offline = planned(Features(5), both, power=LOW, resting=["cloud"])
    assert (offline.starts, offline.fallbacks) == ((Start("laptop"),), ("cloud",))
    assert [rest.reason for rest in offline.deprioritised] == ["offline"]
    three = planned(Features(5), [LAPTOP, CLOUD, HOME], power=LOW, resting=["cloud"])
    assert (three.starts, three.fallbacks) == ((Start("home"),), ("laptop", "cloud"))
    local = planned(Features(5, reach="device"), both, power=LOW)
    assert (local.starts, local.fallbacks, local.deprioritised) == ((Start("laptop"),), (), ())


def test_a_metered_network_spares_what_is_behind_it_and_its_traffic_has_a_price_for_plans_alone():
    plan = planned(Features(900), [LAPTOP, CLOUD, HOME], preset="fast", power=Power(spared="metered"))
    assert {s.endpoint for s in plan.starts} == {"laptop", "home"}
    assert plan.fallbacks == ("cloud",)
    dearer = with_traffic(CLOUD, 1.0)
    assert dearer.rates == Rates(1.5e-7 + 4e-6, 6e-7 + 250e-6)
    assert [payer.rates for payer in dearer.payers] == [CLOUD.rates]
    assert with_traffic(CLOUD, 0.0) is CLOUD
    assert with_traffic(LAPTOP, 1.0) is LAPTOP
    assert with_traffic(HOME, 1.0) is HOME


def test_no_route_is_a_condition_of_the_record():
    assert with_offline(Power(conditions=("low",)), ["cloud"]).conditions == ("low", "offline")
    assert with_offline(LOW, []) is LOW
    assert with_offline(None, ["cloud"]) is None


def test_mistakes_in_the_section_and_in_readings_say_what_is_wrong():
    for values, said in (
        ({"battery_factor": 0.5}, "battery_factor"),
        ({"low_share": 20}, "low_share"),
        ({"spare": ["battery"]}, "spare"),
        ({"low_shares": 0.2}, "low_share"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            load_preset({"power": values})
    for share in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="battery_share must be 0 to 1"):
            PowerReadings(battery_share=share)
