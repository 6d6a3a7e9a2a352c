"""Every example of a framework runs as its docstring says, with the real model alone."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "frameworks").glob("*.py"))
RUN_S = 240.0  # they take ten to twenty seconds, most of them for imports; a busy machine needs more
SENTENCE = r"[^\n]{20,}"


def run(name: str, cwd: Path, *, needs: str) -> str:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed: make test-frameworks")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "frameworks" / name)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=RUN_S,
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "an example neither warns nor logs"
    return ran.stdout


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
    printed = run(name, tmp_path, needs=needs)
    assert re.fullmatch(pattern, printed)
    assert needs != "instructor" or len(set(printed.splitlines()[:-2])) > 3


def test_every_example_is_run_says_how_and_stays_short():
    assert [path.name for path in EXAMPLES] == sorted(PRINTS)
    for path in EXAMPLES:
        source = path.read_text(encoding="utf-8")
        assert f"python examples/frameworks/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")
        assert len(source.splitlines()) <= 60
