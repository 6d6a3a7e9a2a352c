"""`disco state`: what is shown, exported and forgotten, while programs use the file, and where it is broken."""

from __future__ import annotations

import json
import time
from array import array

import pytest

from disco.cli import main
from disco.endpoints.saved_prompts import PromptCache
from disco.endpoints.saved_prompts.prompt_file import PromptHead
from disco.endpoints.saved_prompts.prompt_folder import PromptFolder
from disco.judging import HistoryKey, StoredHistory
from disco.state import Database
from disco.state.facts import put_fact
from disco.state.histories import StateHistories
from disco.state.observations import EVERYONE, Observation, Subject, append_observations

SERVER = Subject("server", "api.example:443", "gpt-4o-mini")
DEVICE = Subject("device", "", "smollm2-135m, 1 B, 1 threads")
DAY_S = 86_400.0


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "state.sqlite3"
    monkeypatch.setenv("DISCO_STATE", str(path))
    return path


@pytest.fixture
def database(path):
    """Of a program that runs meanwhile."""
    database, now = Database(path), time.time()
    seen = [
        *((SERVER, Observation("ttft_s", now - 10 * DAY_S, 0.5 + i)) for i in range(3)),
        *((SERVER, Observation("decode_tps", now - 3600.0, 50.0)) for _ in range(2)),
        (DEVICE, Observation("start_s", now, 0.25, 100.0)),
        (EVERYONE, Observation("answer_tokens", now, 80.0, 1.0)),
    ]
    database.write(lambda c: append_observations(c, 1, seen), None)
    down = {"why": "connection", "failures": 2, "level": 1, "rest_s": 60.0, "until": now + 60.0}
    database.write(lambda c: put_fact(c, "breaker", ("server", "api.example:443", ""), down, now), None)
    found = {"method": "prefix", "outcomes": {"prefix": "continues"}}
    database.write(
        lambda c: put_fact(c, "verdict", ("https://api.example:443/v1", "gpt-4o-mini"), found, now), None
    )
    StateHistories(database).save(
        {HistoryKey("triage", "device/m", "weakest"): StoredHistory((-0.5, -1.5), 2)}
    )
    database.flush()
    yield database
    database.close()


def shown(capsys, *arguments: str, status: int = 0) -> str:
    assert main(["state", *arguments]) == status
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def test_show(capsys, path, database):
    text = shown(capsys, "show")
    for part in (
        str(path)[-20:],
        "KiB",
        "│ (all) │ │ │ answer_tokens │ 1 │ 80 │",
        "│ server │ api.example:443 │ gpt-4o-mini │ ttft_s │ 3 │ 1.5 │ 10 d │ 10 d │",
        "│ server │ api.example:443 │ gpt-4o-mini │ decode_tps │ 2 │ 50 │ 60 min │ 60 min │",
        "│ triage │ device/m │ weakest │ 2 │",
        "│ server │ api.example:443 │ │ connection │ 60 s │",
        "│ https://api.example:443/v1 │ gpt-4o-mini │ prefix │",
    ):
        assert part in text or part.replace("60 s", "59 s") in text, part


def test_export(capsys, tmp_path, database):
    shown(capsys, "export", str(tmp_path / "out.json"))
    exported = json.loads((tmp_path / "out.json").read_text())
    ((_, ttft),) = [(s["endpoint"], s["observations"]) for s in exported["series"] if s["kind"] == "ttft_s"]
    assert [one["value"] for one in ttft] == [0.5, 1.5, 2.5]
    assert exported["histories"][0]["scores"] == [-0.5, -1.5]
    assert exported["facts"]["verdict"][0]["value"]["method"] == "prefix"
    assert main(["state", "export"]) == 0
    assert json.loads(capsys.readouterr().out) == exported


