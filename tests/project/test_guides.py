"""CONTRIBUTING, SECURITY, RELEASING and the pull request's text: their links lead somewhere, their names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disco.cli.main import _parser

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "RELEASING.md")]
TEXTS = {
    path: path.read_text(encoding="utf-8")
    for path in [*GUIDES, ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"]
}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_what_a_guide_names_exists(path):
    text = TEXTS[path]
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        linked = path.parent / file
        assert linked.exists(), target
        headings = (
            re.findall(r"^#+ +(.+?) *$", linked.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        )
        assert not anchor or anchor in {
            re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings
        }
    for named in re.findall(r"`((?:disco|tests|docs|policies|profiles|examples)/[\w./-]*)`", text):
        assert "NAME" in named or (ROOT / named).exists(), named
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= set(
        re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    )
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    assert set(re.findall(r"`disco ([a-z]+)", text)) <= set(commands)


def test_the_readme_leads_to_the_guides():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        assert f"]({name})" in readme
    assert "](RELEASING.md)" in TEXTS[ROOT / "CONTRIBUTING.md"]


def test_the_table_of_what_was_tried_has_the_versions_and_systems_of_ci():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["fast"]["strategy"]["matrix"]
    text = TEXTS[ROOT / "CONTRIBUTING.md"]
    assert re.findall(r"^\| Python ([\d.]+) \|", text, re.MULTILINE) == matrix["python"]
    (header,) = re.findall(r"^\| \| (Linux.*) \|$", text, re.MULTILINE)
    assert len(header.split(" | ")) == len(matrix["os"])
