"""For mkdocstrings: docstrings describe arguments that belong together on one line, which the site shows one by one.

    target, outcome: a name, and how it went.

counts as a line for `target` and one for `outcome`, with the same text.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

__all__ = ["GroupedNames"]

SECTION = re.compile(r"^(Args|Attributes):\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
GROUP = re.compile(r"^ {4}(\w+(?:,\s+\w+)+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


class GroupedNames(Extension):
    """Takes groups of names in the sections Args and Attributes apart."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of one object, as soon as it is read."""
        if obj.docstring is not None:
            obj.docstring = Docstring(
                SECTION.sub(_taken_apart, obj.docstring.value),
                lineno=obj.docstring.lineno,
                endlineno=obj.docstring.endlineno,
                parent=obj,
            )


def _taken_apart(section: re.Match[str]) -> str:
    def one_by_one(group: re.Match[str]) -> str:
        return "\n".join(f"    {name}: {group[2]}" for name in re.split(r",\s+", group[1]))

    return f"{section[1]}:\n{GROUP.sub(one_by_one, section[2])}"
