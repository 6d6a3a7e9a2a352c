"""What the commands print, on a terminal and elsewhere."""

import io

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
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
    said = out.getvalue()
    with screen.waiting("Loading smollm2-135m"):
        pass
    assert out.getvalue() == said, "the first line of a server is its address"


def test_a_table_that_is_too_wide_for_the_terminal_has_no_lines_before_its_figures_are_cut():
    columns = ["how", *("0.123 s" for _ in range(8))]
    row = ["server", *(f"{number}.123" for number in range(8))]
    screen, out = made(terminal=True)
    screen.table("Wide", columns, [row])
    assert "│" not in out.getvalue()
    assert any(line.split() == row for line in out.getvalue().splitlines())
    screen, out = made(terminal=True)
    screen.table("Narrow", columns[:3], [row[:3]])
    assert "│" in out.getvalue()


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
    with screen.waiting("Loading smollm2-135m"):
        screen.line("meanwhile")
    waited, _, last = out.getvalue().rpartition("meanwhile")
    assert "Loading smollm2-135m" in waited
    assert last.endswith("\x1b[2K"), "nothing of it stays"


def lines_of(terminal):
    return [line.rstrip() for line in terminal.display]


def emulated(pieces, columns, *, dumb=False):
    """A terminal of that width that shows a streamed text, as it is once each piece has come."""
    pyte = pytest.importorskip("pyte")
    out = io.StringIO()
    screen = Screen(out)
    screen._console = Console(
        file=out, force_terminal=True, width=columns, _environ={"TERM": "dumb" if dumb else "xterm"}
    )
    terminal = pyte.Screen(columns, 60)
    terminal.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(terminal)
    for piece in pieces:
        screen.stream(piece, "device")
        stream.feed(out.getvalue())
        out.truncate(0)
        out.seek(0)
        yield terminal
    screen.line("[end]")
    stream.feed(out.getvalue())
    yield terminal


WORDS = [" the", " sea", "side", " is", " unfath", "om", "ably", " deep", ".", " naïve", "té", "\n"]
TOKENS = st.lists(st.sampled_from(WORDS), max_size=24)


@given(tokens=TOKENS, columns=st.integers(24, 40), dumb=st.booleans())
def test_on_a_terminal_streamed_words_are_whole_whatever_their_pieces(tokens, columns, dumb):
    if dumb:  # of unknown width here, as it is no real one
        tokens, columns = tokens * 4, 80
    text = "".join(tokens)
    assume(max(map(len, text.split()), default=0) < columns)  # a longer word is cut at the edge
    *_, terminal = emulated(tokens, columns, dumb=dumb)
    shown = lines_of(terminal)
    told = shown[: shown.index("[end]")]
    assert " ".join(told).split() == text.split()


def test_a_word_that_has_no_room_goes_to_the_next_line_as_it_grows():
    screens = [lines_of(at)[:3] for at in emulated(["The sea", " is", " deep", "ly", " blue"], 12)]
    assert screens == [
        ["The sea", "", ""],
        ["The sea is", "", ""],
        ["The sea is", "deep", ""],
        ["The sea is", "deeply", ""],
        ["The sea is", "deeply blue", ""],
        ["The sea is", "deeply blue", "[end]"],
    ]
    row = "The sea is deep, and " * 4
    dumb = [lines_of(at)[0] for at in emulated([row[:73], "ly", " blue"], 80, dumb=True)]
    held = row[:71].rstrip()  # without the last word, which may grow
    assert dumb == [held, held, row[:73] + "ly", row[:73] + "ly"]
