"""Jobs for a model, and where their output goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from disco.endpoints.llamacpp.model.sampler import Keyed
from disco.endpoints.llamacpp.model.stop_flag import Aborted, StopFlag
from disco.errors import DiscoError, EndpointFailure, FailureKind, LocalModelError
from disco.events import Progress, Usage

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.batching.answer_model import AnswerModel

__all__ = ["Job", "Outbox", "failure_of"]


class Outbox(Protocol):
    """Where a job puts its output: a `Mailbox`, or an answer that is asked for by rounds."""

    abandoned: bool

    def put(self, item: Any) -> None: ...

    def close(self) -> None: ...


class Job(ABC):
    """Work for the model. Made in the event loop, run in the model's thread, over a view of one slot.

    Args:
        mail: receives the job's output, an `EndpointFailure` when the job failed; closed once the engine has left
            the job.

    Attributes:
        flag: stops the job.
        park: asks the job to end where it can without losing what it has computed.
        paused: asks the job to give the model up before its next token, until it is cleared.
        keyed: the noise with which it chooses tokens, and those chosen.
        usage: the job's usage so far.
        is_brief: the job computes nothing, so that others need not count it.
        resident: the job waits for orders between its turns (`ready`), and is only a help to an answer that another
            model writes: while it waits, its slot is anybody's.
        alone: it begins when no other answer is computed, and others wait while it runs.
        progress: how far its prefill has come; None before the prefill begins.
        on_progress: called whenever `progress` has changed, in the model's thread; None: nothing is called.
    """

    usage = Usage()
    is_brief = False
    resident = False
    alone = False
    progress: Progress | None = None
    on_progress: Callable[[Progress], None] | None = None

    def __init__(self, mail: Outbox, keyed: Keyed | None = None) -> None:
        self.mail = mail
        self.keyed = Keyed(0) if keyed is None else keyed
        self.flag = StopFlag()
        self.park = False
        self.paused = False

    @abstractmethod
    def run(self, model: AnswerModel) -> bool:
        """Do the job as far as the model is ready; in the model's thread. `Aborted` may pass through.

        Returns whether the job is over. If not, the model is not `ready`, or the job gives it up: it was paused, or has
        no orders. The next call goes on with it.
        """

    def close(self) -> None:  # noqa: B027 - most jobs hold nothing
        """Free what a job holds; in the model's thread. Idempotent."""

    @property
    def ready(self) -> bool:
        """Whether a job that gave the model up has something to do."""
        return not self.paused

    def read_again(self, tokens: int) -> None:  # noqa: B027 - most jobs do not count
        """Note that so many tokens were computed again, which others had displaced."""

    def progressed(self, progress: Progress) -> None:
        """Take and report how far the prefill has come."""
        self.progress = progress
        if self.on_progress is not None:
            self.on_progress(progress)

    def check(self) -> None:
        """Raise `Aborted` if the job was cancelled, or if the reader of its output is gone."""
        if self.flag.is_set() or self.mail.abandoned:
            raise Aborted


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
