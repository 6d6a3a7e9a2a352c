"""Every example runs as its docstring says, with the real model and, where it needs one, a real server."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest
from forked import run_script

from disco.record import read_record, timeline_of

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent
# All but what some of them share.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "disco_serve.py")


def run(name: str, cwd: Path, *arguments: str, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    printed, complaints = run_script(
        ROOT / "examples" / name,
        *arguments,
        cwd=cwd,
        environment=inherited | environment,
        timeout_s=600.0,  # they take seconds
    )
    # The price of a model at a server of this machine is in no table: people are told, once.
    told = [line for line in complaints.splitlines() if "is in no price table" not in line]
    assert told == [], "an example neither warns nor logs"
    return printed


def test_an_example_says_how_to_run_it_and_has_a_test():
    here = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES:
        source = path.read_text(encoding="utf-8")
        assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")
        assert f'run("{path.name}"' in here


def test_stream_on_this_machine_alone_and_with_a_server(tmp_path, llama_server):
    # This server answers to any name; of this one the price is known.
    server = {"OPENAI_BASE_URL": llama_server.base_url, "OPENAI_MODEL": "gpt-4o-mini", "OPENAI_API_KEY": "k"}
    for environment, writers in (({}, "device"), (server, "(device|server)")):
        text, _, last = run("stream.py", tmp_path, **environment).strip().rpartition("\n\n")
        assert len(text) > 5  # small models can be brief
        assert re.fullmatch(rf"{writers} wrote first; the bill: [0-9.]+ USD", last)


def test_speech_gives_the_engine_whole_sentences_and_compares(tmp_path):
    *lines, begin, end = run("speech.py", tmp_path).strip().splitlines()
    spoken = [line for line in lines if line]
    assert all(re.fullmatch(r" *\d+\.\d\d s  .+", line) for line in spoken)
    assert all(line.endswith((".", "!", "?", ":")) for line in spoken[1:-1])
    assert begin.startswith("The voice can begin after")
    assert re.match(rf"{len(spoken)} pieces; a voice of 3.5 tokens/s has \d+ silences", end)


def test_failover_goes_on_where_the_server_died(tmp_path):
    printed = run("failover.py", tmp_path)
    assert re.findall(r"^\[(\w+)\] ", printed, flags=re.MULTILINE) == ["server", "device"]
    assert "failures: ['connection']" in printed
    assert "every segment was delivered as it was written: True" in printed
    (counts,) = re.findall(r"\('server', (\d+)\), \('device', (\d+)\)", printed)
    assert all(int(count) > 0 for count in counts)


def test_route_record_shows_both_attempts_of_a_race(tmp_path):
    text, _, summary = run("route_record.py", tmp_path).partition("\n\n{")
    record = json.loads("{" + summary)
    assert text.strip()
    attempts = record["attempts"]
    assert (record["preset"], {a["endpoint"] for a in attempts}) == ("fast", {"device", "server"})
    assert sorted(a["outcome"] for a in attempts) == ["finished", "lost"]
    assert record["bill_usd"] == pytest.approx(sum(a["bill_usd"] for a in attempts))


@pytest.mark.slow
def test_record_and_replay_gives_back_what_was_measured(tmp_path):
    printed = run("record_and_replay.py", tmp_path)
    rows = re.findall(r"^(\S+|\(as measured\)) +([0-9.]+) s +([0-9.]+) µ\$$", printed, flags=re.MULTILINE)
    ttft_s = {name: float(seconds) for name, seconds, _ in rows}
    assert set(ttft_s) == {"recorded", "race", "device_only", "server_only", "oracle", "(as measured)"}
    assert ttft_s["recorded"] == ttft_s["(as measured)"]
    assert ttft_s["race"] <= min(ttft_s["device_only"], ttft_s["server_only"])
    assert len((tmp_path / "routes.jsonl").read_text(encoding="utf-8").splitlines()) == 16


def test_redaction_shows_what_is_sent(tmp_path):
    sent, _, answer = run("redaction.py", tmp_path).partition("\nanswer: ")
    assert sent == "sent: Repeat this sentence: [CUSTOMER_1] ([EMAIL_1]) met [CUSTOMER_2]."
    assert answer.strip()
    assert not re.search(r"\[(EMAIL|CUSTOMER)_\d\]", answer)


@pytest.mark.slow
def test_notebook_style_runs_from_cell_to_cell(tmp_path):
    answer, _, rest = run("notebook_style.py", tmp_path).partition("\ndevice, ")
    figures, _, stories = rest.strip().partition("\n\n")
    story, _, both = stories.rpartition("\n\n")
    assert min(len(answer), len(story)) > 3
    assert re.fullmatch(r"[0-9.]+ s, [0-9.]+ µ\$", figures)
    assert re.match(r"0\.0: .+\n1\.0: .+", both, flags=re.DOTALL)


def test_power_shows_plans_that_follow_the_readings(tmp_path):
    printed = run("power.py", tmp_path)
    rows = re.findall(
        r"^(.+?) {2,}(\w+) +holds: (.+); spared: (\w+); .* ([0-9.]+) USD/M$", printed, re.MULTILINE
    )
    assert [row[:4] for row in rows] == [
        ("mains", "device", "nothing", "nothing"),
        ("battery", "device", "battery", "nothing"),
        ("low", "server", "battery, low", "low"),
        ("metered", "device", "battery, metered", "metered"),
        ("low, must stay here", "device", "battery, low", "low"),
        ("low, and the server is gone", "device", "battery, low", "low"),
    ]
    price = [float(row[4]) for row in rows]
    assert price == pytest.approx([price[0] * factor for factor in (1, 100, 2500, 100, 2500, 2500)], rel=0.01)


def records(path: Path) -> list:
    """The records of a scene, each of which can be drawn."""
    read = [read_record(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(timeline_of(record).reader is not None for record in read)
    return read


@pytest.mark.slow
def test_chaos_kills_two_processes_and_no_answer(tmp_path):
    printed = run("chaos.py", tmp_path, "routes.jsonl")
    assert "server failed (connection)" in printed
    assert "device failed (crashed)" in printed
    assert "no answer lost, repeated or garbled a character" in printed
    assert len(records(tmp_path / "routes.jsonl")) == 3


@pytest.mark.slow
def test_cascade_shows_verdicts_and_streams_that_go_on(tmp_path):
    printed = run("cascade.py", tmp_path, "routes.jsonl")
    asked = len(records(tmp_path / "routes.jsonl"))
    assert asked >= 15
    assert len(re.findall(r"^    device: (score \d\.\d{3}, |not judged)", printed, re.MULTILINE)) == asked
    risen = int(re.search(r"^device +\d+ +\d+ +(\d+)$", printed, re.MULTILINE)[1])
    assert 0 < risen < asked


@pytest.mark.slow
def test_assist_divides_an_answer_or_says_why_not(tmp_path):
    printed = run("assist.py", tmp_path, "routes.jsonl")
    assert re.search(
        r"went on behind character \d+|-> not divided: \w+", printed
    )  # a busy machine may be too slow
    ways = re.findall(r"^(assist|device alone|server alone) +\d+\.\d\d s", printed, re.MULTILINE)
    assert ways == ["assist", "device alone", "server alone"]
    assert len(records(tmp_path / "routes.jsonl")) == 1


@pytest.mark.slow
def test_speculate_writes_the_same_bytes_with_drafts_and_without(tmp_path):
    printed = run("speculate.py", tmp_path, "routes.jsonl")
    assert re.search(r"^\d+ rounds; [1-9]\d* of \d+ drafted tokens right$", printed, re.MULTILINE)
    assert "Both texts are the same, byte for byte" in printed
    (drafted,) = records(tmp_path / "routes.jsonl")
    assert drafted.attempts[0].speculation is not None
