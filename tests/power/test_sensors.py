"""What the platform tells of this machine, with the real psutil and with one that tells what others would."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from disco.power import UNKNOWN, MachineSensors, network
from disco.power.network import is_metered, metered_of
from disco.power.sensors import has_sensors

Battery = namedtuple("Battery", "percent power_plugged")  # noqa: PYI024 - as psutil has it
Times = namedtuple("Times", "user system idle")  # noqa: PYI024 - as above
Freq = namedtuple("Freq", "current max")  # noqa: PYI024 - as above
NO_SUPPLIES = Path("no such folder")  # as everywhere but on Linux


class Machine:
    """psutil of another machine. Mutable: all of it."""

    Error = psutil.Error

    def __init__(self):
        self.busy_s, self.own_s = 0.0, 0.0
        self.battery = Battery(80.0, True)
        self.cores = [Freq(1500.0, 3000.0)]
        self.load = (0.0, 0.0, 0.0)
        self.children = []

    def sensors_battery(self):
        return self.battery

    def cpu_count(self):
        return 4

    def cpu_times(self):
        return Times(self.busy_s, 0.0, 1e6)

    def cpu_freq(self, percpu):
        assert percpu
        return self.cores

    def getloadavg(self):
        return self.load

    def Process(self):  # noqa: N802 - as psutil has it
        used = SimpleNamespace(user=self.own_s, system=0.0)
        return SimpleNamespace(cpu_times=lambda: used, children=lambda: self.children)


class At:
    """A clock. Mutable: `now`."""

    now = 100.0

    def __call__(self):
        return self.now


def sensors_of(machine, clock=None, metered=None, supplies=NO_SUPPLIES):
    return MachineSensors(
        psutil=machine, metered=metered or (lambda: None), clock=clock or At(), supplies=supplies
    )


def test_the_real_psutil_is_read_on_this_machine_and_tells_what_it_can():
    assert has_sensors()
    sensors = MachineSensors()
    readings = sensors.read()
    assert readings.load_share is None  # of a single reading nothing is known
    assert readings.on_battery in (None, False, True)
    if psutil.sensors_battery() is None:
        assert readings.battery_share is None


def test_load_is_that_of_others_and_the_clock_counts_only_at_work():
    machine, clock = Machine(), At()
    sensors = sensors_of(machine, clock)
    assert (sensors.read().load_share, sensors.read().clock_share) == (None, None)
    clock.now += 10.0  # 40 core seconds passed: 30 busy, 20 of them this program's own
    machine.busy_s += 30.0
    machine.own_s += 20.0
    readings = sensors.read()
    assert readings.load_share == pytest.approx(0.25)
    assert readings.clock_share == pytest.approx(0.5)
    clock.now += 10.0
    machine.busy_s += 4.0
    readings = sensors.read()
    assert readings.load_share == pytest.approx(0.1)
    assert readings.clock_share is None  # an idle processor lowers its clock by itself
    clock.now += 0.1  # too soon to say: the next reading looks further back
    assert sensors.read().load_share is None
    clock.now += 9.9
    machine.busy_s += 8.0
    assert sensors.read().load_share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (
            [Freq(4000.0, 5000.0), Freq(800.0, 5000.0), Freq(800.0, 5000.0), Freq(4000.0, 5000.0)],
            0.8,
        ),  # two are idle
        ([Freq(2000.0, 5000.0), Freq(1500.0, 3000.0)], 0.5),  # hot: large cores and small ones alike
        ([Freq(3000.0, None), Freq(3000.0, 0.0)], None),  # as the kernel of a virtual machine tells it
        ([], None),
    ],
)
def test_the_clock_is_that_of_the_fastest_core_since_idle_ones_slow_down_by_themselves(cores, expected):
    machine, clock = Machine(), At()
    machine.cores = cores
    sensors = sensors_of(machine, clock)
    sensors.read()
    clock.now += 10.0
    machine.busy_s += 20.0  # half of all cores
    assert sensors.read().clock_share == expected


def test_a_child_that_computes_for_this_program_is_its_own_and_one_that_ends_is_no_fault():
    machine, clock = Machine(), At()

    def gone():
        raise psutil.NoSuchProcess(1)

    machine.children = [SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=machine.busy_s, system=0.0))]
    machine.children.append(SimpleNamespace(cpu_times=gone))
    sensors = sensors_of(machine, clock)
    sensors.read()
    clock.now += 10.0
    machine.busy_s += 40.0
    assert sensors.read().load_share == 0.0


def test_after_a_long_rest_the_systems_own_mean_counts():
    machine, clock = Machine(), At()
    sensors = sensors_of(machine, clock)
    sensors.read()
    clock.now += 3600.0
    machine.load = (3.0, 1.0, 1.0)
    assert sensors.read().load_share == pytest.approx(0.75)
    clock.now += 3600.0
    machine.load = (9.0, 1.0, 1.0)
    assert sensors.read().load_share == 1.0


@pytest.mark.parametrize(
    ("battery", "expected"),
    [
        (Battery(80.0, True), (False, 0.8)),
        (Battery(15.0, False), (True, 0.15)),
        (Battery(255.0, None), (None, 1.0)),  # some drivers say 255 for "not known"
        (None, (False, None)),  # no battery: it runs on none
    ],
)
def test_batteries_as_drivers_report_them(battery, expected):
    machine = Machine()
    machine.battery = battery
    readings = sensors_of(machine).read()
    assert (readings.on_battery, readings.battery_share) == expected


@pytest.mark.parametrize(
    ("supplies", "is_ours"),
    [
        ({"hidpp_battery_0": "Device\n"}, False),  # a desktop with a mouse: psutil tells the mouse's charge
        ({"BAT0": None, "hidpp_battery_0": "Device\n"}, True),  # psutil reads the first: the laptop's
        ({"BAT0": "System\n"}, True),
        ({"AC": None}, True),
    ],
)
def test_the_battery_of_a_mouse_is_not_the_machines(tmp_path, supplies, is_ours):
    for name, scope in supplies.items():
        (tmp_path / name).mkdir()
        if scope is not None:
            (tmp_path / name / "scope").write_text(scope)
    machine = Machine()
    machine.battery = Battery(12.0, False)
    readings = sensors_of(machine, supplies=tmp_path).read()
    assert (readings.on_battery, readings.battery_share) == ((True, 0.12) if is_ours else (None, None))


def test_a_platform_without_a_sensor_tells_nothing_and_a_driver_may_fail():
    machine = Machine()
    machine.sensors_battery = None  # as where psutil has no such function
    readings = sensors_of(machine).read()
    assert (readings.on_battery, readings.battery_share) == (None, None)

    def fails():
        raise OSError("driver")

    machine.sensors_battery = fails
    assert sensors_of(machine).read().on_battery is None


def test_without_psutil_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert MachineSensors().read() == UNKNOWN


def test_the_network_is_asked_once_a_minute_and_only_where_that_is_wanted():
    asked, clock = [], At()
    sensors = sensors_of(Machine(), clock, metered=lambda: asked.append(clock.now) or True)
    assert sensors.read().metered is None  # nobody has asked for it
    assert asked == []
    sensors.asks_network = True
    for _ in range(13):
        assert sensors.read().metered is True
        clock.now += 10.0
    assert asked == [100.0, 160.0, 220.0]


@pytest.mark.parametrize(
    ("printed", "metered"),
    [
        ("u 4\n", False),
        ("u 3\n", True),
        ("u 2", False),
        ("u 1", True),
        ("u 0", None),
        ("", None),
        ("s x", None),
    ],
)
def test_what_network_manager_says(printed, metered):
    assert metered_of(printed) is metered


def test_a_machine_without_network_manager_is_not_known_to_be_metered(monkeypatch):
    assert is_metered() in (None, False, True)  # whatever this machine has
    monkeypatch.setattr(network.shutil, "which", lambda name: None)
    assert is_metered() is None
    monkeypatch.setattr(network.shutil, "which", lambda name: f"/usr/bin/{name}")

    def hangs(*arguments, **more):
        raise subprocess.TimeoutExpired("busctl", 2.0)

    monkeypatch.setattr(network.subprocess, "run", hangs)
    assert is_metered() is None
    monkeypatch.setattr(network.sys, "platform", "win32")
    assert is_metered() is None
