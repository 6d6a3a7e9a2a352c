"""`disco demo`, whole: real processes, really killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--chaos"], []], ids=["chaos", "scenes"])
def test_every_scene_is_shown(arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    command = [
        sys.executable,
        "-c",
        "import sys; from disco.cli import main; sys.exit(main())",
        "demo",
        *arguments,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SEAM BROKEN" not in ran.stdout
    if arguments:
        assert "server failed (connection)" in ran.stdout
        assert "device failed (crashed)" in ran.stdout
