"""A real llama-server with a small model, in a process of its own, for tests and examples that kill it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from disco.endpoints.host.host_process import (
    HostSettings,
    host_command,
    host_environment,
    settings_line,
)
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.runtimes import require
from disco.errors import LocalModelError

__all__ = ["ModelServer", "free_port"]

Progress = Callable[[float, str], None]
"""Called with the seconds waited so far and a short phrase that says for what."""

_LOG_LINES: Final = 15


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class ModelServer:
    """llama.cpp's own server in a process: start it, wait for it, kill it, start it again on the same port.

    It listens on the loopback alone. A context manager; leaving it stops the process, and so does the end of this
    process, whatever ends it. All methods block: call them from a worker thread if an event loop runs.

    Args:
        model: a short name, the path of a GGUF file, or `hf:owner/repo/file.gguf`.
        model_name: the model's name in requests.
        context_tokens: the most tokens of prompt and answer together.
        threads: how many threads llama.cpp has. One leaves room for a device model beside it.
        port: port to listen on; 0 picks a free one.
        api_key: the key that requests must have; None: any key.
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
        model_name: str = "smollm2-135m",
        context_tokens: int = 2048,
        threads: int = 1,
        port: int = 0,
        api_key: str | None = None,
        chat_template: str | None = None,
        timeout_s: float = 120.0,
        progress: Progress | None = None,
    ) -> None:
        require("llama-server")
        self.model = resolve_model(model)
        self.model_name = model_name
        self.context_tokens = context_tokens
        self.threads = threads
        self.port = port or free_port(self.host)
        self.timeout_s = timeout_s
        self._api_key = api_key
        self._chat_template = chat_template
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
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own arguments
            host_command("llama-server"),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=host_environment(),
            start_new_session=True,  # Ctrl-C reaches us first; we end it
        )
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(settings_line(self._settings()))
            self._process.stdin.flush()
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _settings(self) -> HostSettings:
        return HostSettings(
            path=str(self.model),
            alias=self.model_name,
            context_tokens=self.context_tokens,
            threads=self.threads,
            port=self.port,
            api_key=self._api_key,
            chat_template=self._chat_template,
        )

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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
