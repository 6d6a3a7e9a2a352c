"""`disco serve` in a process of its own, for programs whose two sides both run on this machine."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

LIMIT_S = 120.0

# It reads a pipe that is never written to, and ends when that ends, however this process ends.
PROGRAM = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
from disco.cli import main
sys.exit(main())
"""


@contextmanager
def disco_serve(*options: str) -> Iterator[tuple[str, str]]:
    """Run `disco serve` with these options, and yield its base URL and its key once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:  # a port that is free at this moment
        port = str(probe.getsockname()[1])
    base_url, key = f"http://127.0.0.1:{port}/v1", secrets.token_hex(16)
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", PROGRAM, "serve", "--port", port, "--preset", "private", *options],
        env={**own, "DISCO_SERVER_KEY": key},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            began_at = time.monotonic()
            while not _answers(base_url, key):
                if process.poll() is not None or time.monotonic() - began_at > LIMIT_S:
                    raise RuntimeError("disco serve did not come up; what it said stands above")
                time.sleep(0.2)
            yield base_url, key
        finally:
            process.terminate()


def _answers(base_url: str, key: str) -> bool:
    try:
        return httpx2.get(f"{base_url}/models", headers={"Authorization": f"Bearer {key}"}).is_success
    except httpx2.TransportError:
        return False
