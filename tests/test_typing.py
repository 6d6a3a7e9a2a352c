"""The public API as type checkers see it: a strict check of uses that are never run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "typing"


@pytest.mark.slow  # part of `make lint`, too
def test_a_typed_application_is_clean_and_mistakes_are_found():
    """An API that is typed as Any would have no mistakes."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-color-output"]
    command += ["--hide-error-context", "--exclude", "examples/plugin/tests/"]  # tests are not typed here
    command += [str(FOLDER), str(ROOT / "examples")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800, cwd=ROOT)
    found = set(re.findall(r"^(.+?):(\d+): error", ran.stdout, re.MULTILINE))
    lines = (FOLDER / "wrong_use.py").read_text(encoding="utf-8").splitlines()
    wrong = {str(number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert found == {("tests/typing/wrong_use.py", number) for number in wrong}, ran.stdout + ran.stderr
    assert (ran.returncode, len(wrong) > 0) == (1, True)


# Pages whose code a reader takes over whole: a client, its options, its budget, its errors.
PAGES = (
    "README.md",
    "docs/reference/async-client.md",
    "docs/how-to/from-openai.md",
    "docs/how-to/budgets.md",
)


@pytest.mark.slow  # as above
def test_what_a_reader_takes_over_from_these_pages_is_typed(tmp_path):
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert blocks, page
        for number, block in enumerate(blocks):
            (tmp_path / f"{Path(page).stem.replace('-', '_')}_{number}.py").write_text(
                block, encoding="utf-8"
            )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(tmp_path)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


@pytest.mark.slow  # as above, where pyright is installed: it needs Node.js
def test_the_example_that_people_copy_is_typed_for_pyright_too(tmp_path):
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed: pip install pyright")
    (tmp_path / "app.py").write_bytes((ROOT / "examples" / "web_chat" / "app.py").read_bytes())
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [pyright, "--pythonpath", sys.executable]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
