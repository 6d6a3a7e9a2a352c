"""The blocks of code in README and docs, by language."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGES", "ROOT", "blocks", "commands"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(?P<language>\w+)\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(*languages: str) -> list[tuple[str, str]]:
    """Where each block of these languages is (page:line), and what it holds."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            if fence["language"] in languages:
                line = text[: fence.start("code")].count("\n") + 1
                found.append((f"{page.relative_to(ROOT)}:{line}", fence["code"]))
    return found


def commands() -> list[tuple[str, str]]:
    """Each command of the shell blocks, on one line and without its comment. In `console`, those behind a prompt."""
    found = []
    for where, code in blocks("sh", "console"):
        lines = re.sub(r"\\\n\s*", " ", code).splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += [(where, re.sub(r"(^|\s)#.*", "", line).strip()) for line in lines]
    return [(where, line) for where, line in found if line]
