"""Should I change something? Each command answers that from a recording, without a further option."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from defects.asking import create
from defects.asking import device as local_device
from recordings import RATES, SERVER, device, file_of, played
from session.recorded_kinds import DIES

from disco import Disco
from disco.cli import main
from disco.cost import Rates
from disco.dispatch import load_preset
from disco.plan import Start
from disco.session.records.route_record import RouteRecord

FAST_DEVICE = 0.002  # seconds per prompt token


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def answered(
    i: int, how: str, *, server_s: float = 0.6, s_per_token: float = FAST_DEVICE, **more
) -> RouteRecord:
    """One answer of a client: `how` is "server", "device", "race" or "failover"."""
    prompt = 20 + (i * 37) % 280
    profiles = {
        "device": device(0.1 + s_per_token * prompt),
        "server": replace(SERVER if how != "failover" else DIES, ttft_s=server_s + (i % 5) * 0.05),
    }
    starts = {"device": ["device"], "race": ["device", "server"]}.get(how, ["server"])
    rest = tuple(name for name in profiles if name not in starts)
    more = {"created_s": 1e9 + i * 10, "prompt_tokens": prompt, "pace_tps": 12.0, "fallbacks": rest, **more}
    return played(profiles, *map(Start, starts), **more)


def recorded(path: str, *kinds: str, preset: str = "fast", **how) -> str:
    records = [replace(answered(i, kind, **how), preset=preset) for i, kind in enumerate(kinds)]
    file_of(Path(path), *records)
    return path


def said(capsys, *arguments: str) -> list[str]:
    """The lines of the output, the last ones of which are the answer."""
    assert main(list(arguments)) == 0
    return capsys.readouterr().out.rstrip().splitlines()


MIXED = ["server"] * 60 + ["device"] * 30 + ["race"] * 10


def test_replay_says_what_to_change_to_and_what_it_would_have_saved(capsys):
    path = recorded("routes.jsonl", *MIXED)
    last, quality, *_ = said(capsys, "replay", path)[-2:]
    assert last.startswith("Change to length_threshold at a budget of ")
    assert "it would have saved " in last
    assert "over 100 requests" in last
    assert "instead of" in quality
    assert "a recording cannot know" in quality


def test_the_preset_that_was_recorded_is_not_what_to_change_to(capsys):
    """In what it would save, a replay differs from what was."""
    thrifty = ["replay", "routes.jsonl", "--policy=recorded", "--policy=length_threshold", "--budget=0.1"]
    recorded("routes.jsonl", *MIXED)
    assert '(preset="cheap")' in said(capsys, *thrifty)[-2]
    recorded("routes.jsonl", *MIXED, preset="cheap")
    assert "cheap" not in said(capsys, *thrifty)[-1]


def test_replay_keeps_what_nothing_is_better_than(capsys):
    """The device reads slowly: whatever asks it more is later, and the server was asked for all that it pays for."""
    path = recorded("routes.jsonl", *["server"] * 70, *["device"] * 25, s_per_token=0.05, server_s=0.3)
    figures = said(capsys, "replay", path, "--policy", "recorded", "--policy", "device_only")
    assert figures[-1].startswith("Keep what you have")
    assert "more" in figures[-1] or "instead of" in figures[-1]


@pytest.mark.parametrize(
    ("kinds", "lacks"),
    [
        (["server"] * 80, "no first token of the device"),
        (["device"] * 80, "no first token of the server"),
        (["race"] * 10, "10 requests say little: record at least 50"),
        (["race"], "1 request says little: record at least 50"),
    ],
)
def test_where_records_do_not_say_enough_that_is_said_with_what_would_help(kinds, lacks, capsys):
    path = recorded("routes.jsonl", *kinds)
    for command in (["replay", path], ["tune", path, "--jobs=1", "--verify-requests=60"]):
        printed = "\n".join(said(capsys, *command))
        answer = printed[printed.rindex("These records do not say") :]
        assert lacks in answer
        assert "Change to" not in answer
        assert "record" in answer


def test_a_recording_without_a_server_says_what_to_add(tmp_path, capsys):
    alone = [played({"device": device(0.2)}, Start("device"), created_s=1e9 + i) for i in range(3)]
    path = str(file_of(tmp_path / "routes.jsonl", *alone))
    assert main(["replay", path]) == 2
    error = capsys.readouterr().err
    assert "made without a server" in error
    assert "--server gpt-4o-mini-2024" in error
    assert main(["replay", path, "--server", "gpt-4o-mini-2024"]) == 0


def test_an_answer_that_failed_over_in_mid_stream_replays(capsys):
    """On the third day the server died in the middle of some answers, and the recording is replayed."""
    path = recorded("routes.jsonl", *MIXED, "failover", "failover")
    printed = said(capsys, "replay", path, "--json", "figures.json")
    assert any(line.startswith("Change to") for line in printed)
    cells = json.loads(Path("figures.json").read_text(encoding="utf-8"))["cells"]
    assert cells[0]["arm"]["policy"] == "recorded"
    assert cells[0]["summary"]["requests"] == len(MIXED) + 2
    assert said(capsys, "tune", path, "--jobs=1", "--verify-requests=60")


def test_tune_needs_no_option_and_says_where_the_preset_is_and_what_it_would_have_done(capsys):
    path = recorded("routes.jsonl", *MIXED, preset="cheap")
    printed = said(capsys, "tune", path, "--jobs=1", "--verify-requests=60")
    text = "\n".join(printed)
    assert "The exchange rate is that of the preset 'cheap'" in text
    assert "Preset: tuned.toml" in text
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in printed if line.startswith("│")}
    measured, replayed, tuned = rows["what was, measured"], rows["what was, replayed"], rows["tuned.toml"]
    assert [float(x) for x in measured[:3]] == pytest.approx([float(x) for x in replayed[:3]], abs=0.002)
    assert float(tuned[2]) <= float(replayed[2])
    assert "The last 60 requests" in text
    assert any(
        line.startswith('Change to tuned.toml (preset="./tuned.toml"): it would have') for line in printed
    )
    assert load_preset("tuned.toml").cost.exchange_rate == load_preset("cheap").cost.exchange_rate


def test_tune_claims_to_save_no_more_than_was_paid_where_recorded_answers_moved(capsys):
    """A preset's answers move in its replay. If those of the recording stayed, they would cost more than they did."""
    records = []
    for i, kind in enumerate(MIXED):
        prompt = 20 + (i * 37) % 280
        sides = {"device": device(0.1 + FAST_DEVICE * prompt), "server": SERVER}
        sides = {name: replace(side, answer_tokens=200) for name, side in sides.items()}
        starts = {"device": ["device"], "server": ["server"]}.get(kind, ["device", "server"])
        more = {"created_s": 1e9 + i * 30, "prompt_tokens": prompt, "pace_tps": 12.0, "move": True}
        records.append(replace(played(sides, *map(Start, starts), **more), preset="balanced"))
    path = str(file_of(Path("routes.jsonl"), *records))
    printed = said(capsys, "tune", path, "--jobs=1", "--verify-requests=100")
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in printed if line.startswith("│")}
    measured, replayed = (float(rows[f"what was, {how}"][3].split()[0]) for how in ("measured", "replayed"))
    assert 0 < replayed <= measured
    assert "moved, and here all stay: --migrate" in " ".join(said(capsys, "replay", path))


