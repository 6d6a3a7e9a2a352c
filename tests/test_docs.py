"""What README and docs say is so: their code runs, their links lead somewhere, their names and walks exist."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import inspect
import os
import re
from pathlib import Path

import pytest
from documentation.stand_ins import stand_in
from forked import run_script

from disco import AsyncDisco, Disco
from disco.cli.main import _parser
from disco.client.settings import ClientSettings
from disco.dispatch import available_presets, load_preset

ROOT = Path(__file__).parent.parent
PAPERS = sorted((ROOT / "examples" / "papers").glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), *PAPERS]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
PROSE = {p: re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL) for p, text in TEXTS.items()}

# (page:line, the mark before it, code): `<!-- test: needs a server -->`, `the server NAME` of the page, for which
# another stands in, `the package NAME` that is imported, or `the rest of FILE`, which has tests of its own
BLOCK = r"(?:^<!-- test: needs (?P<mark>.*?) -->\n+)?^ *```py(?:thon)?\n(?P<code>.*?)^ *```$"
BLOCKS = [
    (f"{page.relative_to(ROOT)}:{text[: at.start('code')].count(chr(10)) + 1}", at["mark"] or "", at["code"])
    for page, text in TEXTS.items()
    for at in re.finditer(BLOCK, text, re.MULTILINE | re.DOTALL)
]


def test_every_block_of_code_is_found():
    whole = "\n".join(TEXTS.values())
    marks = [mark for _, mark, _ in BLOCKS if mark]
    assert len(BLOCKS) == len(re.findall(r"^ *```py", whole, re.MULTILINE))
    assert len(marks) == whole.count("<!-- test: ")
    assert "a server" in marks


@pytest.mark.real
@pytest.mark.parametrize(("mark", "code"), [pytest.param(*rest, id=where) for where, *rest in BLOCKS])
def test_code_runs(mark, code, request, tmp_path):
    """As a user would: a script of its own, away from the checkout."""
    if mark.startswith("the rest of "):
        assert code in (ROOT / mark.removeprefix("the rest of ")).read_text(encoding="utf-8")
        return
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    package = mark.removeprefix("the package ")
    servers = contextlib.ExitStack()
    if mark.startswith("the server "):
        native = request.getfixturevalue("native_server").base_url
        there, here = servers.enter_context(stand_in(mark.removeprefix("the server "), native))
        assert there in code
        code = code.replace(there, here)
        environment |= {"OPENAI_BASE_URL": native, "OPENAI_API_KEY": "from-env"}
    elif mark == "a server":  # the key and the model's name in the text are taken by this one
        server = request.getfixturevalue("llama_server")
        environment |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "from-env"}
    elif package != mark and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-frameworks")
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    with servers:
        printed, complaints = run_script(script, cwd=tmp_path, environment=environment, timeout_s=600.0)
    assert "Traceback" not in complaints
    if "server" in mark:
        assert printed.strip()
        if "stream.route" in code:
            # The answer, then the winner's name and the bill right behind it; the user's own machines bill nothing.
            answer, bill = re.fullmatch(r"(.*?)(?:device|server) ([0-9.e-]+)\s*", printed, re.DOTALL).groups()
            assert answer.strip()
            assert float(bill) >= 0


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    found = re.findall(r"^#+ +(.+?) *$", PROSE[page], flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_lead_somewhere_and_every_page_can_be_reached_from_the_readme():
    leads: dict[Path, set[Path]] = {}
    astray = []
    for page, text in PROSE.items():
        for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            leads.setdefault(page, set()).add(linked)
            inside = linked.is_relative_to(ROOT) and linked.exists()
            if not inside or (anchor and anchor not in anchors(linked)):
                astray.append(f"{page.name}: {target}")
    assert astray == []
    seen, waiting = set(), {ROOT / "README.md"}
    while waiting:
        seen |= waiting
        waiting = {linked for page in waiting for linked in leads.get(page, ())} - seen
    assert set(PAGES) - set(PAPERS) <= seen  # their folder is linked


def named(pattern: str, texts: dict[Path, str] = TEXTS) -> set[str]:
    """What the pages name by a pattern."""
    found = {name for text in texts.values() for name in re.findall(pattern, text, re.MULTILINE)}
    assert found, "the pattern finds nothing, so nothing would be tested"
    return found


def test_what_is_named_exists():
    for page in (ROOT / "README.md", ROOT / "docs" / "start" / "choose-preset.md"):
        rows = set(re.findall(r"^\|(?: [^|`]* \|)? `([a-z-]+)`", TEXTS[page], re.MULTILINE))
        assert rows == set(available_presets()), page.name
    for name in named(r'preset="([a-z-]+)"'):
        load_preset(name)
    files = named(r"`((?:disco|tests|docs|policies|profiles|examples)/[\w./*-]*)`", PROSE)
    assert [name for name in files if not any(ROOT.glob(name.rstrip("/")))] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (papers,) = re.findall(r"^PAPERS := (.+)$", makefile, re.MULTILINE)
    targets = {f"paper-{name}" for name in papers.split()} | set(
        re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    )
    assert named(r"(?:^|`)make ([a-z-]+)") <= targets
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    assert named(r"`disco ([a-z]+)") <= set(commands)


def test_every_argument_of_a_client_is_described():
    rows = re.findall(r"^\| `.*", TEXTS[ROOT / "docs" / "reference" / "async-client.md"], re.MULTILINE)
    names = {field.name for field in dataclasses.fields(ClientSettings)}
    described = set(re.findall(r"^ +(\w+): ", inspect.getdoc(AsyncDisco), re.MULTILINE))
    assert names <= described
    assert names <= set(re.findall(r"\w+", inspect.getdoc(Disco)))
    assert names <= set(re.findall(r"`(\w+)`", "\n".join(rows)))


HOP = re.compile(r"^\|[^|]+\| `(disco/[\w/]+\.py)` \| ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)


def test_every_hop_is_a_function():
    hops = HOP.findall(TEXTS[ROOT / "docs" / "architecture.md"])
    assert hops
    for path, names in hops:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert set(re.findall(r"`(\w+)`", names)) <= functions, path
