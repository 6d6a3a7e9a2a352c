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


def test_a_grapheme_has_no_boundary_inside_and_one_on_each_side():
    for grapheme in GRAPHEMES:
        text = f"a{grapheme}b"
        found = [i for i in range(len(text) + 1) if is_grapheme_boundary(text, i)]
        assert found == [0, 1, 1 + len(grapheme), 2 + len(grapheme)], grapheme
    assert [i for i in range(7) if is_grapheme_boundary("🇩🇪🇫🇷🇮🇹", i)] == [0, 2, 4, 6]  # flags pair up


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
def test_a_hand_over_keeps_whole_words(text, kept):
    assert text[: last_word_start(text)] == kept


@given(TEXTS, st.text(max_size=300))
def test_no_cut_is_inside_a_grapheme_or_loses_text_and_only_the_last_word_always_goes(drawn, anything):
    for text in (drawn, anything):
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
    assert len(drawn[last_word_start(drawn) :].strip()) <= 2 * CAP_CHARS


INSIDE = [
    ("unbeliev", "able"), ("foo", ","), ("\r", "\n"), ("👨", "\u200d"), ("👨\u200d", "👩"), ("🇩", "🇪"),
]  # fmt: skip
OUTSIDE = [("🇩🇪", "🇫"), ("foo", " bar"), ("foo ", "bar"), ("你", "好"), ("", "x")]


def test_pieces_continue_inside_words_and_graphemes_only():
    assert [pair for pair in [*INSIDE, *OUTSIDE] if continues(*pair)] == INSIDE
    assert all(map(ends_open, ["foo", "don'", "👍", "e\u0301", "ดี", "12"]))
    assert not any(map(ends_open, ["", "foo ", "foo.", "你", "です", "（"]))
