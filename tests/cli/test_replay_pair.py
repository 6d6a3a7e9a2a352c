"""`disco replay --pair`: every policy without and with drafts."""

from __future__ import annotations

import json
import re

import pytest

from disco.cli import main
from disco.replay.pairs.draft_trace import DraftedRequest, write_drafts

PAIR = """
draft_ms = 9.3
verify_ms = [[1, 29], [2, 51], [5, 63], [9, 88], [16, 136]]
rtt_ms = 10
read_tps = 800
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,40,150\n30,30,90\n60,50,200\n"


def replayed(tmp_path, pair: str, *options: str) -> list[dict]:
    (tmp_path / "pair.toml").write_text(pair, encoding="utf-8")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    out = tmp_path / "out.json"
    asked = ["replay", str(tmp_path / "trace.csv"), "--pair", str(tmp_path / "pair.toml"), "--json", str(out)]
    assert main([*asked, "--pace", "0", *options]) == 0
    return json.loads(out.read_text(encoding="utf-8"))["cells"]


def test_drafting_is_faster_at_the_same_first_token_and_both_sides_pay(tmp_path, capsys):
    write_drafts(tmp_path / "acceptance.jsonl", [DraftedRequest(9, 9, bytes([1] * 19 + [0]))])
    policies = [option for name in ("server_only", "device_only", "random") for option in ("--policy", name)]
    cells = replayed(tmp_path, f'{PAIR}trace = "acceptance.jsonl"', *policies)
    said = capsys.readouterr()
    assert "drafted on the device, verified by the server" in said.out
    assert "29.0 ms per token without drafts" in said.out
    arms = [(cell["arm"]["policy"], cell["arm"]["drafts"]) for cell in cells]
    assert arms == [
        ("server_only", False),
        ("server_only", True),
        ("device_only", False),
        ("random", False),
        ("random", True),
    ]
    alone, drafted = (cell["summary"] for cell in cells[:2])
    assert drafted["ttft_mean_s"] == alone["ttft_mean_s"]
    assert drafted["budget_used"] == alone["budget_used"]
    tbt_s = [each["reading"]["tbt_mean_s"]["mean"] for each in (alone, drafted)]
    assert tbt_s[0] == pytest.approx(0.029)
    assert tbt_s[1] < 0.8 * tbt_s[0]
    assert set(alone["cost_by"]) == {"server/answer"}
    assert set(drafted["cost_by"]) == {"server/answer", "server/draft", "device/draft"}
    assert drafted["cost_by"]["server/answer"] == alone["cost_by"]["server/answer"]


def test_without_a_draft_time_the_device_drafts_as_fast_as_it_writes_and_that_may_not_pay(tmp_path):
    slow = PAIR.replace("draft_ms = 9.3", "acceptance = 0.97")
    alone, drafted = replayed(tmp_path, slow, "--policy", "server_only", "--device", "pixel7pro-bloom-1.1b")
    tbt_s = [cell["summary"]["reading"]["tbt_mean_s"]["mean"] for cell in (alone, drafted)]
    assert tbt_s[1] == pytest.approx(tbt_s[0], rel=0.05)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (PAIR, "needs either acceptance"),
        (f"{PAIR}acceptance = 2", "acceptance: .*less than or equal to 1"),
        (f"{PAIR}acceptance = 0.5\nrttms = 3", "rttms: no such key"),
        (f'{PAIR}trace = "missing.jsonl"', "missing.jsonl; check the path"),
        (f'{PAIR}acceptance = 0.5\n[speculate]\nwindow = "optmal"', "no rule is called 'optmal'"),
        (f'{PAIR}acceptance = 0.5\n[speculate]\nwindow = "confidence"', "confidence_seq"),
    ],
)
def test_a_pair_that_is_wrong_is_named(tmp_path, capsys, pair, said):
    (tmp_path / "pair.toml").write_text(pair, encoding="utf-8")
    assert main(["replay", "synthetic", "--requests", "3", "--pair", str(tmp_path / "pair.toml")]) != 0
    assert re.search(said, capsys.readouterr().err)


def test_policies_whose_answers_are_never_drafted_need_no_pair(tmp_path, capsys):
    (tmp_path / "pair.toml").write_text(f"{PAIR}acceptance = 0.5", encoding="utf-8")
    asked = ["replay", "synthetic", "--pair", str(tmp_path / "pair.toml"), "--policy", "device_only"]
    assert main(asked) != 0
    assert "--pair does not apply to device_only" in capsys.readouterr().err
