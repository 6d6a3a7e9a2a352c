"""Jobs for a model, and the interfaces between an endpoint, its worker and the model, in whichever process it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from disco.endpoints.llamacpp.model.native import Aborted, NativeModel, StopFlag
from disco.errors import DiscoError, EndpointFailure, FailureKind, LocalModelError
from disco.events import Progress, Usage

__all__ = ["Engine", "Job", "Lost", "Outbox", "failure_of"]


class Outbox(Protocol):
    """Where a job puts its output: a `Mailbox`, or the pipe of the process that holds the model."""

    abandoned: bool

    def put(self, item: Any) -> None: ...

    def close(self) -> None: ...


class Job(ABC):
    """Work for the model. Made in the event loop, run where the model is.

    Args:
        mail: receives the job's output, an `EndpointFailure` when the job failed; closed once the worker has left
            the job.

    Attributes:
        flag: stops the job.
        park: asks the job to end where it can without losing what it has computed.
        paused: asks the job to give the model up before its next token, until it is cleared.
        usage: the job's usage so far.
        is_brief: the job computes nothing, so that others need not count it.
        resident: the job waits for orders between its turns and does not keep the model then (`ready`).
        progress: how far its prefill has come; None before the prefill begins.
        on_progress: called whenever `progress` has changed, in the thread that changed it; None: nothing is called.
    """

    usage = Usage()
    is_brief = False
    resident = False
    progress: Progress | None = None
    on_progress: Callable[[Progress], None] | None = None

    def __init__(self, mail: Outbox) -> None:
        self.mail = mail
        self.flag = StopFlag()
        self.park = False
        self.paused = False

    @abstractmethod
    def run(self, model: NativeModel) -> bool:
        """Do the job; in the thread that holds the model. `Aborted` may pass through.

        Returns whether the job is over. If not, it was paused, or has no orders, and the next call goes on with it.
        """

    def close(self) -> None:  # noqa: B027 - most jobs hold nothing
        """Free what a paused job holds; in the thread that holds the model. Idempotent."""

    @abstractmethod
    def order(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return the job as an order for a model in another process: name and content; None for an empty job."""

    @property
    def ready(self) -> bool:
        """Whether a job that gave the model back has something to do; read under the worker's lock."""
        return not self.paused

    def more(self) -> Any:
        """Return what the job in another process needs when it goes on, as JSON values; None for nothing."""
        return None

    def take_more(self, content: Any) -> None:  # noqa: B027 - most jobs need nothing
        """Take, in the process with the model, what `more` returned in the other."""

    def flags(self) -> dict[str, Any]:
        """Return what may change while the job runs, for the job in another process."""
        return {"stop": self.flag.is_set(), "park": self.park, "paused": self.paused}

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        """Take, in the process with the model, what `flags` returned in the other."""
        if flags["stop"]:
            self.flag.set()
        self.park, self.paused = flags["park"], flags["paused"]

    def progressed(self, progress: Progress) -> None:
        """Take and report how far the prefill has come."""
        self.progress = progress
        if self.on_progress is not None:
            self.on_progress(progress)

    def used(self, usage: Usage) -> None:  # noqa: B027 - most jobs use nothing
        """Take the usage so far of the job in another process."""

    def check(self) -> None:
        """Raise `Aborted` if the job was cancelled, or if the reader of its output is gone."""
        if self.flag.is_set() or self.mail.abandoned:
            raise Aborted


class Lost(Exception):
    """The process of the model has ended or was given up; the message says why."""


class Engine(Protocol):
    """A loaded model as the worker uses it: `NativeModel` in this process, `ModelProcess` in another."""

    context_tokens: int
    vocabulary: str | None
    parameters: int
    lost: str | None

    def serve(self, job: Job, /) -> bool:
        """Do a job, or go on with it; return whether it is over. Raises `Lost`, `Aborted`, and what the job raises."""

    def drop(self, job: Job, /) -> None:
        """Forget a paused job, which does not go on."""

    def signal(self, job: Job, /) -> None:
        """Pass on the changed flags of a job; from any thread, under the worker's lock."""

    def close(self) -> None:
        """Free everything. Idempotent."""


def failure_of(exc: Exception, what: str) -> EndpointFailure:
    """Return the failure for an exception of the model's; `what` says in words what happened."""
    if isinstance(exc, DiscoError):
        error: Exception = exc
    else:
        # Messages of other libraries may quote a prompt: name the type, keep the exception as the cause.
        error = LocalModelError(f"{what} ({type(exc).__name__}).")
        error.__cause__ = exc
    failure = EndpointFailure(FailureKind.CRASHED, error)
    failure.__cause__ = exc
    return failure
