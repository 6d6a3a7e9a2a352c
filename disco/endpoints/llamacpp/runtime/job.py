"""What a model is asked to do, and how: the terms between an endpoint, its worker and the model, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from disco.endpoints.contract import Progress
from disco.endpoints.llamacpp.model.native import Aborted, NativeModel, StopFlag
from disco.errors import DiscoError, EndpointFailure, FailureKind, LocalModelError
from disco.events import Usage

__all__ = ["Engine", "Job", "Lost", "Outbox", "failure_of"]


class Outbox(Protocol):
    """Where a job puts what it hands over: a `Mailbox`, or the pipe of the process that holds the model."""

    abandoned: bool

    def put(self, item: Any) -> None: ...

    def close(self) -> None: ...


class Job(ABC):
    """Something the model is to do. Made in the event loop, run where the model is.

    Args:
        mail: what it hands over; an `EndpointFailure` when it failed; closed once the worker has left it.

    Attributes:
        flag: stops it.
        park: it is to end where it can without losing what it has computed.
        usage: what it has used so far.
        progress: how far its prefill is; None before it began.
        on_progress: called, where the model is, whenever that has changed.
    """

    usage = Usage()
    progress: Progress | None = None
    on_progress: Callable[[Progress], None] | None = None

    def __init__(self, mail: Outbox) -> None:
        self.mail = mail
        self.flag = StopFlag()
        self.park = False

    @abstractmethod
    def run(self, model: NativeModel) -> None:
        """Do it; in the thread that holds the model. `Aborted` may pass through."""

    @abstractmethod
    def order(self) -> tuple[str, Mapping[str, Any]] | None:
        """The same for a model in another process: what to do, and with what; None where nothing has to be done."""

    def used(self, usage: Usage) -> None:  # noqa: B027 - most use nothing
        """What it has used so far in another process."""

    def check(self) -> None:
        """Leave if it was cancelled, or if nobody is left to listen."""
        if self.flag.is_set() or self.mail.abandoned:
            raise Aborted


class Lost(Exception):
    """The process of the model is gone, or was given up; the message says why."""


class Engine(Protocol):
    """A loaded model as the worker uses it: `NativeModel` here, `ModelProcess` in a process of its own."""

    context_tokens: int
    vocabulary: str | None
    parameters: int
    lost: str | None

    def serve(self, job: Job, /) -> None:
        """Do a job. Raises `Lost`, `Aborted`, and what the job raises."""

    def signal(self, job: Job, /) -> None:
        """The flags of a job have changed; from any thread, under the worker's lock."""

    def close(self) -> None:
        """Free everything. Idempotent."""


def failure_of(exc: Exception, what: str) -> EndpointFailure:
    """The failure that an exception of the model's becomes; `what` happened, in words."""
    if isinstance(exc, DiscoError):
        error: Exception = exc
    else:
        # Foreign messages may quote a prompt: name the type, keep the rest as the cause.
        error = LocalModelError(f"{what} ({type(exc).__name__}).")
        error.__cause__ = exc
    failure = EndpointFailure(FailureKind.CRASHED, error)
    failure.__cause__ = exc
    return failure
