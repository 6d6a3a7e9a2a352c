"""The example package installs from its own folder; its policy then runs live and in replay, its endpoint live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
HERE = Path(__file__).parent
PRESET = """
[dispatch]
policy = "first_word_by"
options = { target_s = 0.6 }
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the package as pip builds and installs it, from a copy, without the network."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    run([*pip, "--no-deps", "--no-build-isolation", "--target", str(folder), str(EXAMPLE)], cwd=folder)
    assert {path.name for path in folder.iterdir()} == {
        "disco_plugin_example",
        "disco_plugin_example-1.0.dist-info",
    }
    return folder


def run(command: list[str], *, cwd: Path, path: Path | None = None, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    paths = os.pathsep.join(str(one) for one in (ROOT, path) if one is not None)
    environment = {**inherited, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    ran = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_its_policy_runs_live_and_in_replay_and_its_endpoint_answers(installed, tmp_path, llama_server):
    (tmp_path / "mine.toml").write_text(PRESET, encoding="utf-8")
    command = f'command-here:"{sys.executable}" "{HERE / "model_command.py"}"'
    server = {"OPENAI_BASE_URL": llama_server.base_url, "OPENAI_API_KEY": "any"}
    script = [sys.executable, str(HERE / "live_plugin.py"), "mine.toml", command]
    printed = run(script, cwd=tmp_path, path=installed, **server)
    told = {
        one["case"]: one
        for one in map(json.loads, filter(lambda line: line[:1] == "{", printed.splitlines()))
    }
    assert all(one["text"].strip() and one["winner"] for one in told.values())
    # The device promises a first word within 0.6 s for the short prompt, and not for the long one.
    short, long = told["short"]["started_s"], told["long"]["started_s"]
    assert min(short, key=short.get) == "device"
    assert short.get("server", 0.6) > 0.55
    assert long["server"] - min(long.values()) < 0.5
    assert told["command"]["started_s"].keys() == {"device"}
    for evaluator in ("vectorised", "events"):
        cells = json.loads((tmp_path / f"{evaluator}.json").read_text(encoding="utf-8"))["cells"]
        assert {cell["arm"]["policy"] for cell in cells} >= {"first_word_by:target_s=0.6", "server_only"}
    for name in ("first_word_by", "command:...", "command-here:..."):
        (row,) = (line for line in printed.splitlines() if f" {name} " in line and "│" in line)
        assert "loads" in row


@pytest.mark.slow  # the endpoints of disco keep the same contract in every run
def test_its_own_tests_pass_discos_contract_of_an_endpoint_among_them(installed, tmp_path):
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(EXAMPLE)]
    printed = run(
        [*pytest_, "-c", str(EXAMPLE / "pyproject.toml"), str(EXAMPLE / "tests")],
        cwd=tmp_path,
        path=installed,
    )
    assert "passed" in printed
    assert "failed" not in printed
