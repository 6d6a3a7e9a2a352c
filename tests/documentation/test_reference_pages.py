"""The pages of the reference that are written from the code are current, and nothing in them lacks a meaning."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / "_site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pages = load("reference_pages")


@pytest.mark.parametrize("name", pages.WRITERS)
def test_a_written_page_is_current(name):
    page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert page == pages.WRITERS[name](), "run: python docs/_site/reference_pages.py"


@pytest.mark.parametrize("name", pages.WRITERS)
def test_no_key_field_or_option_lacks_a_meaning(name):
    rows = re.findall(r"^\| `.*", pages.WRITERS[name](), re.MULTILINE)
    assert rows
    assert [row for row in rows if re.search(r"\| *\|$", row)] == []


def test_all_that_a_record_holds_is_on_its_page():
    """The keys of the JSON that a record is written as, down to the lists and mappings in it."""
    page = pages.record_page()
    for record in pages.RECORD.values():
        names = [name for name in record.__annotations__ if not name.startswith("_")]
        assert [name for name in names if f"`{name}`" not in page] == []


def test_the_attributes_of_a_docstring_are_read_one_by_one():
    class Documented:
        """Has some.

        Attributes:
            one, two: numbers,
                both above 0.
            three: a name: "x".

        Mutable: nothing.
        """

    both = "numbers, both above 0."
    assert pages.described(Documented) == {"one": both, "two": both, "three": 'a name: "x".'}
