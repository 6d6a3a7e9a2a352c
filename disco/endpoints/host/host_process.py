"""Keeps a host of a local model running: a child process, seen from the process that uses it.

One thread starts the process, waits until it serves, waits for its end, and starts it again. Another one ends it where
it takes too long: to load, or for a step of its work. What happened to it becomes one sentence.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from disco.endpoints.event_coding import failure_in
from disco.endpoints.host import llama_server_main
from disco.endpoints.host.llama_server_main import READY, REFUSED
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.restart_backoff import FIRST_S, Backoff
from disco.endpoints.runtimes import Program
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.notices import warn

__all__ = [
    "BEAT",
    "FAILED",
    "IDLE",
    "WARNED",
    "Host",
    "HostProcess",
    "HostSettings",
    "Serving",
    "host_command",
    "host_environment",
    "settings_line",
]

# How lines begin that a host prints for the process that started it, besides `READY`. The rest of a line is JSON.
FAILED: Final = "disco-host-failed"  # why the model could not be loaded, as an error object of the API
WARNED: Final = "disco-host-warned"  # a sentence for a person
BEAT: Final = "disco-host-works"  # it works, and has done a step since the line before
IDLE: Final = "disco-host-idle"  # it has nothing to do, so that no beat is due

SAVE_WITHIN_S: Final = 7.0  # `Upkeep` has 5 s for it
_CLOSE_S: Final = 3.0  # limit for the end of a killed process
_TURN_S: Final = 0.25
# A line of llama.cpp's log: time, level, function, text. Or the last one of a Python traceback.
_ERROR: Final = re.compile(r"(?:[\d.]+ E [^:]*: |(?=[A-Za-z.]+Error: ))(.*)")
_LINE: Final = 4096  # bytes; a longer line is read in pieces
_STALE_S: Final = 3600.0  # a host of another container may still load, and its process is not seen here
_MOST_PATH: Final = 100  # bytes of a socket's path; systems differ
# The parts of a host's output that may be kept: why a library failed. Never a whole line, which might quote a prompt.
_LAST_WORDS: Final = re.compile(
    rb"GGML_ASSERT\([^\n]{0,200}?\) failed|CUDA error: [a-z ]{0,60}|std::bad_alloc|^[A-Za-z.]{1,60}Error(?=:|$)"
)
_MEMORY: Final = "probably because memory ran out; a smaller context_tokens or a smaller model needs less"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What a host is told.

    Attributes:
        path: the GGUF file.
        alias: the model's name in requests.
        context_tokens: prompt and answer together, of each slot; None: the engine's own choice.
        threads: for prompt and decoding alike.
        batch_tokens: how many prompt tokens are computed at once.
        gpu_layers: how many layers go to a GPU, -1 for all.
        slots: how many answers are written at once.
        chat_template: a Jinja chat template in place of the model's own.
        max_queue: requests that may wait in the engine.
        hang_s: how long a step of the engine may take, s.
        prompt_cache: the engine's `PromptCache.settings`; None: no prompt is saved.
        loras: LoRA adapters: the path of each, and how much of it is added to the weights.
        mmproj: llama-server's projector for images; None: the model reads text only.
        split: of a device's part of a model: `server`, the fields of its `LayerServer`, and `options`, those
            of its `SplitOptions`; None: the model is whole. Not in repr, because it has a key.
        socket: path of the Unix socket to listen on; None: 127.0.0.1.
        port: of 127.0.0.1; 0: any that is free.
        api_key: the key of its API; None: it checks none.
    """

    path: str
    alias: str
    context_tokens: int | None
    threads: int
    batch_tokens: int = 64
    gpu_layers: int = -1
    slots: int = 1
    chat_template: str | None = None
    max_queue: int = 16
    hang_s: float = 30.0
    prompt_cache: dict[str, Any] | None = None
    loras: tuple[tuple[str, float], ...] = ()
    mmproj: str | None = None
    split: dict[str, Any] | None = field(default=None, repr=False)
    socket: str | None = None
    port: int = 0
    api_key: str | None = field(default=None, repr=False)


