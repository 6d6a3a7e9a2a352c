"""`disco replay routes.jsonl --preset NAME`: a recording under the preset that it was made with, and under others."""

from __future__ import annotations

import json
import random

import pytest
from lived import Asked, Side, live

from disco.cli.main import main
from disco.dispatch import Preset, load_preset

SIDES = (
    Side("device", 0, prefill_tps=201.3, ttft_s=0.0, decode_tps=30.7, mean_logp=-0.5),
    Side("server", 1, ttft_s=0.4037, decode_tps=61.3, usd_per_token=8e-6),
)


def recording(tmp_path, preset: Preset, *, requests: int = 60, gap_s: float = 30.0):
    rng = random.Random(5)
    asked = []
    for number in range(requests):
        tokens = rng.randint(5, 35)
        asked.append(Asked(number * gap_s, rng.randint(10, 300), dict.fromkeys(("device", "server"), tokens)))
    records = live(preset, SIDES, asked)
    path = tmp_path / "routes.jsonl"
    path.write_text("".join(f"{one.to_json()}\n" for one in records if one), encoding="utf-8")
    return path, [one for one in records if one]


def replayed(path, *presets, more=()):
    figures = path.with_name("figures.json")
    options = [option for preset in presets for option in ("--preset", str(preset))]
    assert main(["replay", str(path), *options, *more, "--json", str(figures)]) == 0
    found = json.loads(figures.read_text(encoding="utf-8"))
    return {one["preset"]: one for one in found["presets"]}, found["notes"]


@pytest.mark.parametrize("name", ["cascade", "assist", "balanced", "fast", "cheap"])
def test_the_preset_that_was_recorded_comes_out_as_it_was(tmp_path, capsys, name):
    path, records = recording(tmp_path, load_preset(name))
    found, _ = replayed(path, name)
    was, is_now = found["as it was"], found[name]
    shown = capsys.readouterr().out
    assert "as it was" in shown
    assert name in shown
    assert is_now["answers"] == was["answers"] == len(records)
    for figure in ("moved", "rose"):
        assert is_now[figure] == pytest.approx(was[figure], abs=0.05), figure
    assert is_now["first"] == pytest.approx(was["first"], abs=0.05)
    assert is_now["ttft_p50_s"] == pytest.approx(was["ttft_p50_s"], rel=0.1)
    assert is_now["bill_usd"] == pytest.approx(was["bill_usd"], rel=0.1)
    if name == "cascade":
        assert was["rose"] > 0.15
    if name == "assist":
        assert was["moved"] > 0.1


def test_presets_beside_each_other_and_from_a_file(tmp_path):
    path, _ = recording(tmp_path, load_preset("balanced"))
    mine = tmp_path / "mine.toml"
    mine.write_text('[dispatch]\npolicy = "cascade"\n[cascade]\nbeta = 0.6\nstream = "whole"\n')
    found, notes = replayed(path, "private", mine, more=["--seeds", "2"])
    assert found["private"]["first"]["server"] == 0
    assert found["private"]["bill_usd"] == 0
    assert found["mine"]["rose"] == pytest.approx(0.6, abs=0.1)
    assert any("No answer of device was judged" in note for note in notes)


def test_what_cannot_be_replayed_is_refused(tmp_path, capsys):
    path, _ = recording(tmp_path, load_preset("balanced"), requests=3)
    bytes_toml = tmp_path / "bytes.toml"
    bytes_toml.write_text(
        '[dispatch]\npolicy = "cascade"\n[cascade]\naim = "bytes"\nbytes_per_answer = 1e4\n'
    )
    for options, message in (
        (["replay", str(path), "--preset", "cascda"], "no preset is called 'cascda'"),
        (["replay", str(path), "--preset", str(bytes_toml)], "knows no bytes"),
        (["replay", "synthetic", "--preset", "cascade"], "--preset does not apply to `synthetic` requests"),
        (["replay", str(path), "--preset", "cascade", "--policy", "race"], "--policy does not apply to"),
        (["replay", str(bytes_toml), "--preset", "cascade"], "is no recording"),
    ):
        assert main(options) != 0
        assert message in capsys.readouterr().err
