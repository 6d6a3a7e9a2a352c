"""What the commands print, on a terminal and elsewhere."""

import io

from rich.console import Console

from disco.cli.console import Screen


def made(*, terminal=False):
    out = io.StringIO()
    screen = Screen(out)
    if terminal:
        screen._console = Console(file=out, force_terminal=True, color_system="standard", width=80)
    return screen, out


def test_without_a_terminal_text_is_unchanged_and_lines_tables_and_steps_are_plain():
    screen, out = made()
    pieces = [
        "A [bold]long[/bold] answer ",
        "x" * 300,
        "\n:smile: 你好 ",
        "https://example.org/a b",
        "\nhalf a li",
    ]
    for number, piece in enumerate(pieces):
        screen.stream(piece, f"endpoint{number}")
    screen.line("note")
    screen.line("next")
    assert out.getvalue() == "".join(pieces) + "\nnote\nnext\n"
    screen, out = made()
    screen.stream("text", "device")
    screen.table("Route", ["who", "tokens"], [["device", 7], ["server", "1,200"]])
    lines = out.getvalue().splitlines()
    assert lines[0] == "text"
    seven, thousand = (next(line for line in lines if name in line) for name in ("device", "server"))
    assert seven.index("7") == thousand.index("1,200") + 4  # numbers stand to the right
    with screen.step("Loading") as progress:
        progress(1.0, "still")
    assert "\x1b" not in out.getvalue()
    (step,) = out.getvalue().splitlines()[len(lines) :]
    assert step.startswith("Loading: 0.")


def test_an_answer_cannot_send_control_codes_to_the_terminal():
    for screen, out in (made(), made(terminal=True)):
        screen.stream("safe\x1b]0;title\x07\x1b[2J\x9b31m\rtext\n", "device")
        assert [code for code in ("\x1b]", "\x1b[2J", "\x07", "\r", "\x9b") if code in out.getvalue()] == []


def test_on_a_terminal_each_endpoint_keeps_its_colour_and_a_step_shows_its_progress():
    screen, out = made(terminal=True)
    for name in ("device", "server", "device"):
        screen.stream("text", name)
    assert screen.colour("device") != screen.colour("server")
    assert out.getvalue().count("\x1b[36m") == 2
    screen.legend(["device", "server"])
    assert "server" in out.getvalue()
    with screen.step("Loading") as progress:
        progress(3.0, "reading the model")
    assert "Loading" in out.getvalue()
