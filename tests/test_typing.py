"""The public API as type checkers see it: a strict check of uses that are never run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "typing"


def mypy(path: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-color-output"]
    command += ["--hide-error-context", str(path)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180, cwd=ROOT)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", [FOLDER / "public_api.py", ROOT / "examples"], ids=lambda path: path.name)
def test_a_typed_application_is_clean(path):
    status, said = mypy(path)
    assert status == 0, said


def test_mistakes_are_found():
    """Guards the test above: an API that is typed as Any would pass it."""
    path = FOLDER / "wrong_use.py"
    status, said = mypy(path)
    assert status == 1, said
    found = {int(line) for line in re.findall(r"wrong_use\.py:(\d+): error", said)}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert found == {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}, said
