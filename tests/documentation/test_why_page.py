"""docs/concepts/why.md has every rule by which a plan is made, and what it quotes is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disco.reasons import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "why.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r'^`reason\.does` is `"(\w+)"`(.*?)(?=^###? |\Z)', PAGE, re.MULTILINE | re.DOTALL))
QUOTED = [
    line
    for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if re.match(r"\S+ (starts|stands by|rests|is not asked|is left out)\b", line)
]


def rows(does: str) -> dict[str, list[str]]:
    """The rows of the table of what an endpoint does, by the rule's code."""
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| `.*\|$", SECTIONS[does], re.MULTILINE)
    ]
    return {code.strip("`"): rest for code, *rest in cells}


@pytest.mark.parametrize("does", sorted({does for does, _ in CODES}))
def test_every_rule_has_a_row_with_its_meaning_its_number_and_what_to_change(does):
    found = rows(does)
    assert set(found) == {code for of, code in CODES if of == does}
    assert [code for code, cells in found.items() if len(cells) != 3 or not all(cells)] == []


def test_a_rule_whose_sentence_has_a_number_says_on_the_page_what_it_is():
    for (does, code), text in CODES.items():
        if re.search(r"{(?:value|limit)", text):
            assert rows(does)[code][1] != "none", (does, code)


def test_the_sentences_on_the_page_are_those_that_disco_says():
    said = []
    for text in CODES.values():
        words = re.sub(r"\\{[^}]*\\}", ".*?", re.escape(text))
        said.append(re.compile(words.replace("\\ \\.", " .") + r"(?: \([^()]+\))?"))
    assert QUOTED
    assert [line for line in QUOTED if not any(one.fullmatch(line) for one in said)] == []
