"""The walks in docs/architecture.md: every hop is a file and a function that exist, and no file is entered twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOP = re.compile(r"^\|[^|]+\| `(disco/[\w/]+\.py)` \| ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)


def walk(title: str) -> list[tuple[str, list[str]]]:
    section = PAGE.split(f"### {title}\n")[1].split("\n#")[0]
    return [(path, re.findall(r"`(\w+)`", names)) for path, names in HOP.findall(section)]


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("title", ["Path of a prompt", "Path of a token", "Path of a loser's charge"])
def test_every_hop_is_a_function_and_none_goes_back(title):
    hops = walk(title)
    assert len(hops) >= 6
    for path, names in hops:
        assert set(names) <= functions_of(path), path
    files = [path for path, _ in hops]
    assert len(files) == len(set(files)), "a hop goes back to a file that was left"


def test_each_rule_is_changed_in_one_file():
    """And in the functions that the page names."""
    rules = walk("Where to change a rule")
    assert len(rules) >= 10
    for path, names in rules:
        assert set(names) <= functions_of(path), path
    assert len({path for path, _ in rules}) == len(rules), "two rules in one file"
