"""llama-cpp-python's server, for benchmarks that compare servers: pip install "llama-cpp-python[server]"."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator

from servers import LlamaServer, free_port, smollm2_gguf

__all__ = ["has_python_server", "python_server"]


def has_python_server() -> bool:
    """Whether it is installed; disco's own environments have no package that has to be compiled."""
    return all(importlib.util.find_spec(name) is not None for name in ("llama_cpp", "starlette_context"))


@contextlib.contextmanager
def python_server() -> Iterator[LlamaServer]:
    """The server with SmolLM2-135M, on one thread."""
    port, model = free_port(), smollm2_gguf()
    options = {
        "model": model,
        "model_alias": "smollm2-135m",
        "port": port,
        "n_ctx": 2048,
        "interrupt_requests": False,
    }
    options |= {"n_threads": 1, "n_threads_batch": 1}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "llama_cpp.server", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not _answers(port):
                assert process.poll() is None, "llama-cpp-python's server did not come up"
                time.sleep(0.1)
            yield LlamaServer(f"http://127.0.0.1:{port}/v1", "smollm2-135m", model, process.pid)
        finally:
            process.kill()


def _answers(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
