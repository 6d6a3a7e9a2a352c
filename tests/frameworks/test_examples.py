"""Every example of a framework runs as its docstring says, with the real model alone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "frameworks").glob("*.py"))
SENTENCE = r"[^\n]{20,}"


CALL = r"get_weather\(\{'city': '(.+)'\}\) -> Sunny in \1, 21 degrees\."
PLACE = r"city='.+' country='.+'"
PRINTS = {
    "langchain_chat.py": ("langchain_openai", rf"{SENTENCE}\n\n{CALL}\n"),
    "pydantic_ai_chat.py": ("pydantic_ai", rf"{SENTENCE}\n\nSunny in .+, 21 degrees\.\n"),
    "agents_chat.py": ("agents", rf"({SENTENCE}\n\nSunny in .+, 21 degrees\.\n\n){{2}}"),
    "instructor_extract.py": (
        "instructor",
        rf"city=None country=None\n(.*\n)+{PLACE}\n{PLACE} by the device\n{PLACE}\n",
    ),
}


@pytest.mark.parametrize("name", PRINTS)
def test_it_prints(name, tmp_path):
    needs, pattern = PRINTS[name]
    pytest.importorskip(needs, reason=f"{needs} is not installed: make test-frameworks")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "frameworks" / name)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=240.0,  # they take ten to twenty seconds, most of them for imports; a busy machine needs more
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )
    assert (ran.returncode, ran.stderr) == (0, ""), "an example neither warns nor logs"
    assert re.fullmatch(pattern, ran.stdout)
    assert needs != "instructor" or len(set(ran.stdout.splitlines()[:-2])) > 3


def test_every_example_is_run_and_says_how():
    assert [path.name for path in EXAMPLES] == sorted(PRINTS)
    for path in EXAMPLES:
        source = path.read_text(encoding="utf-8")
        assert f"python examples/frameworks/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")