def test_what_the_tuned_preset_costs_is_no_more_than_what_was_unless_asked_for(capsys):
    """Recorded under the device alone, which is free: a preset that asks the server would be dearer."""
    path = recorded("routes.jsonl", *["device"] * 60, *["server"] * 2, s_per_token=0.02)
    printed = "\n".join(said(capsys, "tune", path, "--jobs=1", "--verify-requests=50"))
    assert "server_only: " in printed
    chosen = next(line for line in printed.splitlines() if "▶" in line).split("│")
    assert float(chosen[8]) <= 0.2  # of 62 requests, the last two were the server's


def test_a_preset_that_may_be_in_use_is_never_overwritten(capsys):
    path = recorded("routes.jsonl", *MIXED)
    Path("tuned.toml").write_text("precious", encoding="utf-8")
    command = ["tune", path, "--jobs=1", "--verify-requests=20"]
    assert any("Preset: tuned-2.toml" in line for line in said(capsys, *command))
    assert Path("tuned.toml").read_text(encoding="utf-8") == "precious"
    assert main([*command, "--out", "tuned.toml"]) == 2
    assert "--out tuned.toml: there is such a file" in capsys.readouterr().err


def test_the_exchange_rate_of_a_preset_of_ones_own_is_in_the_record(capsys):
    """Battery is dear there: the device is the side to spare, as it was live."""
    dear = {"device": Rates(1e-4, 1e-4, 0.0), "server": RATES["server"]}
    made = [answered(i, kind, rates=dear) for i, kind in enumerate(MIXED)]
    records = [replace(record, preset="mine", exchange_rate=1e-8) for record in made]
    path = str(file_of(Path("routes.jsonl"), *records))
    printed = "\n".join(said(capsys, "tune", path, "--jobs=1", "--verify-requests=20"))
    assert "that of the recording, 1e-08 USD" in printed
    assert load_preset("tuned.toml").cost.exchange_rate >= 1e-13
    own = next(line for line in printed.splitlines() if "server_only, as it is" in line).split("│")[3]
    assert float(own) == 1e-8


