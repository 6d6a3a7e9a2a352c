"""A real OpenAI-compatible server on this machine, in a process of its own, for demonstrations that kill it.

It is `python -m llama_cpp.server` on a free loopback port, for which the extra `disco-llm[demo]` is needed, or, of
`disco-llm[prebuilt]`, llama.cpp's own server (`demo_runtime.py`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, resolve_model
from disco.errors import DiscoError

__all__ = ["DemoServer", "DemoServerError", "free_port"]

Progress = Callable[[float, str], None]
"""Called with the seconds waited so far and a short phrase that says for what."""

# The child reads a pipe that is never written to. When the parent ends in any way (Ctrl-C, SIGKILL, a crash), the
# pipe ends, on every system, and the child exits.
_CHILD = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
sys.argv = ["llama_cpp.server", *sys.argv[1:]]
runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
"""

_LOG_LINES = 15


class DemoServerError(DiscoError):
    """The demonstration server did not start; the message ends with the last lines of its log."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class DemoServer:
    """The server process: start it, wait for it, kill it, start it again on the same port.

    A context manager; leaving it stops the process. All methods block: call them from a worker thread
    if an event loop runs.

    Args:
        model: a short name, the path of a GGUF file, or `hf:owner/repo/file.gguf`.
        model_name: the model's name in requests.
        context_tokens: the most tokens of prompt and answer together.
        threads: threads of llama.cpp, for prefill and for decoding. One leaves room for a device model beside it.
        port: port to listen on; 0 picks a free one.
        api_key: the key that requests must have; None: any key.
        logprobs: whether it gives log probabilities; it then keeps the scores of all tokens, 0.2 GB per 1,000 tokens
            of context for this model.
        chat_template: of chats, as Jinja source, in place of the model's own.
        timeout_s: how long the start may take, in seconds.
        progress: called from time to time while waiting.

    Raises:
        ConfigurationError: the model's name is unknown, or a package is missing.
        ModelFileError: the model's file is missing or not usable.
    """

    # Mutable: the process, its log file and the folder of its template, None when there is none.

    host = "127.0.0.1"

    def __init__(
        self,
        model: str | Path = "smollm2-135m",
        *,
        model_name: str = "smollm2-135m",
        context_tokens: int = 2048,
        threads: int = 1,
        port: int = 0,
        api_key: str | None = None,
        logprobs: bool = False,
        chat_template: str | None = None,
        timeout_s: float = 120.0,
        progress: Progress | None = None,
    ) -> None:
        self._require()
        self.model = resolve_model(model)
        self.model_name = model_name
        self.context_tokens = context_tokens
        self.threads = threads
        self.port = port or free_port(self.host)
        self.timeout_s = timeout_s
        self._api_key = api_key
        self._logprobs = logprobs
        self._chat_template = chat_template
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"http://{self.host}:{self.port}/v1"

    @property
    def pid(self) -> int | None:
        """The process id while the process runs; else None."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        """Whether the process is alive (it may still be loading)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return once it answers. Does nothing if the process already runs.

        Raises:
            DemoServerError: the process ended or did not answer in time; it is then not running.
        """
        if self.running:
            return
        self._release()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own arguments
            self._command(),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            start_new_session=True,  # Ctrl-C reaches us first; we end it
        )
        try:
            if told := self._told():
                assert self._process.stdin is not None
                self._process.stdin.write(told)
                self._process.stdin.flush()
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _require(self) -> None:
        """Raise an error with the remedy where a package is missing."""
        require_llama_cpp()

    def _told(self) -> bytes:
        """Return what the process is told through its stdin, which then stays open."""
        return b""

    def _command(self) -> list[str]:
        """Return what to start."""
        options = {
            "model": self.model,
            "model_alias": self.model_name,
            "host": self.host,
            "port": self.port,
            "n_ctx": self.context_tokens,
            "n_threads": self.threads,
            "n_threads_batch": self.threads,
            # A second request waits for the first instead of interrupting it.
            "interrupt_requests": False,
            "logits_all": self._logprobs,
        }
        if self._api_key is not None:
            options["api_key"] = self._api_key
        if self._chat_template is not None:
            self._folder = tempfile.TemporaryDirectory()
            told = Path(self._folder.name) / "tokenizer_config.json"
            marks = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
            told.write_text(json.dumps({"chat_template": self._chat_template, **marks}), encoding="utf-8")
            options |= {"chat_format": "hf-tokenizer-config", "hf_tokenizer_config_path": told}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-c", _CHILD, *arguments]

    def _environment(self) -> dict[str, str] | None:
        """Return its environment variables; None: those of this process."""
        return None

    def _wait_until_ready(self) -> None:
        started_at = time.monotonic()
        while True:
            waited_s = time.monotonic() - started_at
            if not self.running:
                raise DemoServerError(f"The local server ended while starting.\n{self.log_tail()}")
            if self._answers():
                return
            if waited_s > self.timeout_s:
                raise DemoServerError(
                    f"The local server did not answer within {self.timeout_s:g} s.\n{self.log_tail()}"
                )
            if self.progress is not None:
                self.progress(waited_s, "waiting for the server to load its model")
            time.sleep(0.1)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/v1/models")
                # A server with a key of its own refuses this request, which is also an answer.
                return connection.getresponse().status in (http.client.OK, http.client.UNAUTHORIZED)
            except (OSError, http.client.HTTPException):
                return False

    def log_tail(self) -> str:
        """Return the last lines that the process wrote. The server does not log prompts or answers."""
        if self._log is None:
            return ""
        end = self._log.seek(0, 2)
        self._log.seek(max(0, end - 8192))
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-_LOG_LINES:])

    def kill(self) -> None:
        """End the process at once, as a crash would. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release()

    def stop(self) -> None:
        """End the process, gently at first, and free its resources. Idempotent."""
        if self._process is not None and self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=3)
        self.kill()

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
