"""What README and docs say is so: their code runs, their links lead somewhere, their names exist."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import run_script

from disco.dispatch import available_presets, load_preset

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS_SERVER = "<!-- test: needs a server -->"
NEEDS_PACKAGE = re.compile(r"<!-- test: needs the package (\w+) -->")  # by the name it is imported by
RUN_S = 90.0


@dataclass(frozen=True)
class Block:
    """A fenced code block; `line` is that of its first line of code, from 1."""

    page: Path
    line: int
    code: str
    needs_server: bool
    needs_package: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks: list[Block] = []
    start: int | None = None
    for number, line in enumerate(lines):
        if start is None and line.strip() in ("```python", "```py"):
            start = number + 1
        elif start is not None and line.strip() == "```":
            before = [text.strip() for text in lines[: start - 1] if text.strip()]
            mark = before[-1] if before else ""
            package = NEEDS_PACKAGE.fullmatch(mark)
            blocks.append(
                Block(
                    page,
                    start + 1,
                    "\n".join(lines[start:number]) + "\n",
                    needs_server=mark == NEEDS_SERVER,
                    needs_package=package[1] if package else None,
                )
            )
            start = None
    assert start is None, f"{page}: a code block is not closed"
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def run(code: str, cwd: Path, **environment: str) -> str:
    """Run as a user would: a script of its own, away from the checkout; returns what it printed."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    script = cwd / "block.py"
    script.write_text(code, encoding="utf-8")
    printed, complaints = run_script(script, cwd=cwd, environment=inherited | environment, timeout_s=RUN_S)
    assert "Traceback" not in complaints
    return printed


def test_the_readme_shows_how_to_use_it():
    assert [b.needs_server for b in BLOCKS if b.page.name == "README.md"].count(True) >= 1


@pytest.mark.real
@pytest.mark.parametrize("block", [b for b in BLOCKS if not b.needs_server], ids=lambda block: block.where)
def test_code_runs(block, tmp_path):
    if block.needs_package is not None and importlib.util.find_spec(block.needs_package) is None:
        pytest.skip(f"{block.needs_package} is not installed: make test-frameworks")
    run(block.code, tmp_path)


@pytest.mark.real
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.needs_server], ids=lambda block: block.where)
def test_code_runs_against_a_real_server(block, llama_server, tmp_path):
    """The SDK reads OPENAI_BASE_URL; the key and the model's name in the text are taken by this server."""
    printed = run(block.code, tmp_path, OPENAI_BASE_URL=llama_server.base_url, OPENAI_API_KEY="from-env")
    assert printed.strip()
    if "stream.route" in block.code:
        # The answer, then the winner's name and the cost right behind it.
        answer, cost = re.fullmatch(r"(.*?)(?:device|server) ([0-9.e-]+)\s*", printed, re.DOTALL).groups()
        assert answer.strip()
        assert float(cost) > 0


# ---------------------------------------------------------------------- links


def prose(page: Path) -> str:
    """The page without code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    found = re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


LINKS = [
    (page, target)
    for page in PAGES
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    if not re.match(r"[a-z]+:", target)
]


def test_links_lead_somewhere():
    astray = []
    for page, target in LINKS:
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        inside = linked.is_relative_to(ROOT) and linked.exists()
        if not inside or (anchor and anchor not in anchors(linked)):
            astray.append(f"{page.name}: {target}")
    assert len(LINKS) > 50
    assert astray == []


def test_every_page_can_be_reached_from_the_readme():
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        waiting += [
            (page.parent / target.partition("#")[0]).resolve() for from_, target in LINKS if from_ == page
        ]
    assert {page.resolve() for page in PAGES} <= seen


# ---------------------------------------------------------------------- names


def named(pattern: str, *, code: bool = True) -> dict[str, str]:
    """What the pages name by a pattern, with the page that does; without code blocks unless `code`."""
    texts = {page.name: page.read_text(encoding="utf-8") if code else prose(page) for page in PAGES}
    found = {name: page for page, text in texts.items() for name in re.findall(pattern, text, re.MULTILINE)}
    assert found, "the pattern finds nothing, so nothing would be tested"
    return found


def test_the_presets_named_are_the_presets_shipped():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"The presets: (.*?)\. ", text)
    assert set(re.findall(r"`([a-z-]+)`", sentence)) == set(available_presets())
    for name in named(r'preset="([^"]+)"'):
        load_preset(name)


def test_files_and_folders_named_exist():
    """`disco/x/y.py`, `tests/...`, `docs/...` in code font."""
    names = named(r"`((?:disco|tests|docs|policies|profiles|examples)/[\w./*-]*)`", code=False)
    assert {name: page for name, page in names.items() if not any(ROOT.glob(name.rstrip("/")))} == {}


def test_commands_named_exist():
    from disco.cli.main import _parser

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    assert named(r"(?:^|`)make ([a-z-]+)").keys() <= targets
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    assert named(r"`disco ([a-z]+)").keys() <= set(commands)
