"""Whatever reads a recording says the same of the same line, with the file and the line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recordings import SERVER, device, played
from session.recorded_kinds import DIES, kinds
from shadow.test_shadow_figures import ALONE, endpoint, plan

from disco.cli import main
from disco.plan import Start

SHADOW = {
    "preset": "other",
    "plan": plan(ALONE["server"]),
    "refused": None,
    "real": plan(ALONE["device"]),
    "endpoints": [endpoint("device"), endpoint("server")],
    "lengths": [20, 60, 120, 200, 300, 600],
    "streams": True,
    "may_migrate": True,
    "may_continue": True,
    "rises": None,
}
JUDGED = {"attempt": 0, "endpoint": "device", "why": None, "tokens": 5, "at_s": 0.5}
JUDGED |= {
    "task": "t",
    "model": "m",
    "kind": "sum",
    "score": 0.5,
    "threshold": 0.5,
    "history": 0,
    "number": 0,
}
JUDGED |= {"window": 8, "beta": 0.3, "rule": "paper", "outcome": "kept"}

READERS: dict[str, list[str]] = {
    "replay": ["replay", "FILE", "--policy", "recorded", "--policy", "server_only"],
    "replay in chunks": ["replay", "FILE", "--chunk-rows", "4", "--policy", "server_only"],
    "replay token by token": [
        "replay",
        "FILE",
        "--events",
        "--policy",
        "recorded",
        "--policy",
        "race",
        "--jobs=1",
    ],
    "tune": ["tune", "FILE", "--jobs=1", "--verify-requests=5"],
    "show": ["show", "FILE"],
    "show --summary": ["show", "FILE", "--summary"],
    "shadow": ["shadow", "FILE", "--draws", "2"],
    "replay --preset": ["replay", "FILE", "--preset", "fast"],
    "replay --verdicts": ["replay", "FILE", "--verdicts"],
}
every_reader = pytest.mark.parametrize("reader", READERS)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def answer(n: int, **more: Any) -> str:
    """An answer that every reader has a use for, in one line."""
    starts = [Start("device")] if n % 2 else [Start("server")]
    profiles = {"device": device(0.1 + 0.01 * n), "server": SERVER}
    record = played(profiles, *starts, created_s=1e9 + n, prompt_tokens=20 + n, pace_tps=12.0)
    judged = JUDGED | {"task": f"task {n}"}
    return json.dumps(record.to_dict(timelines=True) | {"shadow": SHADOW, "judgements": [judged]} | more)


def said(reader: str, *lines: str | bytes, more: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """The exit status of a reader of answers with these lines behind them, and the arguments of its command."""
    good = [answer(n).encode() for n in range(20)]
    written = [line.encode() if isinstance(line, str) else line for line in lines]
    Path("routes.jsonl").write_bytes(b"\n".join([*good, *written]) + b"\n")
    command = [part.replace("FILE", "routes.jsonl") for part in READERS[reader]]
    return main([*command, *more]), command


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    row = json.loads(answer(20))
    change(row)
    return json.dumps(row)


DAMAGED = {
    "half a line": (answer(20)[:300], "this is not JSON; a program that was killed may leave half a line"),
    "bytes that are no text": (b'{"schema": 5, "preset": "\xff\xfe"}', "this is not JSON; a program that"),
    "another object": ('{"hello": "world"}', "this is not a route record, as disco.RouteLog writes them"),
    "a field of another kind": (damaged(lambda row: row.update(attempts=7)), "the field 'attempts': "),
    "a field that is missing": (
        damaged(lambda row: row.pop("pace")),
        "the field 'pace' is missing (schema 5)",
    ),
    "a negative count": (
        damaged(lambda row: row["attempts"][0].update(tokens=-3)),
        "the field 'attempts.0.tokens': a count must not be negative",
    ),
    "a number beyond all": (damaged(lambda row: row.update(created_s=1e300)), "it has a number beyond 1e+18"),
    "an old version": (
        damaged(lambda row: row.update(schema=3)),
        "this record has schema 3, and this disco reads",
    ),
    "a damaged shadow": (
        damaged(lambda row: row["shadow"].update(lengths="long")),
        "the field 'shadow.lengths': ",
    ),
}


@every_reader
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_line_is_left_out_and_named_in_the_same_words(reader, damage, capsys):
    line, why = DAMAGED[damage]
    status, _ = said(reader, line)
    assert status == 0
    assert f"Left out: routes.jsonl, line 21: {why}" in " ".join(capsys.readouterr().out.split())


@every_reader
def test_a_record_of_a_newer_disco_ends_every_reader_with_the_advice_to_update(reader, capsys):
    newer = damaged(lambda row: row.update(schema=6, endpoints="of another form"))
    status, _ = said(reader, newer)
    assert status == 2
    words = "this record has schema 6, and this disco reads records up to schema 5: update disco"
    assert f"routes.jsonl, line 21: {words}" in " ".join(capsys.readouterr().err.split())


@every_reader
def test_a_compressed_recording_is_read_and_one_that_is_cut_off_is_named(reader, capsys):
    said(reader)
    text = gzip.compress(Path("routes.jsonl").read_bytes())
    command = [part.replace("FILE", "routes.jsonl.gz") for part in READERS[reader]]
    Path("routes.jsonl.gz").write_bytes(text)
    assert main(command) == 0
    assert "Left out" not in capsys.readouterr().out
    Path("routes.jsonl.gz").write_bytes(text[: len(text) // 2])
    assert main(command) == 2
    assert "the compressed data end too early; fetch the file again" in capsys.readouterr().err


@every_reader
def test_what_is_no_file_is_named_in_the_same_words(reader, capsys):
    Path("folder.jsonl").mkdir()
    for name, why in (
        ("none.jsonl", "there is no file none.jsonl"),
        ("folder.jsonl", "is a folder; name one file"),
    ):
        assert main([part.replace("FILE", name) for part in READERS[reader]]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("reader", ["replay", "replay in chunks", "tune"])
def test_skip_invalid_leaves_out_what_is_newer_and_names_it(reader, capsys):
    status, _ = said(reader, damaged(lambda row: row.update(schema=6)), more=("--skip-invalid",))
    assert status == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Left out: routes.jsonl, line 21: this record has schema 6" in printed
    assert "update disco" in printed


def test_one_answer_of_a_file_is_drawn_whatever_stands_in_its_other_lines(capsys):
    said("show", damaged(lambda row: row.update(schema=6)))
    assert main(["show", "routes.jsonl", "--answer", "3"]) == 0
    assert main(["show", "routes.jsonl", "--answer", "21"]) == 2
    assert "routes.jsonl, line 21: this record has schema 6" in capsys.readouterr().err


@every_reader
@pytest.mark.parametrize("kind", ["failed over in mid-stream", "failed over before a word"])
def test_an_answer_that_failed_over_ends_no_reader(reader, kind, capsys):
    status, _ = said(reader, *[kinds()[kind].to_json(timelines=True)] * 3)
    assert status == 0
    printed = " ".join(capsys.readouterr().out.split())
    if reader == "shadow":
        assert "routes.jsonl, line 21, line 22, line 23: without a shadow" in printed
    else:
        assert "Left out" not in printed


def test_an_answer_whose_writer_failed_is_no_part_of_a_comparison_and_named(capsys):
    profiles = {"device": device(0.2), "server": DIES}
    died = played(profiles, Start("server"), fallbacks=("device",), created_s=1e9 + 30).to_dict()
    status, _ = said("shadow", json.dumps({**died, "shadow": SHADOW}))
    assert status == 0
    assert "Left out: routes.jsonl, line 21: an endpoint failed while it wrote" in " ".join(
        capsys.readouterr().out.split()
    )


def of_role(role: str) -> str:
    """An answer whose first endpoint stayed silent, and that another one began, in this role."""
    row = kinds()["failed over before a word"].to_dict(timelines=True)
    silent, began = row["attempts"]
    silent |= {"failure": None, "outcome": "cancelled", "doubted_s": began["started_s"]}
    began |= {"role": role, "prefix_chars": 0}
    return json.dumps({**row, "shadow": {**SHADOW, "real": plan(ALONE["server"])}})


@pytest.mark.parametrize("reader", ["replay", "shadow"])
def test_an_heir_that_began_the_answer_counts_like_any_other_that_may_begin_it(reader, capsys):
    figures = []
    for role in ("hedge", "takeover", "heir"):
        status, _ = said(reader, *[of_role(role)] * 3, more=("--json", "-"))
        assert status == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0] == figures[1] == figures[2]


@every_reader
def test_a_line_is_one_line_whatever_separators_its_texts_have(reader, capsys):
    """JSON allows U+2028, U+2029 and U+0085 in a text; only a line feed ends a line of a recording."""
    odd = json.dumps(json.loads(answer(20)) | {"served_as": "a\u2028b\u2029c\x85d"}, ensure_ascii=False)
    status, _ = said(reader, odd)
    assert status == 0
    assert "Left out" not in capsys.readouterr().out
