"""Cuts never split a grapheme, and prefer whole words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.playback.text_boundaries import (
    CAP_CHARS,
    continues,
    ends_open,
    is_grapheme_boundary,
    last_word_start,
    next_cut,
)

FAMILY = "👨‍👩‍👧"
GRAPHEMES = [
    "\r\n", "e\u0301", "a\u0308\u0323", FAMILY, "❤\ufe0f", "👍🏽", "🇩🇪", "각", "\u1100\u1161\u11a8",
    "가\u11a8", "क्ष", "नि", "ก\u0e34", "か\u3099", "🏴\U000e0067\U000e0062\U000e007f", "x", "語", "\n",
]  # fmt: skip
TEXTS = st.lists(
    st.sampled_from([*GRAPHEMES, " ", "word", "don't", ", ", ". ", "你好", "สวัสดี", "A" * 70]), max_size=20
).map("".join)


@pytest.mark.parametrize("grapheme", GRAPHEMES)
def test_a_grapheme_has_no_boundary_inside_and_one_on_each_side(grapheme: str) -> None:
    text = f"a{grapheme}b"
    assert [i for i in range(len(text) + 1) if is_grapheme_boundary(text, i)] == [
        0, 1, 1 + len(grapheme), 2 + len(grapheme),
    ]  # fmt: skip
    flags = "🇩🇪🇫🇷🇮🇹"  # flags pair up
    assert [i for i in range(7) if is_grapheme_boundary(flags, i)] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""), ("foo", ""), ("foo bar", "foo"), ("foo bar ", "foo bar"), ("foo  \n bar", "foo"),
        ("a\r\nb", "a"), ("   ", ""), ("foo bar,", "foo"), ("don't", ""), ("你好", "你"), ("你", ""),
        ("我喜欢Python", "我喜欢"), ("hi " + FAMILY, "hi"), ("👍👍", "👍"), (FAMILY * 2, FAMILY),
        ("🇩🇪🇫🇷", "🇩🇪"), ("x" * 200, "x" * 199), ("x " + "y" * 63, "x"), ("x " + "y" * 64, "x " + "y" * 63),
        ("e\u0301 e\u0301", "e\u0301"), ("สวัสดี", "สวัส"),
    ],
)  # fmt: skip
def test_a_hand_over_keeps_whole_words(text: str, kept: str) -> None:
    assert text[: last_word_start(text)] == kept


@given(TEXTS | st.text(max_size=300))
def test_no_cut_is_inside_a_grapheme_or_loses_text_and_the_last_word_always_goes(text: str) -> None:
    cut = last_word_start(text)
    assert 0 <= cut < max(len(text), 1)
    cuts, at = {cut}, 0
    while at < len(text):
        after = next_cut(text, at)
        assert after > at
        at = after
        cuts.add(at)
    assert at == len(text)
    assert all(is_grapheme_boundary(text, cut) for cut in cuts)


@given(TEXTS)
def test_what_a_hand_over_drops_stays_near_the_end(text: str) -> None:
    assert len(text[last_word_start(text) :].strip()) <= 2 * CAP_CHARS


@pytest.mark.parametrize(
    ("before", "after", "inside"),
    [
        ("unbeliev", "able", True), ("foo", ",", True), ("\r", "\n", True), ("👨", "\u200d", True),
        ("👨\u200d", "👩", True), ("🇩", "🇪", True), ("🇩🇪", "🇫", False), ("foo", " bar", False),
        ("foo ", "bar", False), ("你", "好", False), ("", "x", False),
    ],
)  # fmt: skip
def test_pieces_continue_inside_words_and_graphemes_only(before: str, after: str, inside: bool) -> None:
    assert continues(before, after) is inside


def test_open_ends() -> None:
    assert all(map(ends_open, ["foo", "don'", "👍", "e\u0301", "ดี", "12"]))
    assert not any(map(ends_open, ["", "foo ", "foo.", "你", "です", "（"]))
