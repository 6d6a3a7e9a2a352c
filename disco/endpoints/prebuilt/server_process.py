"""Keeps llama.cpp's own server running in a child process, seen from the process that uses it.

One thread starts the process, waits until it serves, waits for its end, and starts it again. What happened to it
becomes one sentence.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from disco.endpoints.llamacpp.runtime.child_process import LAST_WORDS, end_in_words
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.endpoints.llamacpp.runtime.restart_backoff import FIRST_S, Backoff
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.prebuilt import server_main
from disco.endpoints.prebuilt.server_main import READY, REFUSED
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = [
    "ServerProcess",
    "ServerSettings",
    "Serving",
    "server_command",
    "server_environment",
    "settings_line",
]

_CLOSE_S: Final = 3.0  # limit for the end of a killed process
# A line of llama.cpp's log: time, level, function, text. Or the last one of a Python traceback.
_ERROR: Final = re.compile(r"(?:[\d.]+ E [^:]*: |(?=[A-Za-z.]+Error: ))(.*)")
_LINE: Final = 4096  # bytes; a longer line is read in pieces


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the child is told.

    Attributes:
        path: the GGUF file.
        alias: the model's name in requests.
        context_tokens: prompt and answer together, of each slot.
        threads: for prompt and decoding alike.
        batch_tokens: how many prompt tokens are computed at once.
        gpu_layers: how many layers go to a GPU, -1 for all.
        slots: how many answers are written at once.
        chat_template: a Jinja chat template in place of the model's own.
        port: of 127.0.0.1; 0: any that is free.
        api_key: the key of its API; None: it checks none.
    """

    path: str
    alias: str
    context_tokens: int
    threads: int
    batch_tokens: int = 64
    gpu_layers: int = -1
    slots: int = 1
    chat_template: str | None = None
    port: int = 0
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that answers.

    Attributes:
        base_url: where its API begins.
        api_key: the key of its API, another one for each process.
        pid: of the process.
        settings: what it was told.
        load_s: from the start of the process until it served.
    """

    base_url: str
    api_key: str = field(repr=False)
    pid: int
    settings: ServerSettings
    load_s: float


def server_command() -> list[str]:
    """Return what to start."""
    return [sys.executable, "-P", os.fspath(server_main.__file__)]


def server_environment() -> dict[str, str]:
    """Return the child's environment: it finds modules where this process does."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a plain text
    return {**os.environ, "PYTHONPATH": path}


def settings_line(settings: ServerSettings) -> bytes:
    """Return the first line of the child's stdin."""
    return json.dumps({**asdict(settings), "parent_pid": os.getpid()}).encode() + b"\n"


