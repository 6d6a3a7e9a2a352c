"""A laptop's day: both days of a pair have the same requests, and the rule changes what it says and nothing else."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from papers.day import DAY, Phase, day_tables, run_day
from papers.day.__main__ import main
from papers.day.day_schedule import kind_at, phase_at, readings_at, trace_of
from papers.day.day_tables import day_dict

from disco.cost.unified_cost import FLOPS_PER_JOULE
from disco.errors import ConfigurationError
from disco.profiles import load_device, load_lengths, load_prices, load_server, save_profile

PHONE = load_device("xiaomi14-qwen1.5-0.5b")
SERVER = load_server("gpt-4o-mini-2024")
PRICE = load_prices().price("gpt-4o-mini")
LENGTHS = load_lengths("lengths-azure-conv-2023")
SHORT = (
    Phase("plugged", 0, 0.5, 8),
    Phase("low", 0.5, 1, 12, (0.15, 0.1)),
    Phase("asleep", 1, 2, 0),
    Phase("offline", 2, 2.5, 8, (0.9, 0.8)),
)


def day_of(preset="balanced", *, device=PHONE, day=SHORT, seeds=2, **more):
    (result,) = run_day(
        device, SERVER, PRICE, LENGTHS, presets=[preset], day=day, seeds=seeds, max_tokens=40, **more
    )
    return result


def test_the_shipped_day_is_whole_and_its_requests_come_when_it_says():
    assert [(p.ends_h, q.begins_h) for p, q in pairwise(DAY) if p.ends_h != q.begins_h] == []
    assert (DAY[0].begins_h, DAY[-1].ends_h) == (0, 24)
    assert {p.kind for p in DAY} == {"plugged", "unplugged", "low", "asleep", "offline", "metered"}
    assert sum(p.per_hour * (p.ends_h - p.begins_h) for p in DAY) == pytest.approx(165.5)
    trace = trace_of(DAY, LENGTHS, seed=1)
    kinds = kind_at(DAY, trace.arrival_s)
    assert "asleep" not in kinds
    assert len(kinds) == pytest.approx(165.5, abs=5 * math.sqrt(165.5))
    assert np.all(np.diff(trace.arrival_s) >= 0)


def test_readings_follow_the_schedule():
    half_past_four = readings_at(DAY, 16.25 * 3600, 0.0)
    assert half_past_four.on_battery
    assert half_past_four.battery_share == pytest.approx(0.125)
    assert readings_at(DAY, 8.5 * 3600, 0.0).metered
    assert readings_at(DAY, 18 * 3600, 0.5).battery_share == 1.0
    assert phase_at(DAY, 24 * 3600.0).kind == "asleep"


def test_a_low_battery_is_spared_and_all_else_is_the_same():
    result = day_of()
    without, powered = result.without, result.with_power
    for kind in ("plugged", "offline"):
        assert without[kind] == powered[kind]
    assert powered["low"].energy_j.mean < 0.2 * without["low"].energy_j.mean
    assert powered["low"].server_usd.mean > without["low"].server_usd.mean
    assert powered["low"].device_share.mean < without["low"].device_share.mean
    assert result.saved["energy_j"].mean == pytest.approx(
        without["all"].energy_j.mean - powered["all"].energy_j.mean
    )
    for figures in (without, powered):
        assert figures["offline"].server_usd.mean == 0.0
        assert figures["offline"].device_share.mean == 1.0
        assert figures["all"].failed.mean == 0.0
        assert figures["plugged"].battery_j.mean == 0.0
    assert day_of() == result


def test_offline_a_prompt_that_is_too_long_for_the_device_fails():
    small = PHONE.model_copy(update={"context_tokens": 300})
    result = day_of(device=small, seeds=1)
    assert result.without["offline"].failed.mean > 0
    assert result.without["plugged"].failed.mean == 0


def test_energy_is_that_of_the_tokens_computed():
    """Alone on the device, offline: every prompt is read once and every answer written once."""
    result = day_of("cheap", day=(Phase("offline", 0, 1, 20, (0.9, 0.8)),), seeds=1)
    trace = trace_of((Phase("offline", 0, 1, 20, (0.9, 0.8)),), LENGTHS, seed=0)
    prompts = trace.prompt_tokens.tolist()
    flops = sum(p * PHONE.flops.prefill_at(p) for p in prompts)
    flops += np.minimum(np.maximum(trace.output_tokens, 1), 40).sum() * PHONE.flops.decode
    assert result.without["all"].energy_j.mean == pytest.approx(flops / FLOPS_PER_JOULE)


def test_tables_and_json_have_every_phase():
    result = day_of()
    tables = day_tables([result])
    assert [t.title.removeprefix("Phase: ") for t in tables[2:]] == ["plugged", "low", "offline"]
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    data = json.loads(json.dumps(day_dict([result])))
    assert set(data["days"][0]["with_power"]) == {"plugged", "low", "offline", "all"}


def test_one_day_has_no_intervals():
    whole, saved, *_ = day_tables([day_of(seeds=1)])
    assert "one day, so without intervals" in whole.notes[0]
    assert not any("±" in cell for table in (whole, saved) for row in table.rows for cell in row)


def test_what_it_cannot_run_is_refused():
    with pytest.raises(ConfigurationError, match="has no \\[flops\\]"):
        day_of(device=PHONE.model_copy(update={"flops": None}))
    with pytest.raises(ConfigurationError, match="judges or divides answers"):
        day_of("cascade")


def test_a_server_without_a_price_is_refused(tmp_path, capsys):
    save_profile(SERVER.model_copy(update={"price": None}), tmp_path / "own.toml")
    assert main(["--server", str(tmp_path / "own.toml")]) == 2
    assert "names no price" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_runs_and_writes_its_figures(tmp_path, capsys):
    path = tmp_path / "day.json"
    assert main(["--quick", "--device", PHONE.name, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "What the rule saved a day" in printed
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [one["preset"] for one in data["days"]] == ["balanced", "cheap", "server-first", "fast"]
    assert all(one["seeds"] == 3 for one in data["days"])
