"""The page on plug-ins shows the example package as it is."""

from __future__ import annotations

import re
from pathlib import Path

from disco.dispatch.policies.plugged_policy import GIVEN

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
PAGE = (ROOT / "docs" / "how-to" / "plugin.md").read_text(encoding="utf-8")


def test_its_code_is_that_of_the_example():
    files = [*EXAMPLE.rglob("*.py"), EXAMPLE / "pyproject.toml"]
    texts = [path.read_text(encoding="utf-8") for path in files]
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    shown = [block for block in blocks if not block.startswith("[dispatch]")]  # a user's preset
    assert len(shown) == 4
    assert [block[:60] for block in shown if not any(block in text for text in texts)] == []


def test_it_lists_what_a_factory_is_given():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(GIVEN)


def test_the_example_asks_for_the_same_python_and_has_the_same_licence():
    own, discos = ((folder / "pyproject.toml").read_text(encoding="utf-8") for folder in (EXAMPLE, ROOT))
    lines = re.findall(r"^(?:requires-python|license) = .*$", own, re.MULTILINE)
    assert len(lines) == 2
    assert all(f"{line}\n" in discos for line in lines)
