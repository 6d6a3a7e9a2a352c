"""`disco serve` as a process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "import sys; from disco.cli import main; sys.exit(main())", "serve"]
KEY = "k" * 20
CHATS = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Tell a story. CANARYPROMPT"}]}
LONG = {**CHAT, "max_tokens": 60, "logit_bias": {"0": -100, "2": -100}, "stream": True}
WITHIN_S = 120  # all of it takes seconds
signals = pytest.mark.skipif(sys.platform == "win32", reason="there, processes are ended otherwise")


@contextlib.contextmanager
def running(*arguments: str, **variables: str):
    """The process, and host and port of the base URL it printed. It must be told to end, or it is killed."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "DISCO_"))}
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", **variables},
    )
    with process:
        try:
            first = process.stdout.readline()
            assert first.startswith("http://"), first + process.stdout.read()
            yield process, (urlsplit(first.strip()).hostname, urlsplit(first.strip()).port)
        finally:
            process.kill()


def what_it_said(process: subprocess.Popen[str]) -> str:
    """When it has ended well; when it does not end, where it hangs."""
    try:
        assert process.wait(WITHIN_S) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler prints every thread's stack
        pytest.fail(f"It goes on after {WITHIN_S} s:\n{process.communicate(timeout=WITHIN_S)[0]}")
    said = process.stdout.read()
    assert "Traceback" not in said
    return said


@contextlib.contextmanager
def asking(address, path: str, body: dict | None = None, headers: dict | None = None):
    """A request that has been sent; its answer has not been read."""
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=WITHIN_S)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers or {})
        yield connection


def tell_to_end(process: subprocess.Popen[str], address) -> None:
    """Send SIGTERM, and wait until it has been heard: signals that come together count once."""
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + WITHIN_S
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            socket.create_connection(address, timeout=1).close()
        pytest.fail("it still takes connections")
