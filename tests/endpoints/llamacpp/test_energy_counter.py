"""Linux's energy counters, in a folder that looks as the kernel's: no machine of the tests has them."""

from __future__ import annotations

import pytest

from disco.cli.profile import _energy
from disco.endpoints.llamacpp.runtime.energy_counter import EnergyCounter
from disco.endpoints.llamacpp.runtime.speed_benchmark import (
    DecodeRate,
    Measurement,
    PrefillTime,
    joules,
    joules_since,
)


def zone(folder, name, energy_uj, range_uj=1_000_000_000, *, of="package-0"):
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "name").write_text(f"{of}\n")
    (made / "energy_uj").write_text(f"{energy_uj}\n")
    (made / "max_energy_range_uj").write_text(f"{range_uj}\n")


def test_packages_are_summed_their_parts_are_not_and_a_counter_may_wrap(tmp_path):
    zone(tmp_path, "intel-rapl:0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", 1_000_000)
    zone(tmp_path, "intel-rapl:1", 999_000_000)
    counter = EnergyCounter.find(tmp_path)
    assert counter.joules() == 0.0
    zone(tmp_path, "intel-rapl:0", 7_000_000)
    zone(tmp_path, "intel-rapl:0:0", 9_000_000)
    zone(tmp_path, "intel-rapl:1", 500_000)  # it began again at 10⁹
    assert counter.joules() == pytest.approx(2.0 + 1.5)
    assert counter.joules() == pytest.approx(3.5)


def test_the_whole_platform_which_has_the_packages_in_it_is_not_added_to_them(tmp_path):
    zone(tmp_path, "intel-rapl:0", 5_000_000)
    zone(tmp_path, "intel-rapl:1", 50_000_000, of="psys")  # as laptops have it
    counter = EnergyCounter.find(tmp_path)
    zone(tmp_path, "intel-rapl:0", 7_000_000)
    zone(tmp_path, "intel-rapl:1", 60_000_000, of="psys")
    assert counter.joules() == pytest.approx(2.0)


def test_without_a_counter_that_may_be_read_there_is_none(tmp_path):
    assert EnergyCounter.find(tmp_path) is None
    assert EnergyCounter.find(tmp_path / "missing") is None
    zone(tmp_path, "intel-rapl:0", "no number")
    assert EnergyCounter.find(tmp_path) is None
    zone(tmp_path, "intel-rapl:0", 5)
    counter = EnergyCounter.find(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert joules(counter) is None
    assert joules_since(counter, 0.0) is None
    assert joules_since(None, None) is None


def test_a_profile_has_the_energy_of_a_token_only_where_it_was_counted():
    def measured(prefill, decode):
        return Measurement(0.1, tuple(prefill), tuple(decode), 2048, 1, 64)

    counted = measured(
        [PrefillTime(100, 1.0, 2.0), PrefillTime(300, 3.0, 6.0)],
        [DecodeRate(32, 10.0, 0.5), DecodeRate(512, 9.0, 0.7), DecodeRate(1024, 8.0, 0.6)],
    )
    energy = _energy(counted)
    assert (energy.prefill_j_per_token, energy.decode_j_per_token) == (pytest.approx(0.02), 0.6)
    assert _energy(measured([PrefillTime(100, 1.0)], [DecodeRate(32, 10.0)])) is None
