"""The pictures of the documentation are what the present code draws."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chromium import find_chromium, open_page
from record.drawn import SVG, check_drawings, check_timeline, printed

from disco.cli.demonstration.comparison import COLUMNS
from disco.cli.demonstration.demo import SCENES
from disco.record import read_record, timeline_html
from disco.session.records.route_record import SCHEMA

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(PICTURES))
    try:
        return {name: importlib.import_module(name) for name in ("time_lines", "replay_report")}
    finally:
        sys.path.remove(str(PICTURES))


def holds(written: object, now: object) -> bool:
    """Whether all that was written is read and written again; fields that came later have their defaults."""
    if isinstance(written, dict) and isinstance(now, dict):
        return written.keys() <= now.keys() and all(
            holds(value, now[name]) for name, value in written.items()
        )
    if isinstance(written, list) and isinstance(now, list):
        return len(written) == len(now) and all(map(holds, written, now))
    return written == now


def test_every_time_line_is_what_is_drawn_from_its_record_now(scripts):
    drawing = scripts["time_lines"]
    assert {path.stem for path in drawing.RECORDS.glob("*.jsonl")} == set(drawing.PICTURES)
    for name in drawing.PICTURES:
        kept = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
        assert kept == drawing.draw(name), f"{name}: draw again: python docs/pictures/time_lines.py"
        assert f"../pictures/{name}.svg" in PAGES


def test_every_record_is_one_line_of_the_present_version_that_shows_what_its_picture_is_about(scripts):
    drawing = scripts["time_lines"]
    told = (drawing.RECORDS / "README.txt").read_text(encoding="utf-8")
    for name, picture in drawing.PICTURES.items():
        (line,) = (drawing.RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        record = read_record(line)
        assert json.loads(line)["schema"] == SCHEMA
        assert holds({**json.loads(line), "shadow": None}, json.loads(record.to_json(timelines=True)))
        assert picture.shows(record), (
            f"{name}: record again: python docs/pictures/time_lines.py {name} --record"
        )
        check_timeline(record)
        check_drawings(record)
        command = re.escape(" ".join([*picture.command, "FILE"]))
        assert re.search(rf"^{name}\.jsonl +{command}$", told, re.MULTILINE), name


def test_the_page_shows_what_a_terminal_shows_now(scripts):
    record = read_record((scripts["time_lines"].RECORDS / "move.jsonl").read_bytes())
    page = (ROOT / "docs" / "reference" / "show.md").read_text(encoding="utf-8")
    assert "\n".join(line.rstrip() for line in printed(record, 84).splitlines()) in page


def test_the_picture_of_the_demo_shows_the_present_scenes_columns_and_legend():
    path = PICTURES / "demo.svg"
    root = ElementTree.parse(path).getroot()
    lines: dict[str, str] = {}
    for text in root.iter(f"{SVG}text"):
        lines[text.attrib["y"]] = lines.get(text.attrib["y"], "") + " " + "".join(text.itertext())
    shown = re.sub(r"\s+", " ", " ".join(lines.values()).replace("\N{NO-BREAK SPACE}", " "))
    for number, scene in enumerate(SCENES, 1):
        assert f"{number}. {scene.title}" in shown, "take it again: disco demo --svg docs/pictures/demo.svg"
        assert scene.story.split(".")[0] in shown
    assert "■ device" in shown
    assert "■ server" in shown
    for column in COLUMNS:
        assert set(column.split()) <= set(re.split(r"[\s│┃]+", shown)), column
    assert path.stat().st_size < 150_000
    text = path.read_text(encoding="utf-8")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "Not every scene went as planned" not in shown
    assert root.find(f"{SVG}title") is not None


def test_the_picture_of_the_replay_report_shows_what_the_replay_computes_now(scripts, tmp_path, capsys):
    pytest.importorskip("plotly")
    kept = json.loads((PICTURES / "replay-report.json").read_text(encoding="utf-8"))
    found = scripts["replay_report"].replayed(tmp_path)
    assert kept["title"] == found["title"]
    assert list(kept["lines"]) == list(found["lines"])
    for name, figures in found["lines"].items():
        again = "take it again: python docs/pictures/replay_report.py"
        assert figures == pytest.approx(kept["lines"][name], rel=1e-3), f"{name}: {again}"
    assert (PICTURES / "replay-report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.real
def test_a_browser_draws_the_page_without_complaint_and_asks_nobody_for_anything(scripts, tmp_path):
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium is installed")
    line = (scripts["time_lines"].RECORDS / "move.jsonl").read_bytes()
    page_file = tmp_path / "move.html"
    page_file.write_text(timeline_html(read_record(line)), encoding="utf-8")
    ground = "getComputedStyle(document.querySelector('svg .paper')).fill"
    ink = "getComputedStyle(document.querySelector('svg text')).fill"
    with open_page(chromium) as page:
        colours = []
        for scheme in ("light", "dark"):
            page.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            page.goto(page_file.as_uri())
            colours.append((page.evaluate(ground), page.evaluate(ink)))
        assert len({colour for pair in colours for colour in pair}) == 4
        # No label stands in another one, and no text leaves the picture.
        overlaps = page.evaluate(
            "(() => { const boxes = [...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect());"
            "const frame = document.querySelector('svg').getBoundingClientRect();"
            "const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 4 ||"
            " b.bottom <= a.top + 4; let bad = 0;"
            "boxes.forEach((a, i) => { if (a.right > frame.right || a.left < frame.left) bad++;"
            " boxes.slice(i + 1).forEach(b => { if (!apart(a, b)) bad++; }); }); return bad; })()"
        )
        assert overlaps == 0
        assert page.complaints() == []
        assert page.hosts() <= {"file://"}
