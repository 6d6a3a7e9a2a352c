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


@pytest.mark.real
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("sh") is None, reason="needs curl")
def test_the_commands_work(local):
    here = local.base_url.removesuffix("/v1")
    chat, response = (
        code for code in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if code.startswith("curl")
    )

    def run(command: str) -> str:
        line = command.replace("http://127.0.0.1:8642", here).replace("curl", "curl -sS")
        return subprocess.run(
            ["sh", "-c", line], check=True, capture_output=True, encoding="utf-8", timeout=120
        ).stdout

    assert run(chat).endswith("data: [DONE]\n\n")
    assert json.loads(run(response))["output"][0]["content"][0]["text"]


def test_every_option_and_every_metric_is_in_its_table():
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    shown = (action for action in commands["serve"]._actions if action.help != argparse.SUPPRESS)
    options = {o for action in shown for o in action.option_strings if o.startswith("--")}
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    assert {*re.findall(r"`(--[a-z-]+)", table), "--port", "--help"} == options
    named = set(re.findall(r"^\| `(disco_\w+)` \|", PAGE, re.MULTILINE))
    made = Metrics().registry.collect()
    assert named == {metric.name + ("_total" if metric.type == "counter" else "") for metric in made}
