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


def test_there_is_a_test_for_every_example():
    here = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f'run("{path.name}"' not in here] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_to_run_it_and_stays_short(path):
    source = path.read_text(encoding="utf-8")
    assert f"python examples/frameworks/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")
    assert len(source.splitlines()) <= 60


def test_langchain(tmp_path):
    printed = run("langchain_chat.py", tmp_path, needs="langchain_openai")
    call = r"get_weather\(\{'city': '(.+)'\}\) -> Sunny in \1, 21 degrees\."
    assert re.fullmatch(rf"{SENTENCE}\n\n{call}\n", printed)


def test_pydantic_ai(tmp_path):
    printed = run("pydantic_ai_chat.py", tmp_path, needs="pydantic_ai")
    assert re.fullmatch(rf"{SENTENCE}\n\nSunny in .+, 21 degrees\.\n", printed)


def test_agents(tmp_path):
    printed = run("agents_chat.py", tmp_path, needs="agents")
    assert re.fullmatch(rf"({SENTENCE}\n\nSunny in .+, 21 degrees\.\n\n){{2}}", printed)


def test_instructor(tmp_path):
    printed = run("instructor_extract.py", tmp_path, needs="instructor")
    *filling, whole, other = printed.splitlines()
    assert filling[0] == "city=None country=None"
    assert len(set(filling)) > 3
    assert re.fullmatch(r"city='.+' country='.+'", filling[-1])
    assert re.fullmatch(r"city='.+' country='.+' by the device", whole)
    assert re.fullmatch(r"city='.+' country='.+'", other)
