"""Runs a script in a process of its own, forked from one that has imported disco; importing takes a second."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from disco.endpoints.llamacpp.model.model_files import KNOWN_MODELS

__all__ = ["FORKS", "run_script"]

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("disco", "disco.testing", "disco.client.sync.sync_client", "disco.replay"),
        *("disco.client.router", "disco.client.chat.completions", "disco.endpoints.openai_api.api_endpoint"),
        *("openai.resources", "jinja2.sandbox", "llama_cpp", "numpy", "trio", "truststore", "httpcore2"),
    ]
)


def run_script(
    script: Path,
    *arguments: str,
    cwd: Path,
    environment: Mapping[str, str],
    timeout_s: float,
) -> tuple[str, str]:
    """What the script printed and what it wrote to standard error; it must end well, and in time."""
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / "stdout", Path(folder) / "stderr"]
        command = [str(script), *arguments]
        given = (command, str(cwd), dict(environment), list(map(str, said)), KNOWN_MODELS)
        process = FORKS.Process(target=_run, args=given)
        process.start()
        process.join(timeout_s)
        ended = process.exitcode
        process.kill()
        process.join()
        process.close()
        out, err = (path.read_text(encoding="utf-8") for path in said)
        assert ended == 0, f"{script} ended with {ended} within {timeout_s} s; it wrote: {err}"
        return out, err


def _run(
    command: list[str],
    cwd: str,
    environment: dict[str, str],
    said: list[str],
    models: dict[str, tuple[str, str, str]],
) -> None:
    for number, path in enumerate(said, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    KNOWN_MODELS.update(models)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")