def test_the_summary_says_who_answered_what_failed_and_who_was_asked(capsys):
    path = recorded("routes.jsonl", *MIXED, "failover", "failover")
    text = "\n".join(said(capsys, "show", path, "--summary"))
    assert "102 requests" in text
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert [row[:3] for row in lines if row[0] == "server → device"] == [["server → device", "2", "2 %"]]
    asked = {row[0]: row[1:] for row in lines[-2:]}  # in, of, first word, failed
    assert asked["server"] == ["72", "102", "63", "2 connection"]
    assert asked["device"][1:] == ["102", "39", "0"]
    assert "2 connection" in text
    assert "Paid to servers: " in text
    assert "disco tune routes.jsonl" in text


def test_a_live_record_has_the_exchange_rate_of_its_preset():
    preset = {"name": "mine", "dispatch": {"policy": "device_only"}, "cost": {"exchange_rate": 7e-12}}
    with Disco(local=local_device(decode_tps=1000.0), preset=load_preset(preset)) as client:
        record = create(client).route
    assert record.exchange_rate == record.to_dict()["exchange_rate"] == 7e-12


def test_the_summary_takes_the_bill_and_the_energy_of_the_charges(tmp_path, capsys):
    """As the list and the time line do: the totals of a ledger are the sums of its charges."""
    row = answered(0, "server").to_dict()
    charge = row["ledger"]["charges"][0]
    lines = [
        {**row, "ledger": {"charges": [{**charge, "bill_usd": usd, "device_energy_j": 12.0}]}}
        for usd in (0.5, 1.5)
    ]
    path = tmp_path / "routes.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    text = "\n".join(said(capsys, "show", str(path), "--summary"))
    assert "Paid to servers: 2.00 $, 1.00 $ per request." in text
    assert "Energy of this machine: 24 J." in text


def test_the_summary_groups_the_reasons_of_plans(tmp_path, capsys):
    """Each record may say why each endpoint was asked or not: what they have in common is one line."""
    path = tmp_path / "routes.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for i in range(40):
            row = answered(i, "server" if i < 2 else "device").to_dict()
            row["why"] = [
                {
                    "endpoint": "server",
                    "does": "starts" if i < 2 else "stands_by",
                    "code": "long" if i < 2 else "short",
                    "value": float(row["prompt_tokens"]),
                    "limit": 1396.0,
                    "source": "prior",
                }
            ]
            file.write(json.dumps(row) + "\n")
    text = " ".join("\n".join(said(capsys, "show", str(path), "--summary")).split())
    assert (
        "server was asked in 2 of 40: not asked, prompts below 1,396 tokens stay on the device (38)" in text
    )
    assert "prompts from 1,396 tokens on race (2)" in text


def test_a_summary_of_one_answer_makes_no_sense_with_a_picture(tmp_path, capsys):
    path = recorded("routes.jsonl", "server")
    assert main(["show", path, "--summary", "--answer", "last"]) == 2
    assert "leave out --answer" in capsys.readouterr().err