class ServerProcess:
    """The process with one model, from the first `serving` until `close`.

    A process that ends is started again after the pauses of `Backoff`; meanwhile `serving` fails at once, so that
    another endpoint can answer. A process that could not load its model is started again only for the next request.

    Mutable, all under `_lock`: `current`, `loading_since`, `_child`, `_waiting` (mailboxes of those who wait for the
    load), `_wanted` (whether a process should run), `_closing`, `_thread`, `_backoff`.

    Attributes:
        current: the server that answers; None while there is none.
        loading_since: when the process was started that loads its model, on the monotonic clock; None: none loads.

    Args:
        settings: makes the settings, in the thread: it may look for a file or download it.
        name: the endpoint's, for messages.
        load_within_s: the process is ended when it has not loaded its model after so many seconds.
    """

    def __init__(self, settings: Callable[[], ServerSettings], *, name: str, load_within_s: float) -> None:
        self.current: Serving | None = None
        self.loading_since: float | None = None
        self._settings = settings
        self._name = name
        self._load_within_s = load_within_s
        self._lock = threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[Mailbox] = []
        self._wanted = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._backoff = Backoff()

    async def serving(self) -> Serving:
        """Return the server that answers; start it if there is none, and wait until it has loaded its model.

        Raises:
            EndpointFailure: the model cannot be loaded, the process ended a moment ago, or this was closed.
        """
        mail = Mailbox()
        with self._lock:
            if self._closing:
                raise self._closed()
            if self.current is not None:
                return self.current
            if self.loading_since is None and self._backoff.left_s(time.monotonic()):
                raise self.lost()
            self._waiting.append(mail)
            self._wanted = True
            if self._thread is None:
                # A daemon, so that a program that does not close the endpoint can end; its end ends the child.
                self._thread = threading.Thread(
                    target=self._main, name=f"disco-{self._name}-server", daemon=True
                )
                self._thread.start()
            self._lock.notify()
        try:
            (found,) = await mail.take()
        finally:
            with self._lock:
                if mail in self._waiting:
                    self._waiting.remove(mail)
        if isinstance(found, EndpointFailure):
            raise found
        assert isinstance(found, Serving)
        return found

    def answered(self) -> None:
        """Note that the server has written an answer: the next restart comes soon again."""
        self._backoff.served()

    def lost(self) -> EndpointFailure:
        """Return the failure of what needs the process now that it is gone, or its connection is."""
        wait_s = self._backoff.left_s(time.monotonic())
        if wait_s:
            message = f"{self._backoff.why} The endpoint takes requests again in {wait_s:.1f} s."
        else:  # the thread has not noticed yet
            message = f"The connection to the process of endpoint {self._name!r} broke."
        # A little longer, so that a retry does not come too early.
        wait_s = (wait_s or FIRST_S) + 0.05
        return EndpointFailure(FailureKind.CRASHED, LocalModelError(message), retry_after_s=wait_s)

    async def aclose(self) -> None:
        """End the process and the thread. Idempotent."""
        with self._lock:
            self._closing = True
            self._kill()
            thread = self._thread
            self._lock.notify()
        if thread is not None and thread.is_alive():
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await anyio.to_thread.run_sync(thread.join, _CLOSE_S)

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _closed(self) -> EndpointFailure:
        message = f"Endpoint {self._name!r} is closed; make a new one."
        return EndpointFailure(FailureKind.CRASHED, LocalModelError(message))

    # In the thread

    def _main(self) -> None:
        try:
            while self._wait_until_wanted():
                self._run()
        finally:
            with self._lock:
                self._closing = True
            self._tell(self._closed)

    def _wait_until_wanted(self) -> bool:
        with self._lock:
            while not self._closing:
                pause_s = self._backoff.left_s(time.monotonic())
                if self._wanted and not pause_s:
                    self.loading_since = time.monotonic()
                    return True
                self._lock.wait(pause_s or None)
            return False

    def _run(self) -> None:
        """Run the process once, from its start to its end."""
        try:
            settings = self._settings()
            child = self._start()
        except Exception as error:  # noqa: BLE001 - any error must reach those who wait
            self._fail(
                partial(failure_of, error, f"The model of endpoint {self._name!r} could not be loaded")
            )
            return
        try:
            self._serve(child, settings)
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                with suppress(OSError):  # settings that it did not read any more
                    pipe.close()
            with self._lock:
                self.current = self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own keeps Ctrl-C from reaching it.
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        child = subprocess.Popen(  # noqa: S603 - this interpreter, a module of ours
            server_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=server_environment(),
            **apart,
        )
        with self._lock:
            self._child = child
            if self._closing:
                child.kill()
        return child

    def _serve(self, child: subprocess.Popen[bytes], settings: ServerSettings) -> None:
        began_at = time.monotonic()
        key = secrets.token_urlsafe(32)
        too_late = threading.Event()

        def give_up() -> None:
            too_late.set()
            child.kill()

        limit = threading.Timer(self._load_within_s, give_up)
        limit.daemon = True
        limit.start()
        address, why = self._load(child, replace(settings, api_key=key))
        limit.cancel()
        if address is None:
            self._fail(
                partial(self._not_loaded, self._why_not(child.wait(), why, too_late=too_late.is_set()))
            )
            return
        serving = Serving(f"{address}/v1", key, child.pid, settings, time.monotonic() - began_at)
        with self._lock:
            self.current = serving
        self._tell(lambda: serving)
        excerpt = _excerpt(child)
        what = end_in_words(child.wait())
        with self._lock:
            self.current = None
            if not self._closing:
                after = f" after {excerpt}" if excerpt else ""
                sentence = f"The process of endpoint {self._name!r} {what}{after}."
                self._backoff.lost(sentence, time.monotonic())

    def _load(self, child: subprocess.Popen[bytes], settings: ServerSettings) -> tuple[str | None, str]:
        """Return the server's address, None where it did not come up, and the first error that it wrote before."""
        assert child.stdin is not None
        assert child.stdout is not None
        why = ""
        with suppress(OSError):  # it may have ended; what it wrote says why
            child.stdin.write(settings_line(settings))
            child.stdin.flush()
        while line := child.stdout.readline(_LINE):
            # No request has been sent yet, so no line can quote one.
            text = line.decode("utf-8", "replace").strip()
            if text.startswith(READY):
                return text.split()[1], why
            if not why and (found := _ERROR.match(text)):
                why = found[1]
        return None, why

    def _why_not(self, code: int, said: str, *, too_late: bool) -> str:
        """Return in a sentence why the model was not loaded; only a process that was ended comes back by itself."""
        said = f" ({said})" if said else ""
        if too_late:
            what = f"was still loading after {self._load_within_s:g} s and was ended."
        elif code == REFUSED:
            what = f"could not load its model{said}. Name a chat model that its llama.cpp knows; a smaller one, or a "
            what += "smaller context_tokens, needs less memory."
            return f"The process of endpoint {self._name!r} {what}"
        else:
            what = f"{end_in_words(code)}{said} while it loaded its model."
        sentence = f"The process of endpoint {self._name!r} {what}"
        self._backoff.lost(sentence, time.monotonic())
        return sentence

    def _not_loaded(self, why: str) -> EndpointFailure:
        return self._closed() if self._closing else EndpointFailure(FailureKind.CRASHED, LocalModelError(why))

    def _fail(self, failure: Callable[[], EndpointFailure]) -> None:
        with self._lock:
            self._wanted = False
        self._tell(failure)

    def _tell(self, what: Callable[[], Serving | EndpointFailure]) -> None:
        """Give everyone who waits for the load an object of their own."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self.loading_since = None
        for mail in waiting:
            mail.put(what())


def _excerpt(child: subprocess.Popen[bytes]) -> str:
    """Read what the process writes until it ends; return why a library failed, never a whole line."""
    assert child.stdout is not None
    excerpt = ""
    while line := child.stdout.readline(_LINE):
        found = LAST_WORDS.search(line)
        if found and not excerpt:
            excerpt = found[0].decode("ascii", "replace")
    return excerpt
