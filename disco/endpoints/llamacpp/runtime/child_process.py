"""The model in a process of its own, seen from the process that uses it.

llama.cpp may abort there, fault, be killed by the system's out-of-memory killer, or hang in a driver. Here that
becomes one sentence that says what happened, and a process that can be started again.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import IO, Any

from disco.endpoints.llamacpp.model.native import Aborted
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.runtime.child_protocol import pack, unpack, unpack_item
from disco.endpoints.llamacpp.runtime.job import Job, Lost
from disco.endpoints.llamacpp.runtime.speed_benchmark import Measurement
from disco.errors import ConfigurationError, EndpointFailure
from disco.events import Progress
from disco.notices import warn

__all__ = ["LAST_WORDS", "ModelProcess", "end_in_words", "require_processes"]

_MAIN = "disco.endpoints.llamacpp.runtime.child_main"
POLL_S = 0.05  # how often a waiting worker checks for a close, or for a process that sends nothing
STOP_S = 3.0  # limit for a stop; a model stops within milliseconds
CLOSE_S = 0.1  # time for the process to end by itself, before it is killed
KILL_S = 2.0  # time to wait for a killed process

# The parts of stderr that may be kept: why a library failed. Never a whole line, which might quote a prompt.
LAST_WORDS = re.compile(
    rb"GGML_ASSERT\([^\n]{0,200}?\) failed|CUDA error: [a-z ]{0,60}|std::bad_alloc|^[A-Za-z.]{1,60}Error(?=:|$)"
)
_MEMORY = "probably because memory ran out; a smaller context_tokens or a smaller model needs less"


def require_processes() -> None:
    """Raise an error with the remedy where there is no Python interpreter to start a second time.

    Raises:
        ConfigurationError: this program is frozen, or embeds Python.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise ConfigurationError(
            'isolation="process" starts a second Python interpreter, and this program has none to start. '
            'Use isolation="thread".'
        )


