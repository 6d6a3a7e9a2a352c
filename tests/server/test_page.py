"""What docs/server.md says: its commands work as they stand, and its tables are complete."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from disco.cli.main import _parser
from disco.server import Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
COMMANDS = [code for code in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if code.startswith("curl")]


@pytest.mark.real
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("sh") is None, reason="needs curl")
@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_the_commands_work(local, command):
    here = local.base_url.removesuffix("/v1")
    ran = subprocess.run(
        ["sh", "-c", command.replace("http://127.0.0.1:8642", here).replace("curl", "curl -sS")],
        check=True,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    if "stream" in command:
        assert ran.stdout.endswith("data: [DONE]\n\n")
    else:
        assert json.loads(ran.stdout)["output"][0]["content"][0]["text"]


def test_there_are_commands():
    assert len(COMMANDS) == 2


def test_every_option_is_in_the_table():
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    options = {
        o
        for action in commands["serve"]._actions
        for o in action.option_strings
        if o.startswith("--") and action.help != argparse.SUPPRESS
    }
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    assert {*re.findall(r"`(--[a-z-]+)", table), "--port", "--help"} == options


def test_every_metric_is_in_the_table():
    named = set(re.findall(r"^\| `(disco_\w+)` \|", PAGE, re.MULTILINE))
    made = set()
    for metric in Metrics().registry.collect():
        made.add(metric.name + ("_total" if metric.type == "counter" else ""))
    assert named == made
