"""`disco show`: the list of answers, one answer in a terminal, as a picture and as a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from record.test_marks import moved

from disco.cli import main
from disco.cli.show import newest
from disco.plan import BudgetCut, CoolDown
from disco.record import read_record, timeline_html, timeline_svg

CREATED_S = 1_764_115_200.25


@pytest.fixture
def recording(tmp_path):
    """Three answers, the second of them half a line, and an empty line."""
    path = tmp_path / "routes.jsonl"
    lines = [replace(moved(), created_s=CREATED_S + n).to_json(timelines=True) for n in range(3)]
    path.write_text(f"{lines[0]}\n{lines[1][:300]}\n\n{lines[2]}\n", encoding="utf-8")
    return path


def test_the_list_has_a_line_for_each_answer_and_names_the_damaged_one(recording, capsys):
    assert main(["show", str(recording)]) == 0
    out = capsys.readouterr().out
    assert [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")] == ["1", "4"]
    assert "device → server" in out
    assert "race, moved" in out
    assert f"{recording}, line 2: this is not JSON" in " ".join(out.split())
    assert f"disco show {recording} --answer 4" in " ".join(out.split())
    assert main(["show", str(recording), "--last", "1"]) == 0
    out = capsys.readouterr().out
    assert "The newest 1 of 3 answers" in out
    assert "line 2" not in out


def test_one_answer_is_found_by_its_line_by_its_time_and_as_the_last(recording, capsys):
    for which in ("4", "last", f"{CREATED_S + 2}"):
        assert main(["show", str(recording), "--answer", which]) == 0
    drawn = capsys.readouterr().out
    assert drawn.count("server goes on") == 3
    assert drawn.count("device and wins") == 0
    assert drawn.count("wins the race") == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--answer", "2"], "line 2: this is not JSON"),
        (["--answer", "3"], "has no answer in line 3; its last one is in line 4"),
        (["--answer", "9"], "has no answer in line 9; its last one is in line 4"),
        (["--answer", "1.5"], "has no answer whose created_s is 1.5"),
        (["--answer", "chatcmpl-1"], "name the number of a line"),
        (["--svg", "-"], "has 3 answers: say which one with --answer"),
        (["--last", "0"], "--last must be at least 1"),
        (["--answer", "1", "--html", "/nowhere/a.html"], "there is no folder /nowhere"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(recording, capsys, options, said):
    assert main(["show", str(recording), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_and_an_empty_file_are_named(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    assert main(["show", str(tmp_path / "none.jsonl")]) == 2
    assert main(["show", str(empty)]) == 2
    assert main(["show", str(empty), "--answer", "last"]) == 2
    assert main(["show", str(empty), "--answer", "3"]) == 2
    said = capsys.readouterr().err
    assert "there is no file" in said
    assert said.count("has no answers yet") == 3


def test_the_picture_and_the_page_are_the_modules_own(recording, tmp_path, capsys):
    svg, page = tmp_path / "a.svg", tmp_path / "a.html"
    outputs = ["--svg", str(svg), "--html", str(page), "--title", "A <b>move</b>"]
    assert main(["show", str(recording), "--answer", "1", *outputs]) == 0
    assert capsys.readouterr().out == f"Picture: {svg}\nPage: {page}\n"
    record = read_record(recording.read_bytes().splitlines()[0])
    assert svg.read_text(encoding="utf-8") == timeline_svg(record, title="A <b>move</b>")
    assert page.read_text(encoding="utf-8") == timeline_html(record, title="A <b>move</b>")
    assert "A <b>" not in page.read_text(encoding="utf-8")
    assert ElementTree.parse(svg).getroot().attrib["role"] == "img"


def test_the_recording_itself_is_never_overwritten(recording, capsys):
    before = recording.read_bytes()
    assert main(["show", str(recording), "--answer", "1", "--svg", str(recording)]) == 2
    assert recording.read_bytes() == before


def test_a_summary_of_records_without_reasons_tells_a_budget_from_a_battery(tmp_path, capsys):
    """Both say "low". A move that was cut is no reason of a plan: newer records have none for it either."""
    path = tmp_path / "routes.jsonl"
    cut = (BudgetCut("server", "hedge", "low"), BudgetCut("device", "move", "spent"))
    record = replace(moved(), budget_cuts=cut, deprioritised=(CoolDown("device", "low"),))
    assert not record.why
    path.write_text(record.to_json(timelines=True) + "\n", encoding="utf-8")
    assert main(["show", str(path), "--summary"]) == 0
    out = capsys.readouterr().out
    assert "server was asked in 1 of 1: not asked, little of a budget was left (1)\n" in out
    assert "device was asked in 1 of 1: the battery was low (1)\n" in out


def test_a_damaged_time_does_not_hide_the_others_in_a_summary(tmp_path, capsys):
    path = tmp_path / "routes.jsonl"
    lines = [replace(moved(), created_s=at).to_json() for at in (CREATED_S, CREATED_S + 60, CREATED_S + 120)]
    lines[1] = lines[1].replace(f'"created_s": {CREATED_S + 60}', '"created_s": NaN')
    assert "NaN" in lines[1]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert main(["show", str(path), "--summary"]) == 0
    out = capsys.readouterr().out
    assert "2 requests, 2025-1" in out
    assert f"{path}, line 2: the field 'created_s': an amount must be finite" in " ".join(out.split())


def test_a_long_file_is_not_read_into_memory(tmp_path):
    """Only the listed lines are kept, and none of the others is parsed: they are no records."""
    path = tmp_path / "long.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for n in range(50_000):
            file.write(f'{{"not a record": {n}}}\n')
    lines, total = newest(path, 2)
    assert total == 50_000
    assert [json.loads(line.text)["not a record"] for line in lines] == [49_998, 49_999]
    assert [line.number for line in lines] == [49_999, 50_000]


@pytest.mark.parametrize("number", ["1e308", "9" * 400, "9" * 5000])
def test_a_number_that_nothing_can_be_made_of_is_named_without_a_traceback(tmp_path, capsys, number):
    path = tmp_path / "odd.jsonl"
    for name in ("created_s", "duration_s", "bill_usd"):
        row = json.loads(moved().to_json(timelines=True))
        text = json.dumps(row).replace(f'"{name}": ', f'"{name}": {number}, "was": ', 1)
        path.write_text(text + "\n", encoding="utf-8")
        for options in ([], ["--summary"], ["--answer", "1"], ["--html", "-"]):
            assert main(["show", str(path), *options]) in (0, 1, 2)
            shown = capsys.readouterr()
            assert "line 1: " in " ".join((shown.out + shown.err).split())


def test_a_number_that_is_none_ends_no_command(tmp_path, capsys):
    path = tmp_path / "odd.jsonl"
    text = moved().to_json(timelines=True)
    for at in [found.end() for found in re.finditer(r'": (?=[0-9])', text)]:
        path.write_text(text[:at] + "NaN" + re.sub(r"^[0-9.e+-]+", "", text[at:]) + "\n", encoding="utf-8")
        for options in ([], ["--summary"], ["--answer", "1"]):
            assert main(["show", str(path), *options]) in (0, 1, 2)
    capsys.readouterr()


def test_no_escape_sequence_of_a_strangers_record_reaches_the_terminal(tmp_path, capsys):
    path = tmp_path / "odd.jsonl"
    text = replace(moved(), created_s=CREATED_S).to_json(timelines=True)
    path.write_text(text.replace('"device"', '"\\u001b[31mdevice"') + "\n", encoding="utf-8")
    path.with_name("other.jsonl").write_text(text.replace('"winner"', '"\\u001b[31m"') + "\n")
    for name in ("odd.jsonl", "other.jsonl"):
        for options in ([], ["--summary"], ["--answer", "1"], ["--svg", "-"], ["--html", "-"]):
            main(["show", str(tmp_path / name), *options])
            shown = capsys.readouterr()
            assert "\x1b" not in shown.out + shown.err