class ModelProcess:
    """A process with one model: an `Engine` for the worker, whose thread makes, loads, uses and closes it.

    Three threads serve the process's pipes, so that no other thread waits for a pipe. Mutable: all attributes, `_job`,
    `_number` (of its order), `_orders` (so far), `_paused` (jobs kept in the process, and their numbers), `_heard`
    (number of lines received), `_error_excerpt`, `_verdict`.

    Attributes:
        lost: what happened to the process, as a sentence; None while it runs.
        context_tokens, vocabulary, parameters: as `NativeModel`; known once the model is loaded.
        load_s: how long it took to start the process and to load the model.

    Args:
        name: the endpoint's, for messages.
        hang_s: the process is ended when it works and sends nothing for so many seconds.
        load_within_s: the same limit while the process loads the model.
        keep_going: called while waiting; returning False ends the waiting.
        on_lost: called, from a thread, when the process has ended without being asked to.
    """

    def __init__(
        self,
        *,
        name: str,
        hang_s: float,
        load_within_s: float,
        keep_going: Callable[[], bool],
        on_lost: Callable[[], None],
    ) -> None:
        self.lost: str | None = None
        self.context_tokens = 0
        self.vocabulary: str | None = None
        self.parameters = 0
        self.load_s = 0.0
        self._name = name
        self._hang_s = hang_s
        self._load_within_s = load_within_s
        self._keep_going = keep_going
        self._on_lost = on_lost
        self._job: Job | None = None
        self._number = self._orders = 0
        self._paused: dict[Job, int] = {}
        self._heard = 0
        self._error_excerpt = ""
        self._verdict: str | None = None
        self._inbox: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._began_at = time.perf_counter()
        self._process = _start()
        # "out" last: if the process ends at once, its reader waits for the thread of "err", which must have started.
        pumps = {"err": self._listen, "in": self._write, "out": self._read}
        self._threads = {
            what: threading.Thread(target=pump, name=f"disco-{name}-{what}", daemon=True)
            for what, pump in pumps.items()
        }
        for thread in self._threads.values():
            thread.start()

    @property
    def pid(self) -> int | None:
        """The process's id; None once the process has ended."""
        return None if self.lost is not None else self._process.pid

    # In the worker's thread

    def load(self, settings: Mapping[str, Any]) -> None:
        """Load the model.

        Args:
            settings: the arguments of `NativeModel` and `Renderer`, and the endpoint's `name`.

        Raises:
            Exception: the process could not load the model, and reported why.
            Lost: the process ended, or took too long.
            Aborted: `keep_going` returned False.
        """
        self._outbox.put(pack("load", settings))
        name, content = self._wait(self._load_within_s, "was still loading after")
        if name == "failed":
            failure = unpack_item(name, content, None)
            assert isinstance(failure, EndpointFailure)
            raise failure.error
        self.context_tokens = content["context_tokens"]
        self.vocabulary = content["vocabulary"]
        self.parameters = content["parameters"]
        self.load_s = time.perf_counter() - self._began_at

    def serve(self, job: Job) -> bool:
        """Run a job in the process, or go on with it; its output arrives in its mailbox here.

        Returns whether it is over; see `Job.run`.

        Raises:
            Lost: the process ended, or sent nothing for too long.
            EndpointFailure: BAD_REQUEST where the order cannot be written as JSON.
            Aborted: `keep_going` returned False.
        """
        number = self._paused.pop(job, None)
        order = job.order() if number is None else None
        if number is None:
            if order is None:
                return True
            self._orders += 1
        self._number = self._orders if number is None else number
        self._job = job  # from now on `signal` sends what changes
        try:
            self._outbox.put(self._go_on(job) if order is None else self._pack_order(*order))
            if job.flag.is_set() or job.park or job.paused:
                self.signal(job)  # it may have changed before its order was sent
            name, _ = self._wait(self._hang_s, "made no progress for", job)
        finally:
            self._job = None
        if name == "paused":
            self._paused[job] = self._number
        return name != "paused"

    def _go_on(self, job: Job) -> bytes:
        return pack("continue", {"number": self._number, "more": job.more()})

    def _pack_order(self, name: str, content: Mapping[str, Any]) -> bytes:
        try:
            return pack(name, {**content, "number": self._number})
        except (TypeError, ValueError) as exc:
            raise malformed(
                f"Endpoint {self._name!r}: the request holds a value that JSON cannot represent."
            ) from exc

    def drop(self, job: Job) -> None:
        """Let the process forget a paused job."""
        number = self._paused.pop(job, None)
        if number is not None:
            self._outbox.put(pack("drop", number))

    def _wait(self, limit_s: float, what: str, job: Job | None = None) -> tuple[str, Any]:
        # Counted in turns, not by the clock: while this machine sleeps, or this process is stopped, no message can
        # arrive, and the process with the model is not at fault.
        heard, quiet_s, stopping_s = self._heard, 0.0, 0.0
        while True:
            try:
                message = self._inbox.get(timeout=POLL_S)
            except queue.Empty:
                if not self._keep_going():
                    raise Aborted from None
                quiet_s = quiet_s + POLL_S if heard == self._heard else 0.0
                heard = self._heard
                if job is not None and job.flag.is_set():
                    stopping_s += POLL_S
                # Do not wait for the process: one that is stuck in a driver may not end even when killed.
                if quiet_s >= limit_s:
                    raise Lost(self._end(f"{what} {limit_s:g} s and was ended")) from None
                if stopping_s >= STOP_S:
                    raise Lost(self._end(f"did not stop within {STOP_S:g} s and was ended")) from None
                continue
            if message is None:
                raise Lost(self.lost)
            return message

    def _end(self, verdict: str) -> str:
        self._verdict = verdict
        self.lost = self._sentence(verdict)
        self._process.kill()
        return self.lost

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        self._outbox.put(None)
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                return  # the system ends the process when it can
        for thread in self._threads.values():
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    # From any thread, under the worker's lock

    def signal(self, job: Job) -> None:
        """Send the flags of a job, if the process works on that job."""
        if job is self._job:
            self._outbox.put(pack("flags", {**job.flags(), "number": self._number}))

    # In the threads of the pipes

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            with pipe:
                for line in iter(self._outbox.get, None):
                    pipe.write(line)
                    pipe.flush()
        except OSError:
            pass  # the process is gone; the reader detects that

    def _listen(self) -> None:
        for line in _lines(self._process.stderr, 4096):
            found = LAST_WORDS.search(line)
            if found and not self._error_excerpt:
                self._error_excerpt = found[0].decode("ascii", "replace")

    def _read(self) -> None:
        try:
            for line in _lines(self._process.stdout):
                self._heard += 1
                self._hear(*unpack(line))
        except Exception as exc:  # noqa: BLE001 - the line is not in the protocol
            self._end(f"sent something unreadable ({type(exc).__name__}) and was ended")
        self.lost = self._describe_end()
        self._inbox.put(None)
        self._on_lost()

    def _hear(self, name: str, content: Any, usage: Any) -> None:
        if name == "warned":
            warn(str(content))
            return
        job = self._job
        if job is not None and usage is not None:
            job.used(usage)
        if job is None or name in ("left", "paused"):
            self._inbox.put((name, content))
        elif name == "progress":
            if content is not None:
                job.progressed(Progress(**content))
        else:
            item = unpack_item(name, content, usage)
            if isinstance(item, Measurement):  # the load time includes the start of the process
                item = replace(item, load_s=self.load_s)
            job.mail.put(item)

    def _describe_end(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:  # the process has only closed its pipe
            self._process.kill()
            code = self._process.wait()
        self._threads["err"].join(1.0)
        what = self._verdict or end_in_words(code)
        return self._sentence(f"{what} after {self._error_excerpt}" if self._error_excerpt else what)

    def _sentence(self, what: str) -> str:
        return f"The process of endpoint {self._name!r} {what}."


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


def _lines(pipe: IO[bytes] | None, limit: int = -1) -> Iterator[bytes]:
    assert pipe is not None
    return iter(lambda: pipe.readline(limit), b"")


def _start() -> subprocess.Popen[bytes]:
    # A process group of its own keeps Ctrl-C from reaching it. It finds modules where this process does.
    apart: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a plain text
    return subprocess.Popen(  # noqa: S603 - this interpreter, a module of ours
        [sys.executable, "-P", "-m", _MAIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        **apart,
    )
