"""What the commands print, on a terminal and elsewhere."""

import io

from rich.console import Console

from disco.cli.console import Screen


def plain():
    out = io.StringIO()
    return Screen(out), out


def terminal():
    out = io.StringIO()
    screen = Screen(out)
    screen._console = Console(file=out, force_terminal=True, color_system="standard", width=80)
    return screen, out


def test_streamed_text_appears_unchanged_where_there_is_no_terminal():
    screen, out = plain()
    pieces = ["A [bold]long[/bold] answer ", "x" * 300, "\n:smile: 你好 ", "https://example.org/a b", "\n"]
    for i, piece in enumerate(pieces):
        screen.stream(piece, f"endpoint{i}")
    assert out.getvalue() == "".join(pieces)


def test_an_answer_cannot_send_control_codes_to_the_terminal():
    for screen, out in (plain(), terminal()):
        screen.stream("safe\x1b]0;title\x07\x1b[2J\x9b31m\rtext\n", "device")
        written = out.getvalue()
        assert "\x1b]" not in written
        assert "\x1b[2J" not in written
        assert "\x07" not in written
        assert "\r" not in written
        assert "\x9b" not in written


def test_each_endpoint_keeps_its_colour():
    screen, out = terminal()
    screen.stream("one", "device")
    screen.stream("two", "server")
    screen.stream("one", "device")
    first, second = screen.colour("device"), screen.colour("server")
    assert first != second
    assert out.getvalue().count("\x1b[36m") == 2
    screen.legend(["device", "server"])
    assert "server" in out.getvalue()


def test_lines_start_below_streamed_text():
    screen, out = plain()
    screen.stream("half a li", "device")
    screen.line("note")
    screen.line("next")
    assert out.getvalue() == "half a li\nnote\nnext\n"


def test_a_step_is_one_plain_line_where_there_is_no_terminal():
    screen, out = plain()
    with screen.step("Loading") as progress:
        progress(1.0, "still")
    assert out.getvalue().startswith("Loading: 0.")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


def test_a_step_shows_its_progress_on_a_terminal():
    screen, out = terminal()
    with screen.step("Loading") as progress:
        progress(3.0, "reading the model")
    assert "Loading" in out.getvalue()


def test_tables_are_plain_without_a_terminal_and_numbers_stand_to_the_right():
    screen, out = plain()
    screen.stream("text", "device")
    screen.table("Route", ["who", "tokens"], [["device", 7], ["server", "1,200"]])
    lines = out.getvalue().splitlines()
    assert lines[0] == "text"
    assert "\x1b" not in out.getvalue()
    seven = next(line for line in lines if "device" in line)
    thousand = next(line for line in lines if "1,200" in line)
    assert seven.index("7") == thousand.index("1,200") + 4
