"""A real OpenAI-compatible server with a small model, in a process of its own, for tests and examples that kill it."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, NamedTuple, Self

from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, resolve_model
from disco.endpoints.prebuilt.prebuilt_endpoint import require_prebuilt
from disco.endpoints.prebuilt.server_process import (
    ServerSettings,
    server_command,
    server_environment,
    settings_line,
)
from disco.errors import LocalModelError

__all__ = ["ModelServer", "free_port"]

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

_LOG_LINES: Final = 15
_ITS_OWN: Final = (
    "starlette_context"  # of the packages that llama_cpp.server needs, the one that few others do
)


class _Program(NamedTuple):
    """What to start: the command, its environment (None: this process's), what its standard input begins with."""

    command: list[str]
    environment: Mapping[str, str] | None = None
    first_line: bytes = b""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class ModelServer:
    """A server process: start it, wait for it, kill it, start it again on the same port.

    It listens on the loopback alone. A context manager; leaving it stops the process, and so does the end of this
    process, whatever ends it. All methods block: call them from a worker thread if an event loop runs.

    Args:
        model: a short name, the path of a GGUF file, or `hf:owner/repo/file.gguf`.
        runtime: what runs the model: `"compiled"` (llama-cpp-python with its server, the extra `demo`), `"prebuilt"`
            (llama.cpp's own server, the extra `prebuilt`), or `"auto"`: the first of these that is installed.
        model_name: the model's name in requests.
        context_tokens: the most tokens of prompt and answer together.
        threads: how many threads llama.cpp has. One leaves room for a device model beside it.
        port: port to listen on; 0 picks a free one.
        api_key: the key that requests must have; None: any key.
        logprobs: whether it gives log probabilities; it then keeps the scores of all tokens, 0.2 GB per 1,000 tokens
            of context for this model. The prebuilt one always gives them.
        chat_template: of chats, as Jinja source, in place of the model's own.
        timeout_s: how long the start may take, in seconds.
        progress: called from time to time while waiting.

    Raises:
        ConfigurationError: the model's name is unknown, or a package is missing.
        ModelFileError: the model's file is missing or not usable.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        model: str | Path = "smollm2-135m",
        *,
        runtime: Literal["auto", "compiled", "prebuilt"] = "auto",
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
        self.runtime = ("compiled" if _is_compiled() else "prebuilt") if runtime == "auto" else runtime
        (require_llama_cpp if self.runtime == "compiled" else require_prebuilt)()
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
            LocalModelError: the process ended or did not answer in time, with the last lines of its log; it is then
                not running.
        """
        if self.running:
            return
        self._release()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        program = self._compiled() if self.runtime == "compiled" else self._prebuilt()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own arguments
            program.command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=program.environment,
            start_new_session=True,  # Ctrl-C reaches us first; we end it
        )
        try:
            if program.first_line:
                assert self._process.stdin is not None
                self._process.stdin.write(program.first_line)
                self._process.stdin.flush()
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _prebuilt(self) -> _Program:
        """Return llama.cpp's own server."""
        settings = ServerSettings(
            path=str(self.model),
            alias=self.model_name,
            context_tokens=self.context_tokens,
            threads=self.threads,
            port=self.port,
            api_key=self._api_key,
            chat_template=self._chat_template,
        )
        return _Program(server_command(), server_environment(), settings_line(settings))

    def _compiled(self) -> _Program:
        """Return llama-cpp-python's server."""
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
        return _Program([sys.executable, "-c", _CHILD, *arguments])

    def _wait_until_ready(self) -> None:
        started_at = time.monotonic()
        while True:
            waited_s = time.monotonic() - started_at
            if not self.running:
                raise LocalModelError(f"The local server ended while starting.\n{self.log_tail()}")
            if self._answers():
                return
            if waited_s > self.timeout_s:
                raise LocalModelError(
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


def _is_compiled() -> bool:
    """Return whether "auto" means the compiled server: where its packages are there, or no other ones are."""
    compiled, its_own, prebuilt = (
        importlib.util.find_spec(name) is not None for name in ("llama_cpp", _ITS_OWN, "xllamacpp")
    )
    return (compiled and its_own) or not prebuilt
