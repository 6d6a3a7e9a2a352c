"""`disco serve` as a process with the real model and no server behind it, for an unmodified `openai` client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from disco.cli import main; sys.exit(main())"
WITHIN_S = 300.0  # on a machine that is busy with other tests


@contextlib.contextmanager
def local_client(*options: str) -> Iterator[openai.OpenAI]:
    """A client of a `disco serve` with these options."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**inherited, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    ) as process:
        try:
            first = process.stdout.readline()
            assert first.startswith("http://"), first + process.stdout.read()
            with openai.OpenAI(
                base_url=first.strip(), api_key="any", max_retries=0, timeout=WITHIN_S
            ) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            process.kill()
