"""What `--svg` keeps of a run: what a terminal shows in the end, in colours, with nothing from elsewhere."""

import io
import re
from xml.etree import ElementTree

import pytest

from disco.cli.pictures.recorded_screen import RecordedScreen
from disco.errors import ConfigurationError

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(path) -> list[str]:
    """The text of the picture, line by line."""
    rows: dict[str, str] = {}
    for text in ElementTree.parse(path).getroot().iter(f"{SVG}text"):
        said = "".join(text.itertext()).replace("\N{NO-BREAK SPACE}", " ")
        rows[text.attrib["y"]] = rows.get(text.attrib["y"], "") + said
    return [row.rstrip() for row in rows.values()]


def test_the_picture_has_what_stays_and_not_what_passes_by(tmp_path, capsys):
    screen = RecordedScreen()
    screen.line("A title", style="bold")
    screen.legend(["device", "server"])
    with screen.step("Loading") as progress:
        progress(0.1, "still")
        screen.line("within a step")
    for _ in range(40):
        screen.stream("word ", "device")
    screen.stream("its end\x1b[2J", "server")
    screen.line()
    screen.table("Figures", ["who", "tokens"], [["device", 7]])
    path = tmp_path / "shown.svg"
    screen.save_svg(str(path), title="disco demo & more")
    shown = lines_of(path)
    text = "\n".join(shown)
    assert text.count("word") == 40
    assert max(map(len, shown)) <= 110
    assert "its end" in text
    assert not re.search("Loading|within a step", text)
    assert re.search(r"device *│ +7", text)
    source = path.read_text(encoding="utf-8")
    assert "disco demo &amp; more" in source
    assert "http" not in source.replace("http://www.w3.org/2000/svg", "")
    assert "\x1b" not in source
    classes = dict(re.findall(r'class="terminal-(r\d+)"[^>]*>([^<]*)', source))
    assert len(classes) > 3  # colours and weights
    assert "within a step" in capsys.readouterr().out  # where the command runs, it was shown


def test_a_picture_that_cannot_be_written_is_named(tmp_path):
    screen = RecordedScreen()
    screen.line("text")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        screen.save_svg(str(tmp_path), title="disco demo")


def test_it_is_the_same_for_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    pictures = []
    for n in range(2):
        screen = RecordedScreen()
        screen.stream("text", "device")
        screen.save_svg(str(tmp_path / f"{n}.svg"), title="disco demo")
        pictures.append((tmp_path / f"{n}.svg").read_bytes())
    assert pictures[0] == pictures[1]
