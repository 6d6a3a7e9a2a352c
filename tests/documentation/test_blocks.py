"""Blocks that are no Python: commands name what exists, TOML and JSON are read, JavaScript runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
from documentation.blocks import ROOT, blocks, commands
from serving import serving

from disco import AsyncDisco
from disco.cli.main import _parser
from disco.dispatch import Preset, load_preset

NODE = shutil.which("node")


def test_every_command_of_disco_is_one():
    ours = [(where, line) for where, line in commands() if re.match(r"(\S+/)?disco ", line)]
    assert ours
    wrong = []
    for where, line in ours:
        words = shlex.split(line.removesuffix("&"))
        if words[1:] == ["--help"]:
            continue
        words = words[: words.index(">") if ">" in words else None]
        try:
            _parser().parse_args([word for word in words[1:] if word != "..."])
        except SystemExit:
            wrong.append(f"{where}: {line}")
    assert wrong == []


def test_what_other_commands_name_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong = []
    for where, line in commands():
        extras = re.findall(r"""(?:disco-llm|["' ]\.)\[([\w,-]+)\]""", line)
        made = re.findall(r"^make ([a-z-]+)", line)
        scripts = re.findall(r"\bpython3? (\w[\w/.]+\.py)", line)
        if not {e for names in extras for e in names.split(",")} <= set(project["optional-dependencies"]):
            wrong.append(f"{where}: no such extra: {line}")
        if not set(made) <= targets:
            wrong.append(f"{where}: no such target: {line}")
        if any("/" in script and not (ROOT / script).is_file() for script in scripts):
            wrong.append(f"{where}: no such script: {line}")
    assert wrong == []


def test_toml_is_valid_and_what_looks_like_a_preset_is_one():
    presets = 0
    for where, code in blocks("toml"):
        values = tomllib.loads(code)
        if set(values) <= set(Preset.model_fields) and "plugin.md" not in where:  # its policy is a package's
            load_preset(values)
            presets += 1
        assert values, where
    assert presets >= 4


def test_json_is_valid():
    found = [
        *blocks("json"),
        *((where, line) for where, code in blocks("jsonl") for line in code.strip().split("\n")),
    ]
    assert found
    for where, document in found:
        try:
            json.loads(document)
        except json.JSONDecodeError as error:
            pytest.fail(f"{where}: {error}")


@pytest.mark.real
@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_javascript_is_valid_and_runs_where_it_needs_no_package(thread_model, tmp_path):
    """The AI SDK is not here; what it sends was seen to be the request that the block without it sends."""
    found = blocks("js")
    assert found
    ran = 0
    with serving(
        lambda **given: AsyncDisco(local=thread_model, preset="private", state=False, **given)
    ) as server:
        for number, (where, code) in enumerate(found):
            script = tmp_path / f"block{number}.mjs"
            script.write_text(code.replace("http://127.0.0.1:8642/v1", server.base_url), encoding="utf-8")
            check = ["--check"] if re.search(r"^import .* from", code, re.MULTILINE) else []
            done = subprocess.run(
                [NODE, *check, script], check=False, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{where}: {done.stderr}"
            assert check or done.stdout.strip()
            ran += not check
    assert ran == len(server.routes) >= 1
