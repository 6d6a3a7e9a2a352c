"""Records of the version before are read by every reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recordings import SERVER, device, played
from shadow.test_shadow_figures import ALONE, alone_on, plan

from disco.cli import main
from disco.plan import Start
from disco.profiles import load_device
from disco.record import read_record

OWN = {
    "name": "home",
    "place": "server",
    "reach": "own",
    "cost_in": 1e-9,
    "cost_out": 1e-9,
    "cached_share": 0.0,
}


def as_version_4(row: dict[str, Any]) -> dict[str, Any]:
    """A record as the version before wrote it: one number, money for a server and energy at a rate for a device."""
    split = ("bill_usd", "device_energy_j")

    def merged(part: dict[str, Any], name: str = "cost") -> dict[str, Any]:
        kept = {key: value for key, value in part.items() if key not in (*split, "policy_cost")}
        return {**kept, name: part["policy_cost"]}

    new = ("is_money", "j_in", "j_out")
    endpoints = [{k: v for k, v in e.items() if k not in new} for e in row["endpoints"]]
    ledger = merged(row["ledger"], "total_cost")
    ledger["charges"] = [merged(charge) for charge in row["ledger"]["charges"]]
    attempts = [merged(attempt) for attempt in row["attempts"]]
    return {**row, "schema": 4, "endpoints": endpoints, "attempts": attempts, "ledger": ledger}


def race(n: int = 0, prompt_tokens: int = 20, server_after_s: float = 0.0) -> dict[str, Any]:
    profiles = {"device": device(0.1 + 0.002 * prompt_tokens), "server": SERVER}
    starts = Start("device"), Start("server", server_after_s)
    record = played(profiles, *starts, created_s=1e9 + n, prompt_tokens=prompt_tokens, pace_tps=12.0)
    return json.loads(record.to_json(timelines=True))


@pytest.fixture
def old_file(tmp_path):
    path = tmp_path / "routes.jsonl"
    rows = [as_version_4(race(n, prompt, 2.0 * (n % 2))) for n, prompt in enumerate(range(10, 400, 25))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_of_an_old_record_the_bill_is_what_servers_charged_and_the_energy_is_not_known():
    new, old = read_record(race()), read_record(as_version_4(race()))
    assert old.bill_usd == new.bill_usd > 0
    assert old.policy_cost == pytest.approx(new.policy_cost, rel=1e-12)
    assert new.device_energy_j > 0
    assert old.device_energy_j is None
    assert [a.bill_usd for a in old.attempts] == pytest.approx([a.bill_usd for a in new.attempts])
    assert (read_record(old.to_json()).bill_usd, old.to_dict()["schema"]) == (old.bill_usd, 5)


def test_a_box_of_the_users_own_without_a_price_was_paid_nothing_then_either():
    row = as_version_4(race())
    row["endpoints"] = [
        {**e, **(OWN if e["name"] == "server" else {}), "name": e["name"]} for e in row["endpoints"]
    ]
    assert read_record(row).bill_usd == 0.0
    priced = {"cached_share": 1.0}
    row["endpoints"] = [{**e, **(priced if e["name"] == "server" else {})} for e in row["endpoints"]]
    assert read_record(row).bill_usd > 0.0


def test_show_replay_and_tune_read_an_old_file(old_file, tmp_path, capsys):
    assert main(["show", str(old_file)]) == 0
    assert main(["show", str(old_file), "--answer", "1"]) == 0
    shown = capsys.readouterr().out
    assert "0.00 $" in shown
    assert " J" not in shown  # an energy that is not known is not shown
    assert main(["replay", str(old_file), "--policy", "server_only", "--jobs=1"]) == 0
    out, named = tmp_path / "mine.toml", load_device("pixel7pro-bloom-1.1b").name
    tune = ["tune", str(old_file), "--jobs=1", "--verify-requests=5", "--device", named, "--out", str(out)]
    assert main(tune) == 0
    assert out.exists()


def test_shadow_reads_an_old_file(tmp_path, capsys):
    path = tmp_path / "shadowed.jsonl"
    other = plan(ALONE["device"])
    rows = [{**alone_on("server", 0.3 + n / 100, other), "schema": 4} for n in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["shadow", str(path)]) == 0
    assert "12" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["show"], ["show", "--answer", "1"], ["replay"], ["shadow"]])
def test_records_of_a_version_that_is_no_longer_read_are_refused_with_the_remedy(tmp_path, capsys, command):
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({**race(), "schema": 3}) + "\n", encoding="utf-8")
    assert main([command[0], str(path), *command[1:]]) != 0
    said = capsys.readouterr()
    told = " ".join((said.out + said.err).split())
    assert "line 1: this record has schema 3" in told
    assert "record again" in told
