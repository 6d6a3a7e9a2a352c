"""litellm beside the others: in a process of its own, on the same server, by turns with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LITELLM = "litellm.acompletion"
PYTHON = (
    os.environ.get("LITELLM_PYTHON"),
    "interpreter of an environment with litellm",
)  # of --litellm-python
Ask = Callable[..., dict[str, Any]]
"""Sends a request for a model, streaming or not, and returns the line of `litellm_program.py`."""


@contextmanager
def litellm_at(interpreter: str | None, base_url: str) -> Iterator[tuple[str, Ask | None]]:
    """litellm's version, and what asks with it; None without an interpreter, which is said on stderr."""
    if interpreter is None:
        print("litellm is left out: --litellm-python names an interpreter with it.", file=sys.stderr)
        yield "", None
        return
    process = subprocess.Popen(
        [interpreter, str(Path(__file__).with_name("litellm_program.py")), base_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "LITELLM_LOG": "ERROR",
        },
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout
        version = back.readline().strip()
        if not version:
            raise SystemExit(
                f"litellm cannot be imported by {interpreter}: install it there, or leave it out"
            )

        def ask(model: str, *, stream: bool) -> dict[str, Any]:
            to.write(f"{model} {'stream' if stream else 'whole'}\n")
            to.flush()
            line = back.readline()
            if not line:
                raise RuntimeError(f"{LITELLM} failed on the model {model!r}")
            answer: dict[str, Any] = json.loads(line)
            return answer

        try:
            yield version, ask
        finally:
            to.close()