def _remedy(said: str, settings: HostSettings) -> str:
    """Return what to do where llama.cpp could not load what it was told to."""
    if settings.loras and "lora" in said.lower():
        files = ", ".join(path for path, _ in settings.loras)
        return f"Name LoRA adapters that were trained on this model ({files} may not be), or leave lora out."
    if settings.mmproj is not None and re.search("mmproj|multimodal|clip", said):
        return f"Name the projector that is published beside this model, not {settings.mmproj}, or leave mmproj out."
    return "Name a chat model that its llama.cpp knows; a smaller one, or a smaller context_tokens, needs less memory."


@dataclass(frozen=True, slots=True)
class Serving:
    """A host that answers.

    Attributes:
        base_url: where its API begins; where it listens on a Unix socket, the host in it says nothing.
        socket: path of its Unix socket; None where it has none.
        api_key: the key of its API, another one for each process.
        pid: of the process.
        settings: what it was told.
        load_s: from the start of the process until it served.
    """

    base_url: str
    socket: str | None
    api_key: str = field(repr=False)
    pid: int
    settings: HostSettings
    load_s: float


def host_command(program: Program) -> list[str]:
    """Return what to start."""
    if program == "engine":
        return [sys.executable, "-P", "-m", "disco.endpoints.host.engine_main"]
    return [sys.executable, "-P", os.fspath(llama_server_main.__file__)]


def host_environment() -> dict[str, str]:
    """Return the child's environment: it finds modules where this process does."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a plain text
    return {**os.environ, "PYTHONPATH": path}


def settings_line(settings: HostSettings) -> bytes:
    """Return the first line of the child's stdin."""
    return json.dumps({**asdict(settings), "parent_pid": os.getpid()}).encode() + b"\n"


class Host(Protocol):
    """Where an endpoint finds its host: see `HostProcess`, which starts one."""

    @property
    def current(self) -> Serving | None: ...

    @property
    def loading_since(self) -> float | None: ...

    @property
    def pid(self) -> int | None: ...

    async def serving(self) -> Serving: ...

    def answered(self) -> None: ...

    def lost(self) -> EndpointFailure: ...

    def hangs(self, serving: Serving) -> None: ...

    async def aclose(self) -> None: ...


