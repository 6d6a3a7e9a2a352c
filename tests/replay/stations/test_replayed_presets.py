"""`disco replay routes.jsonl --preset NAME`: a recording under the preset that it was made with, and under others."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from lived import Asked, Side, live

from disco.cli.main import main
from disco.dispatch import Preset, load_preset
from disco.judging import FileStore, HistoryKey, StoredHistory
from disco.replay.stations import AsLive, simulate_stations
from disco.replay.stations.recorded_stations import read_recording

SIDES = (
    Side("device", 0, prefill_tps=201.3, ttft_s=0.0, decode_tps=30.7, mean_logp=-0.5),
    Side("server", 1, ttft_s=0.4037, decode_tps=61.3, usd_per_token=8e-6),
)


def recording(
    tmp_path, preset: Preset, *, requests: int = 60, gap_s: float = 30.0, prompts=(10, 300), answers=(5, 35)
):
    rng = random.Random(5)
    asked = []
    for number in range(requests):
        tokens = rng.randint(*answers)
        asked.append(
            Asked(number * gap_s, rng.randint(*prompts), dict.fromkeys(("device", "server"), tokens))
        )
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
        (["replay", str(bytes_toml), "--preset", "cascade"], "is no recording"),
    ):
        assert main(options) != 0
        assert message in capsys.readouterr().err


def test_a_device_may_draft_for_the_server_of_a_preset(tmp_path):
    path, _ = recording(tmp_path, load_preset("fast"), requests=20, prompts=(60, 110), answers=(90, 120))
    pair = tmp_path / "pair.toml"
    pair.write_text(
        "verify_ms = [[1, 29], [2, 31], [5, 43], [9, 61]]\nrtt_ms = 2\nacceptance = 0.8\ndraft_ms = 3\n"
    )
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[dispatch]\npolicy = "server_only"\n[playback]\npace_tps = "off"\n[speculate]\nwindow = 4\n'
    )
    drafted, notes = replayed(path, mine, more=["--pair", str(pair)])
    alone, hints = replayed(path, mine)
    assert not any("--pair" in note for note in notes)
    assert any("[speculate] has no effect here without --pair" in note for note in hints)
    assert drafted["mine"]["first"]["server"] == alone["mine"]["first"]["server"] == 1
    # What this machine drafted in vain, the server has computed.
    assert drafted["mine"]["bill_usd"] > 1.02 * alone["mine"]["bill_usd"]


def test_the_judge_may_know_earlier_scores(tmp_path, capsys):
    """With many lower scores before, no answer is doubted; without the file, its share is."""
    path, _ = recording(tmp_path, load_preset("cascade"), requests=30)
    file = tmp_path / "scores.json"
    low = tuple(1e-4 + 1e-6 * i for i in range(400))
    FileStore(file).save({HistoryKey("default", "device/", "sum"): StoredHistory(low, len(low))})
    known, _ = replayed(path, "cascade", more=["--histories", str(file)])
    fresh, _ = replayed(path, "cascade")
    assert known["cascade"]["rose"] == 0
    assert fresh["cascade"]["rose"] > 0.1
    for name, message in (
        ("none.json", f"there is no file {tmp_path / 'none.json'}; check the path"),
        (path, "holds no histories"),
    ):
        assert main(["replay", str(path), "--preset", "cascade", "--histories", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


def test_a_verdict_before_the_end_comes_again_at_its_token(tmp_path):
    """Recorded scores come to the verdicts that were recorded, where nothing else has changed."""
    preset = Preset(
        name="early",
        dispatch={"policy": "cascade"},
        cascade={"beta": 0.5, "stream": "whole", "early_exit": True},
        migration={"enabled": False},
    )
    path, records = recording(tmp_path, preset, requests=60, gap_s=60.0)
    found = read_recording(path)
    stations = found.stations(preset)
    again = {}
    simulate_stations(found.workload(stations, seed=0), stations, AsLive(preset), on_record=again.__setitem__)
    then = [[(j.outcome, j.tokens) for j in one.judgements] for one in records]
    now = [[(j.outcome, j.tokens) for j in again[row].judgements] for row in range(len(records))]
    same = sum(a == b for a, b in zip(then, now, strict=True))
    early = [one.judgements[0].tokens < one.attempts[0].tokens for one in records if one.judgements]
    assert any(early)
    assert same >= 0.9 * len(records)


def test_a_tier_that_began_few_answers_has_the_times_it_was_seen_with(tmp_path):
    """The client had planned with no time at all, and a first word after 0 s would be nobody's."""
    recorded = Path(__file__).parents[3] / "docs" / "pictures" / "records" / "cascade.jsonl"
    out = tmp_path / "out.json"
    assert main(["replay", str(recorded), "--preset", "server-first", "--json", str(out)]) == 0
    firsts = [row["ttft_p50_s"] for row in json.loads(out.read_text())["presets"]]
    assert all(first > 0.1 for first in firsts)


def test_policies_name_the_endpoints_that_they_leave_out(capsys):
    recorded = Path(__file__).parents[3] / "docs" / "pictures" / "records" / "cascade.jsonl"
    assert main(["replay", str(recorded), "--policy", "race"]) == 0
    assert "but the recording has server, too" in " ".join(capsys.readouterr().out.split())
