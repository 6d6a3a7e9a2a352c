"""Units: joined they are the text; sentences end where a reader ends them; what is no prose stays whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.refine import UNIT_TOKENS, split_units

# Pieces that the rules look at, so that texts of them reach every rule.
PIECES = st.sampled_from(
    [
        *(
            "The mill",
            " burned",
            ". ",
            ".",
            "! ",
            "?\n",
            "\n",
            "\n\n",
            " ",
            "…",
            "Dr. ",
            "e.g. ",
            "3.14",
            "No. 5",
            "J. ",
        ),
        *(
            "水车。",
            "「是」。",
            "これは",
            "؟ ",
            "। ",
            "```",
            "```py\n",
            "~~~\n",
            "x = 1\n",
            '{"a": ',
            "[1, 2]",
            "}",
            "[[",
            "|a|b|\n",
        ),
        *(
            "1, 2, 3, 4\n",
            "- item\n",
            "Input: ",
            "Output: ",
            "# Head\n",
            "é\u0301",
            "👩\u200d🚀",
            "\t",
            "<a>\n",
            "w" * 90,
        ),
    ]
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join))


def parts(text):
    return [unit.text.strip() for unit in split_units(text)]


@given(TEXTS)
def test_the_units_joined_are_the_text_and_prose_is_cut_into_short_ones(text):
    units = split_units(text)
    assert "".join(unit.text for unit in units) == text
    assert all(unit.text for unit in units)
    assert all(unit.fixed or unit.tokens <= UNIT_TOKENS for unit in units)


@pytest.mark.parametrize(
    "sentences",
    [
        ["The mill burned.", "It was old."],
        ["Dr. Finch met J. R. Orrin at 3.14 p.m. sharp.", "Nothing else is known."],
        ["See Fig. 3 and No. 7 for it.", "The U.S. Army left."],
        ["He asked “Why?”", "She said nothing..."],
        ["Am 3. Oktober wurde z.B. gefeiert.", "Danach nicht mehr."],
        ["Wait... what is e.g. rye?", "A grain!"],
        ["水车在一八〇二年烧毁。", "「为什么？」", "没有人知道！"],
        ["これは水車です。", "古いものでした。"],
        ["هل احترقت الطاحونة؟", "نعم."],
        ["चक्की जल गई।", "वह पुरानी थी।"],
        ["- first thing", "- second thing", "1. third thing"],
        ["# The mill", "It burned."],
        [
            "A sentence that was wrapped by hand after about seventy characters, as mail\nis, goes on here.",
            "Done.",
        ],
    ],
)
def test_sentences_end_where_a_reader_ends_them(sentences):
    dense = any("\u3000" <= char <= "\u9fff" for char in sentences[0])
    joiner = "\n" if sentences[0].startswith(("-", "#")) else "" if dense else " "
    assert parts(joiner.join(sentences)) == sentences


@pytest.mark.parametrize(
    "block",
    [
        "```python\nprint('a. B. C.')\n\nprint(1)\n```\n",
        "SELECT grain FROM mill WHERE a = 1\n",
        json.dumps({"type": "object", "properties": {"a": {"description": "One. Two."}}}, indent=2) + "\n",
        '[{"text": "One. Two."}, {"text": "Three."}]\n',
        "| name | grain |\n|---|---|\n| Orrin | rye. Old. |\n",
        "year,grain,price\n1801,rye,4\n1802,oats,5\n",
        "12 15.5 17, 18; 19.25 22\n",
        "Input: the mill burned.\nOutput: sad\n\nInput: bread is cheap.\nOutput: glad\n",
        "def mill(x):\n    return x. y\n",
        "<document id='1'>\n",
    ],
)
def test_what_is_no_prose_stays_whole(block):
    text = f"The mill was old. It burned.\n\n{block}\nIt was built again. Nobody knows why."
    fixed = "".join(unit.text for unit in split_units(text) if unit.fixed)
    assert fixed.strip() == block.strip()
    assert parts(text)[0] == "The mill was old."


def test_a_fence_that_is_never_closed_runs_to_the_end():
    assert [unit.fixed for unit in split_units("Old.\n~~~\nNever closed. Really.\n\nIndeed.")] == [
        False,
        True,
    ]


def test_json_within_a_sentence_is_not_cut():
    units = split_units('Answer with {"why": "One. Two."} and no more. The mill is old.')
    assert [unit.text for unit in units if unit.fixed] == ['{"why": "One. Two."}']


def test_a_long_sentence_is_cut_at_a_clause():
    half = " ".join(["rye"] * 50)
    assert parts(f"{half}, {half}.") == [f"{half},", f"{half}."]


def test_no_text_takes_quadratic_time():
    """Each of these has a hundred thousand places at which a rule begins to look."""
    for piece in ("[", "{", '{"', "a.", "```\n", "\n", "1 ", "|", "Input:\n", "(" * 3 + "x) "):
        text = piece * (100_000 // len(piece))
        assert "".join(unit.text for unit in split_units(text)) == text
