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

__all__ = ["run_script"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["disco", "disco.cli.demonstration.demo_server", "disco.client.sync.sync_client", "openai.resources"]
)


def run_script(
    script: Path, *, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[str, str]:
    """What the script printed and what it wrote to standard error; it must end well, and in time."""
    with tempfile.TemporaryDirectory() as folder:
        printed, complaints = Path(folder) / "stdout", Path(folder) / "stderr"
        process = _FORKS.Process(
            target=_run,
            args=(str(script), str(cwd), dict(environment), str(printed), str(complaints), KNOWN_MODELS),
        )
        process.start()
        process.join(timeout_s)
        in_time = process.exitcode is not None
        if not in_time:
            process.kill()
            process.join()
        ended = process.exitcode
        process.close()
        err = complaints.read_text(encoding="utf-8")
        assert in_time, f"{script} ran for more than {timeout_s} s; it wrote: {err}"
        assert ended == 0, err
        return printed.read_text(encoding="utf-8"), err


def _run(
    script: str,
    cwd: str,
    environment: dict[str, str],
    printed: str,
    complaints: str,
    models: dict[str, tuple[str, str, str]],
) -> None:
    for path, number in ((printed, 1), (complaints, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    KNOWN_MODELS.update(models)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
