"""Whatever a recording holds, its readers use what says something, and name and count the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from session.recorded_kinds import any_lines, kinds, lines_of_all_kinds

from disco.cli import main
from disco.dispatch import load_preset
from disco.errors import ConfigurationError
from disco.profiles import load_device, load_server
from disco.record.reading import lines_of
from disco.record.recording_summary import summarised
from disco.replay.formats import read_trace
from disco.replay.shadow.shadow_figures import compare
from disco.replay.shadow.shadow_recording import read_shadowed
from disco.replay.shadow.shadow_runs import play_shadows
from disco.replay.vector.evaluator import evaluate
from disco.replay.verdicts import read_verdicts
from disco.replay.workload.from_recording import scenario_of_routes
from disco.replay.workload.scenario import Arm, resolve

DEVICE, SERVER = load_device("pixel7pro-bloom-560m"), load_server("gpt-4o-mini-2024")


@pytest.fixture
def recording(tmp_path) -> Path:
    path = tmp_path / "routes.jsonl"
    path.write_text("\n".join(lines_of_all_kinds()), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def nobodys_profiles(tmp_path, monkeypatch):
    """Whoever runs the tests may have profiles of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize("name", kinds())
def test_every_kind_of_answer_replays_or_is_counted(name, tmp_path):
    """As recorded, an answer's first word comes when it came, by whom it came."""
    record = kinds()[name]
    path = tmp_path / "routes.jsonl"
    path.write_text(record.to_json(timelines=True), encoding="utf-8")
    if record.finish_reason is None:
        with pytest.raises(ConfigurationError, match=r"routes.jsonl, line 1: failed at the source"):
            read_trace(path)
        return
    trace, skipped = read_trace(path)
    assert not skipped
    scenario = scenario_of_routes(trace, device=DEVICE, server=SERVER)
    outcome = evaluate(resolve(trace, scenario, seed=0), scenario, Arm("recorded"), seed=0)
    if record.winner is not None and name != "a cascade that rose":
        assert outcome.ttft_s[0] == pytest.approx(record.pace.ttft_raw_s, abs=3e-6)
        assert outcome.device_won[0] == (record.winner == "device")


def test_each_command_reads_a_recording_of_every_kind_and_names_what_it_leaves_out(
    recording, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    commands = {
        ("replay", str(recording)): "line 12, line 13: failed at the source",
        ("tune", str(recording), "--jobs=1", "--verify-requests=8"): "tuned.toml",
        ("show", str(recording), "--summary"): "answered by",
        ("show", str(recording)): "what happened",
    }
    no_json = (
        f"{recording}, line 5, line 9: this is not JSON; a program that was killed may leave half a line"
    )
    no_record = f"{recording}, line 7, line 8: this is not a route record, as disco.RouteLog writes them"
    for command, said in commands.items():
        assert main(list(command)) == 0, command
        printed = " ".join(capsys.readouterr().out.split())
        for part in (said, no_json, no_record):
            assert part in printed, command
    assert load_preset(tmp_path / "tuned.toml").dispatch.policy
    assert main(["shadow", str(recording)]) == 2  # none of them has a shadow
    said = capsys.readouterr().err
    assert "line 1, line 2, line 3 and 12 more: without a shadow" in said
    assert no_json in said


def readers(path: Path) -> dict[str, Callable[[], object]]:
    """Everything that reads a recording, down to its figures."""

    def replay() -> None:
        trace, _ = read_trace(path)
        scenario = scenario_of_routes(trace, device=DEVICE, server=SERVER)
        workload = resolve(trace, scenario, seed=0)
        for policy in ("recorded", "length_threshold"):
            outcome = evaluate(workload, scenario, Arm(policy), seed=0)
            assert np.isfinite(outcome.ttft_s).all()
            assert np.isfinite(outcome.cost_usd).all()

    def shadow() -> None:
        compare(play_shadows(read_shadowed(path), draws=1, seed=0), seed=0, resamples=2)

    def show() -> None:
        found = summarised(path)
        lines = sum(1 for _ in lines_of(path))
        assert found.requests + found.left_out.rows == lines
        assert sum(one.requests for one in found.answered.values()) == found.requests

    return {"replay": replay, "shadow": shadow, "show": show, "verdicts": lambda: read_verdicts(path)}


@settings(max_examples=120)
@given(any_lines())
def test_no_reader_fails_but_by_a_message_with_a_remedy(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "routes.jsonl"
    path.write_bytes(b"\n".join(lines))
    for read in readers(path).values():
        with contextlib.suppress(ConfigurationError):
            read()


def test_the_first_lines_may_be_damaged(tmp_path):
    """The format is known by the first line that is a record."""
    path = tmp_path / "routes.jsonl"
    good = kinds()["a race"].to_json()
    path.write_text('{"hello": 1}\n' + good[:99] + "\n\n" + good + "\n", encoding="utf-8")
    trace, skipped = read_trace(path)
    assert (len(trace), skipped.rows) == (1, 2)