class HostProcess(Host):
    """The process with one model, from the first `serving` until `aclose`.

    A process that ends is started again after the pauses of `Backoff`; meanwhile `serving` fails at once, so that
    another endpoint can answer. A process that could not load its model is started again only for the next request.
    Loading goes on when nobody waits for it any more.

    Mutable, all under `_lock`: `_current`, `_loading_since`, `_child`, `_waiting` (mailboxes of those who wait for the
    load), `_wanted` (whether a process should run), `_is_hung` (the process was ended for that), `_closing`, `_thread`,
    `_backoff`.

    Attributes:
        current: the host that answers; None while there is none.
        loading_since: when the process was started that loads its model, on the monotonic clock; None: none loads.

    Args:
        settings: makes the settings, in the thread: it may look for a file or download it.
        program: what is started.
        name: the endpoint's, for messages.
        load_within_s: the process is ended when it has not loaded its model after so many seconds.
        on_change: called in the thread when `current` has changed.
    """

    def __init__(
        self,
        settings: Callable[[], HostSettings],
        *,
        program: Program,
        name: str,
        load_within_s: float,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self._current: Serving | None = None
        self._loading_since: float | None = None
        self._on_change = on_change
        self._settings = settings
        self._program: Program = program
        self._name = name
        self._load_within_s = load_within_s
        self._lock = threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[Mailbox] = []
        self._wanted = False
        self._closing = False
        self._is_hung = False
        self._thread: threading.Thread | None = None
        self._backoff = Backoff()

    @property
    def current(self) -> Serving | None:
        return self._current

    @property
    def loading_since(self) -> float | None:
        return self._loading_since

    @property
    def pid(self) -> int | None:
        """The id of the process, which may still load its model; None while there is none."""
        child = self._child
        return None if child is None else child.pid

    async def serving(self) -> Serving:
        """Return the host that answers; start it if there is none, and wait until it has loaded its model.

        Raises:
            EndpointFailure: the model cannot be loaded, the process ended a moment ago, or this was closed.
        """
        mail = Mailbox()
        with self._lock:
            if self._closing:
                raise self._closed()
            if self._current is not None:
                return self._current
            if self._loading_since is None and self._backoff.left_s(time.monotonic()):
                raise self.lost()
            self._waiting.append(mail)
            self._wanted = True
            if self._thread is None:
                # A daemon, so that a program that does not close the endpoint can end; its end ends the child.
                self._thread = threading.Thread(
                    target=self._main, name=f"disco-{self._name}-host", daemon=True
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
        """Note that the host has written an answer: the next restart comes soon again."""
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

    def hangs(self, serving: Serving) -> None:
        """End a host that answers nothing any more; it is started again as one that crashed."""
        with self._lock:
            if self._current is serving and self._child is not None:
                self._is_hung = True
                self._child.kill()

    async def aclose(self) -> None:
        """End the process and the thread; a host that saves prompts may do so first. Idempotent."""
        with self._lock:
            self._closing = True
            within_s = self._end_child()
            thread = self._thread
            self._lock.notify()
        if thread is not None and thread.is_alive():
            with anyio.move_on_after(within_s + _CLOSE_S, shield=True):
                await anyio.to_thread.run_sync(thread.join, within_s + _CLOSE_S)

    def _end_child(self) -> float:
        """End the process; return how many seconds it may take. Under the lock."""
        child, serving = self._child, self._current
        if child is None:
            return 0.0
        if serving is None or serving.settings.prompt_cache is None:
            child.kill()
            return 0.0
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()  # it saves prompts, and ends
        timer = threading.Timer(SAVE_WITHIN_S, child.kill)
        timer.daemon = True
        timer.start()
        return SAVE_WITHIN_S

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
                    self._loading_since = time.monotonic()
                    return True
                self._lock.wait(pause_s or None)
            return False

    def _run(self) -> None:
        """Run the process once, from its start to its end."""
        folder: str | None = None
        try:
            settings = self._settings()
            folder = _socket_folder()
            child = self._start()
        except Exception as error:  # noqa: BLE001 - any error must reach those who wait
            self._fail(
                partial(failure_of, error, f"The model of endpoint {self._name!r} could not be loaded")
            )
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            return
        clock = _StepClock(child)
        try:
            path = None if folder is None else os.path.join(folder, "s.sock")  # noqa: PTH118 - a plain text
            key = secrets.token_urlsafe(32)
            self._serve(child, replace(settings, socket=path, api_key=key), clock)
        finally:
            clock.end()
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                with suppress(OSError):  # settings that it did not read any more
                    pipe.close()
            with self._lock:
                self._current = self._child = None
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own keeps Ctrl-C from reaching it.
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        child = subprocess.Popen(  # noqa: S603 - this interpreter, a module of ours
            host_command(self._program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=host_environment(),
            **apart,
        )
        with self._lock:
            self._child, self._is_hung = child, False
            if self._closing:
                child.kill()
        return child

    def _serve(self, child: subprocess.Popen[bytes], settings: HostSettings, clock: _StepClock) -> None:
        began_at = time.monotonic()
        clock.must_step_within(self._load_within_s)
        address, why = self._load(child, settings)
        clock.may_rest()
        if address is None:
            code = child.wait()
            if isinstance(why, dict):
                self._fail(lambda: failure_in(why) or self._not_loaded(str(why.get("message"))))
            else:
                self._fail(
                    partial(self._not_loaded, self._why_not(code, why, settings, too_late=clock.is_over))
                )
            return
        is_socket = settings.socket is not None and address.startswith("unix:")
        serving = Serving(
            "http://localhost/v1" if is_socket else f"{address}/v1",
            settings.socket if is_socket else None,
            settings.api_key or "",
            child.pid,
            settings,
            time.monotonic() - began_at,
        )
        with self._lock:
            self._current = serving
        self._on_change()
        self._tell(lambda: serving)
        excerpt = self._listen(child, settings.hang_s, clock)
        what = end_in_words(child.wait())
        if clock.is_over or self._is_hung:
            what = f"made no progress for {settings.hang_s:g} s and was ended"
        with self._lock:
            self._current = None
            if not self._closing:
                after = f" after {excerpt}" if excerpt else ""
                sentence = f"The process of endpoint {self._name!r} {what}{after}."
                self._backoff.lost(sentence, time.monotonic())
        self._on_change()

    def _load(
        self, child: subprocess.Popen[bytes], settings: HostSettings
    ) -> tuple[str | None, str | dict[str, Any]]:
        """Return the host's address, None where it did not come up, and why: its own error object, or a first line."""
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
            if text.startswith(FAILED):
                with suppress(ValueError):
                    if isinstance(said := json.loads(text.removeprefix(FAILED)), dict):
                        return None, said
            elif text.startswith(WARNED):
                self._warn(text)
            elif not why and (found := _ERROR.match(text)):
                why = found[1]
        return None, why

    def _listen(self, child: subprocess.Popen[bytes], hang_s: float, clock: _StepClock) -> str:
        """Read what the process writes until it ends; return why a library failed, never a whole line."""
        assert child.stdout is not None
        excerpt = ""
        while line := child.stdout.readline(_LINE):
            if line.startswith(BEAT.encode()):
                clock.must_step_within(hang_s)
            elif line.startswith(IDLE.encode()):
                clock.may_rest()
            elif line.startswith(WARNED.encode()):
                self._warn(line.decode("utf-8", "replace"))
            elif not excerpt and (found := _LAST_WORDS.search(line)):
                excerpt = found[0].decode("ascii", "replace")
        return excerpt

    def _warn(self, line: str) -> None:
        with suppress(ValueError):
            warn(str(json.loads(line.strip().removeprefix(WARNED))))

    def _why_not(self, code: int, said: str, settings: HostSettings, *, too_late: bool) -> str:
        """Return in a sentence why the model was not loaded; only a process that was ended comes back by itself."""
        remedy = _remedy(said, settings)
        said = f" ({said})" if said else ""
        if too_late:
            what = f"was still loading after {self._load_within_s:g} s and was ended."
        elif code == REFUSED:
            return f"The process of endpoint {self._name!r} could not load its model{said}. {remedy}"
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
            self._loading_since = None
        for mail in waiting:
            mail.put(what())


class _StepClock:
    """Kills a process that takes too long for a step.

    Time is counted in turns, not by the clock: while this machine sleeps, or this program is stopped, the process is
    not at fault. Mutable, under `_lock`: `is_over`, `_left_s`, `_ended`, `_thread`.

    Attributes:
        is_over: the process was killed for that.
    """

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.is_over = False
        self._child = child
        self._lock = threading.Condition()
        self._left_s = inf
        self._ended = False
        self._thread: threading.Thread | None = None

    def must_step_within(self, seconds: float) -> None:
        """Kill the process after so many seconds, unless this is called again, or `may_rest`."""
        with self._lock:
            self._left_s = seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="disco-host-watch", daemon=True)
                self._thread.start()
            self._lock.notify()

    def may_rest(self) -> None:
        """Wait for no step."""
        with self._lock:
            self._left_s = inf

    def end(self) -> None:
        """End the watch. Idempotent."""
        with self._lock:
            self._ended = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._lock:
            while not self._ended:
                if self._left_s == inf:
                    self._lock.wait()
                    continue
                turn_s = min(_TURN_S, self._left_s)
                before = self._left_s
                if not self._lock.wait(turn_s) and self._left_s == before:  # neither a step nor a rest came
                    self._left_s -= turn_s
                    if self._left_s <= 0:
                        self.is_over, self._left_s = True, inf
                        self._child.kill()


def end_in_words(code: int) -> str:
    """Return how a process ended, by its exit code, as the rest of a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return f"was killed ({name}), {_MEMORY}"
    return f"{'aborted' if name == 'SIGABRT' else 'crashed'} ({name})"


def _socket_folder() -> str | None:
    """Make a folder that only this user can open, for the socket; None where there are no Unix sockets.

    Raises:
        OSError: it cannot be made.
    """
    if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
        return None
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes a folder of its own there
        _sweep(Path(parent))
        folder = tempfile.mkdtemp(prefix=f"disco-{os.getpid()}-", dir=parent)
        if len(os.fsencode(folder)) + len("/s.sock") <= _MOST_PATH:
            return folder
        Path(folder).rmdir()
    return None


def _sweep(parent: Path) -> None:
    """Remove the folders of programs that were killed while their hosts loaded: else a host removes its own."""
    for folder in parent.glob("disco-*-*"):
        with suppress(OSError, ValueError):
            pid, about = int(folder.name.split("-")[1]), folder.lstat()
            is_stale = stat.S_ISDIR(about.st_mode) and about.st_mtime < time.time() - _STALE_S
            if not is_stale or about.st_uid != os.getuid() or _lives(pid) or _listens(folder):
                continue
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _listens(folder: Path) -> bool:
    """Whether somebody is there whose process ids are not seen here: of another container, say."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(folder / "s.sock"))
        except OSError:
            return False
        return True
