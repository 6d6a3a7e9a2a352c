"""`disco tune`: the preset that it writes, the sentence that it prints, and what it refuses."""

from __future__ import annotations

import re

import pytest

from disco.cli import main
from disco.cli.main import _parser
from disco.cli.replay_options import DEFAULT_EXCHANGE_RATE, DEFAULTS, OBJECTIVES
from disco.dispatch import load_preset
from disco.replay.formats import write_trace
from disco.replay.tuning import objective
from disco.replay.workload.synthetic import alpaca_like


@pytest.fixture
def path(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # not the profiles of whoever runs this
    write_trace(alpaca_like(200, 1), tmp_path / "short.csv")
    return str(tmp_path / "short.csv")


def test_the_preset_loads_with_a_sentence_true_to_the_table_and_what_cannot_be_had_says_what_could(
    path, tmp_path, capsys
):
    out = tmp_path / "mine.toml"
    options = ["--objective=p99-ttft", "--max-tokens=16", "--jobs=1", "--verify-requests=10"]
    assert main(["tune", path, *options, "--max-cost", "0.8x", "--out", str(out)]) == 0
    preset = load_preset(out)
    printed = capsys.readouterr().out
    assert preset.summary in " ".join(printed.split())
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    (chosen,) = (row for row in rows if row[0].startswith("▶"))
    (alone,) = (row for row in rows if row[0].startswith("server_only, as it is"))
    said = re.fullmatch(
        r"(.+): P99 of TTFT (\S+) s, mean (\S+) s; server_only: (\S+) s and (\S+) s, (\S+)x its cost\.",
        preset.summary,
    )
    assert (f"▶ {said[1]}", f"{said[6]}×") == (chosen[0], chosen[8])
    shown = [float(row[column]) for row in (chosen, alone) for column in (5, 4)]
    assert [float(x) for x in said.groups()[1:5]] == pytest.approx(shown, abs=0.006)
    comment = out.read_text(encoding="utf-8").partition("summary =")[0]
    for part in ("p99-ttft", "Trace: short", "server_only", "xiaomi14-qwen1.5-0.5b"):
        assert part in " ".join(comment.replace("#", "").split())
    out.unlink()
    assert main(["tune", path, *options[1:], "--max-cost", "0.00001x", "--out", str(out)]) == 2
    assert "The cheapest is" in capsys.readouterr().err
    assert not out.exists()


def test_defaults_of_the_command_and_of_the_library_agree():
    """`options.py` repeats them so that --help stays quick."""
    assert OBJECTIVES == objective.OBJECTIVES
    assert float(DEFAULT_EXCHANGE_RATE) == load_preset("balanced").cost.exchange_rate
    commands = _parser()._subparsers._group_actions[0].choices
    for name in ("replay", "tune"):
        for action in commands[name]._actions:
            if action.dest in DEFAULTS:
                assert action.default is None, "otherwise nobody sees whether it was given"
                shown = action.help.partition("(default: ")[2]
                assert shown.startswith(("by its columns", str(DEFAULTS[action.dest]).removesuffix(".0")))
