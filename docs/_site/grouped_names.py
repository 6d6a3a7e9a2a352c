"""For mkdocstrings: docstrings describe arguments that belong together on one line, which the site shows one by one.

    target, outcome: a name, and how it went.

counts as a line for `target` and one for `outcome`, with the same text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object

__all__ = ["GroupedNames"]

NAMED_PAGE = re.compile(r"(?<![\w/])docs/((?:[\w-]+/)+[\w-]+\.md|architecture\.md)")
SECTION = re.compile(r"^(Args|Attributes):\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
GROUP = re.compile(r"^ {4}(\w+(?:,\s+\w+)+):\s+(.*(?:\n {8,}.*)*)", re.MULTILINE)


class GroupedNames(Extension):
    """Takes groups of names in the sections Args and Attributes apart, and links the pages that a docstring names."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of one object, as soon as it is read."""
        if obj.docstring is not None:
            text = SECTION.sub(_taken_apart, obj.docstring.value)
            obj.docstring.value = NAMED_PAGE.sub(_linked, text)


def _linked(named: re.Match[str]) -> str:
    """A page's path in the repository as a link from a page of `reference/api/`; MkDocs checks that it is there."""
    return f"[{Path(named[1]).stem}](../../{named[1]})"


def _taken_apart(section: re.Match[str]) -> str:
    def one_by_one(group: re.Match[str]) -> str:
        return "\n".join(f"    {name}: {group[2]}" for name in re.split(r",\s+", group[1]))

    return f"{section[1]}:\n{GROUP.sub(one_by_one, section[2])}"