@pytest.mark.parametrize(
    ("chosen", "gone"),
    [
        (["--endpoint", "server"], "5 observations, 1 facts"),
        (["--model", "gpt-4o-mini"], "5 observations, 1 facts"),
        (["--kind", "ttft_s"], "3 observations"),
        (["--kind", "breaker"], "1 facts"),
        (["--kind", "history"], "1 histories"),
        (["--model", "m"], "1 histories"),
        (["--older-than", "5"], "3 observations"),
        (["--older-than", "0.01", "--kind", "decode_tps"], "2 observations"),
        (["--older-than", "0.01", "--endpoint", "device"], "nothing, there was none of that"),
        (["--all"], "7 observations, 1 histories, 2 facts"),
    ],
)
def test_forget(capsys, database, chosen, gone):
    assert shown(capsys, "forget", *chosen) == f"Forgotten: {gone}."
    assert "nothing, there was none" in shown(capsys, "forget", *chosen)
    database.submit(lambda c: append_observations(c, 1, [(SERVER, Observation("turn_s", time.time(), 1.0))]))
    database.flush()  # the program goes on
    assert "turn_s" in shown(capsys, "show")


def test_what_is_forgotten_is_no_longer_in_the_bytes(capsys, path, database):
    database.close()
    assert b"gpt-4o-mini" in path.read_bytes()
    shown(capsys, "forget", "--all")
    assert b"gpt-4o-mini" not in path.read_bytes()
    assert "nothing has been learnt yet" in shown(capsys, "show")


def test_a_choice_is_needed_and_only_one(capsys, database):
    for wrong in ([], ["--all", "--kind", "ttft_s"]):
        assert "Choose what is forgotten" in shown(capsys, "forget", *wrong, status=2)


@pytest.mark.parametrize("days", ["-3", "nan"])
def test_a_time_in_the_future_is_no_choice(capsys, database, days):
    said = shown(capsys, "forget", "--older-than", days, status=2)
    assert f"--older-than is a number of days, at least 0, not {float(days):g}" in said
    assert "ttft_s" in shown(capsys, "show")


def test_a_folder_is_no_state_file_and_an_export_does_not_overwrite_it(capsys, path, database, tmp_path):
    said = shown(capsys, "show", "--state", str(tmp_path), status=2)
    assert f"--state {tmp_path}: this is a folder. Name a file in it." in said
    said = shown(capsys, "export", "--state", str(path), str(path), status=2)
    assert "the command reads this file and would overwrite it" in said
    assert "would overwrite it" in shown(capsys, "export", str(path), status=2)  # DISCO_STATE names it
    assert "ttft_s" in shown(capsys, "show")


def test_where_there_is_no_file_nothing_is_made(capsys, path, monkeypatch):
    for command in (["show"], ["export"], ["forget", "--all"]):
        shown(capsys, *command)
    assert not path.exists()
    monkeypatch.setenv("DISCO_STATE", "off")
    assert "There is no state file" in shown(capsys, "show", status=2)


def test_a_broken_file_is_named_and_only_that_is_deleted(capsys, path, tmp_path):
    path.write_bytes(b"?" * 5000)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).write_bytes(b"?")
    for command in (["show"], ["export"], ["forget", "--kind", "ttft_s"]):
        said = shown(capsys, *command, status=2)
        assert f"is damaged or no state file. Delete it (`disco state forget --all --state {path}`)" in said
    diary = tmp_path / "diary.txt"
    diary.write_text("Dear diary, ...")
    diary.chmod(0o644)
    assert "is left alone" in shown(capsys, "forget", "--all", "--state", str(diary), status=2)
    assert diary.read_text() == "Dear diary, ..."
    assert diary.stat().st_mode & 0o777 == 0o644
    assert "which was damaged" in shown(capsys, "forget", "--all")
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"]


def test_saved_prompts_are_listed_in_numbers_and_deleted(tmp_path, monkeypatch, capsys):
    head = PromptHead(tmp_path, bytes(16), "leading", array("i", range(300)), 0, 1.0, time.time(), 0)
    folder = PromptFolder(PromptCache(folder=tmp_path / "mine"), bytes(16), print)
    assert folder.add(head, memoryview(bytes(2**20)), keeps_going=lambda: True)
    apart = tmp_path / "mine" / "notes.txt"
    apart.touch()
    named = ["state", "prompts", "--folder", str(tmp_path / "mine")]
    assert main(named) == 0
    shown = capsys.readouterr().out
    assert "1 saved prompts, 1 MiB" in shown
    assert "300" in shown
    assert main([*named, "--forget"]) == 0
    assert list((tmp_path / "mine").iterdir()) == [apart]
    assert main(named) == 0
    assert "No prompt is saved" in capsys.readouterr().out
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["state", "prompts"]) == 0
    assert "No prompt is saved" in capsys.readouterr().out
