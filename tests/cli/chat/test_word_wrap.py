"""Text that comes in pieces, broken into lines between words."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from disco.cli.word_wrap import WordWrap, cells, printable

SIGNS = ["naïve", "海は", "塩辛い。", "（", "👩\u200d💻", "🇩🇪", "e\u0301"]
WORDS = st.sampled_from(["a", "the", "sea", "salty,", "x" * 30, *SIGNS, "```", "~~~~", "`"])
TEXTS = st.lists(
    st.one_of(WORDS, st.sampled_from([" ", "  ", "\n", "\t", "\u00a0"]), st.text(max_size=3))
).map("".join)


def wrapped(pieces, columns):
    wrap = WordWrap()
    lines = [line for piece in pieces for line in wrap.add(piece, "m", columns)]
    return [*lines, wrap.current]


def shown(text, columns):
    return ["".join(t for t, _ in line.visible(columns)) for line in wrapped([text], columns)]


@given(TEXTS.map(printable), st.integers(2, 40), st.data())
def test_lines_joined_are_the_text_none_is_too_long_and_pieces_do_not_matter(text, columns, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    lines = wrapped(pieces, columns)
    assert lines == wrapped([text], columns) == wrapped(text, columns)
    joined = "".join(line.text + "\n" * line.breaks for line in lines)
    assert joined == text.replace("\t", "    ")
    if not any(fence in text for fence in ("```", "~~~")):  # in code, lines are the terminal's to wrap
        for line in lines:
            assert cells("".join(t for t, _ in line.visible(columns))) <= columns


@given(st.lists(st.text("abcdefghij,.'-", min_size=1, max_size=20), min_size=1), st.integers(20, 60))
def test_no_word_is_cut_that_fits_into_a_line(words, columns):
    lines = shown(" ".join(words), columns)
    assert [word for line in lines for word in line.split()] == words
    for line, following in pairwise(lines):  # nor does one go to the next line that had room
        assert cells(f"{line.rstrip()} {following.split()[0]}") > columns


def test_where_lines_break():
    assert shown("The sea is salty.", 10) == ["The sea is", "salty."]
    assert shown("a " + "x" * 25, 10) == ["a ", "x" * 10, "x" * 10, "xxxxx"]
    assert shown("海は塩辛い。なぜか", 11) == ["海は塩辛", "い。なぜか"]  # no line begins with a full stop
    assert shown("say「海」", 6) == ["say", "「海」"]
    assert shown("    indented words", 14) == ["    indented ", "words"]
    assert shown("1\u00a0000\u00a0000 of", 9) == ["1\u00a0000\u00a0000", "of"]


def test_code_between_fences_is_left_as_it_is_and_prose_behind_it_breaks_again():
    long = "    return " + "value + " * 5 + "1"
    text = f"Try this:\n```python\n{long}\n```\nIt adds up all of it."
    assert shown(text, 12) == ["Try this:", "```python", long, "```", "It adds up ", "all of it."]
    assert shown("```one``` is inline\nand so this breaks", 12)[1:] == ["and so this ", "breaks"]


def test_a_window_that_becomes_narrower_or_wider_counts_from_then_on_and_each_character_keeps_its_mark():
    wrap = WordWrap()
    assert wrap.add("one two three ", "device", 20) == []
    (line,) = wrap.add("four", "server", 10)
    assert (line.text, line.breaks) == ("one two ", False)
    assert wrap.current.pieces == (("three ", "device"), ("four", "server"))
    assert wrap.settled_chars == 6
    (line,) = wrap.add(" five six\n", "server", 40)
    assert (line.text, line.breaks) == ("three four five six", True)


def test_what_is_printed_has_no_control_characters():
    assert printable("a\x1b[2J\x9b1m\r\n\tb\x07\x00\ud800") == "a[2J1m\n\tb\ufffd"
    assert printable("é海👩\u200d💻") == "é海👩\u200d💻"
