"""The failover rule: what to do when a writer fails (design rules 5 to 7). A pure function of a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from disco.candidate import Candidate
from disco.errors import AnswerTimeoutError, EndpointFailure, FailureKind
from disco.request import Timeouts

__all__ = [
    "Beginning",
    "FailoverView",
    "Failures",
    "GiveUp",
    "Replace",
    "Retry",
    "StartWaiting",
    "Step",
    "has_replaced",
    "next_step",
    "silence",
    "stalled",
]

RETRY_S = 0.5  # first back-off before the only endpoint is tried again, seconds; doubles with each retry
LONG_S = 60.0  # of waiting for the first content of a response that has begun
MOST_WAIT_S = 120.0  # an endpoint that asks for a longer wait is not asked again; the SDK's limit
RETRIED = frozenset(
    {
        FailureKind.CONNECTION,
        FailureKind.TIMEOUT,
        FailureKind.STALLED,
        FailureKind.RATE_LIMIT,
        FailureKind.SERVER,
        FailureKind.INCOMPLETE,
    }
)
_BUSY = frozenset({FailureKind.RATE_LIMIT, FailureKind.SERVER})  # a status that says: later


class Beginning(StrEnum):
    """Where a replacement begins."""

    FIRST = "first"  # nothing is written yet
    GO_ON = "go on"  # from the last good prefix
    ANEW = "anew"  # from the start: the reader has not seen what is written, so that is dropped


@dataclass(frozen=True, slots=True)
class StartWaiting:
    """Start at once all planned starts that still wait for their time."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Let another endpoint take over."""

    candidate: Candidate
    beginning: Beginning


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask an endpoint that has failed once more, at the time `at`."""

    candidate: Candidate
    beginning: Beginning
    at: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the answer: no endpoint can continue it."""


Step = StartWaiting | Replace | Retry | GiveUp


@dataclass(slots=True)
class Failures:
    """Which endpoints have failed this answer. All fields are mutable.

    Attributes:
        failed: names of the endpoints that have failed.
        unwell: those of them that were asked and failed for a reason of their own, not for one of the request's. Who
            refuses a request and asks for it once more is one of them.
        again: those of them that may be asked once more, with the earliest time. Not one that has failed to prove that
            it continues the answer: that takes several requests, and the reader waits for its error. One that was busy,
            or in whose place another one went on, has proved nothing yet.
        retries: how often each was asked again.
        once_more: those that may be asked once where the application wants no retries, too: who failed of a request
            with more than the application asked for (with the SDK, that would have been the first), and who might have
            gone on, but another one did first.
        plainly: those whose next try leaves out what the application did not ask for, and begins anew.
    """

    failed: set[str] = field(default_factory=set)
    unwell: set[str] = field(default_factory=set)
    again: dict[str, float] = field(default_factory=dict)
    retries: Counter[str] = field(default_factory=Counter)
    once_more: set[str] = field(default_factory=set)
    plainly: set[str] = field(default_factory=set)

    def note(
        self, endpoint: str, failure: EndpointFailure, now: float, *, had_to_prove: bool = False
    ) -> None:
        """Store that an attempt on this endpoint has failed; `had_to_prove`: before it had proved that it continues."""
        self.failed.add(endpoint)
        is_the_requests = failure.kind.is_callers_fault and not failure.may_retry
        if not is_the_requests and failure.kind is not FailureKind.BUDGET:
            self.unwell.add(endpoint)
        if failure.once_more:
            self.once_more.add(endpoint)
        if failure.plainly:
            self.plainly.add(endpoint)
        wait_s = failure.retry_after_s
        # A crash with a retry time: the process of the local model is being started again.
        returns = failure.kind is FailureKind.CRASHED and wait_s is not None
        may = returns or failure.kind in RETRIED if failure.may_retry is None else failure.may_retry
        may = may or failure.plainly
        has_to_prove = had_to_prove and failure.kind not in _BUSY and not failure.once_more
        if may and not has_to_prove and (wait_s is None or wait_s <= MOST_WAIT_S):
            self.again[endpoint] = now + (RETRY_S * 2 ** self.retries[endpoint] if wait_s is None else wait_s)
        else:
            self.again.pop(endpoint, None)

    def left(self, max_retries: int) -> list[str]:
        """Return who may be asked once more, the earliest first."""
        may = [n for n in self.again if self.retries[n] < max(max_retries, n in self.once_more)]
        return sorted(may, key=self.again.__getitem__)

    def end_with(self, failure: EndpointFailure) -> bool:
        """Return whether the request itself is at fault, as every endpoint would say.

        The word of the first endpoint that was asked counts. One that stands in for another may refuse what the other
        serves: it has another model, which lacks a parameter, or is gone.
        """
        return failure.kind.is_callers_fault and not self.unwell


@dataclass(frozen=True, slots=True)
class FailoverView:
    """The input of the failover rule at one moment.

    Attributes:
        now: the time, s.
        until: the whole answer's deadline, s; no attempt begins later.
        candidates: candidates by endpoint name.
        order: names of endpoints that may take over, in order of preference.
        failures: which endpoints have failed so far.
        max_retries: how many retries on one failed endpoint are allowed, as the SDK counts them.
        starts_wait: whether planned starts still wait for their time and no endpoint has written.
        has_content: whether the answer has any content.
        nothing_shown: whether the reader has nothing of the answer.
        may_continue: whether another endpoint may continue the answer.
        writers: names of endpoints that have written part of the answer.
        has_kept: whether an answer is there that may be delivered: nobody is asked twice to better it, but for an
            endpoint that is alone and can ask in another way.
    """

    now: float
    until: float
    candidates: Mapping[str, Candidate]
    order: tuple[str, ...]
    failures: Failures
    max_retries: int
    starts_wait: bool
    has_content: bool
    nothing_shown: bool
    may_continue: bool
    writers: Collection[str] = ()
    has_kept: bool = False

    def beginning(self, candidate: Candidate, *, if_proved: bool) -> Beginning | None:
        """Return where this endpoint could begin; None where it cannot take over: the one rule of who may, and when.

        `if_proved`: an endpoint also counts that has yet to prove that it continues. Not one that has failed in its own
        text: the proof takes requests and seconds, and most often there is none.
        """
        if not self.has_content:
            return Beginning.FIRST
        if candidate.continues and self.may_continue:
            return Beginning.GO_ON
        if self.nothing_shown:
            return Beginning.ANEW
        proves = if_proved and candidate.continues_if_proved and self.may_continue
        proves = proves and not (candidate.name in self.writers and candidate.name in self.failures.failed)
        return Beginning.GO_ON if proves else None


def next_step(view: FailoverView, failure: EndpointFailure) -> Step:
    """Decide what to do after the writer, or the last starter, has failed.

    In this order: after a mistake in the caller's request, said by the first endpoint asked, give up; start what the
    plan still has waiting; let the next endpoint that can continue take over; let one take over that has yet to prove
    that it continues; ask a failed endpoint again; give up.
    """
    if view.failures.end_with(failure):
        return GiveUp()
    if view.starts_wait:
        return StartWaiting()
    left = [view.candidates[name] for name in dict.fromkeys(view.order) if name not in view.failures.failed]
    for if_proved in (False, True):
        for candidate in left:
            beginning = view.beginning(candidate, if_proved=if_proved)
            if beginning is not None:
                return Replace(candidate, beginning)
    return _retry(view)


def _retry(view: FailoverView) -> Step:
    # Whoever broke off this answer is asked to prove that it continues only where nobody else is there: a proof takes
    # several requests, and the reader waits for the error.
    is_alone = len(set(view.order)) == 1
    if view.has_kept and not (is_alone and view.failures.plainly):
        return GiveUp()
    for name in view.failures.left(view.max_retries):
        candidate, at = view.candidates[name], max(view.now, view.failures.again[name])
        beginning = view.beginning(candidate, if_proved=is_alone or name not in view.writers)
        is_last = view.failures.retries[name] + 1 >= view.max_retries or name in view.failures.plainly
        if is_last and name in view.failures.once_more and view.nothing_shown:
            beginning = Beginning.ANEW  # without the stream, and nobody continues an answer without one
        if beginning is not None and at <= view.until:
            return Retry(candidate, beginning, at)
    return GiveUp()


def stalled(endpoint: str, silent_s: float, *, has_spoken: bool) -> EndpointFailure:
    """Return the failure of an attempt that was silent while another could go on."""
    kind = FailureKind.STALLED if has_spoken else FailureKind.TIMEOUT
    error = AnswerTimeoutError(
        f"Endpoint {endpoint!r} was silent for {silent_s:.2f} s, and another one has gone on with the answer."
    )
    return EndpointFailure(kind, error, once_more=True)


def silence(endpoint: str, clocks: Timeouts, *, has_spoken: bool, has_begun: bool) -> EndpointFailure:
    """Return the failure of an attempt that was silent until its clock ran out.

    `has_begun`: something came of a response that the application reads as a stream. Who has waited long for the rest
    of it is not to wait as long again: the SDK does not ask again there.
    """
    if has_spoken:
        kind, limit, what = FailureKind.STALLED, clocks.gap_s, "gap_s"
    else:
        kind, limit, what = FailureKind.TIMEOUT, clocks.first_content_s, "first_content_s"
    error = AnswerTimeoutError(
        f"Endpoint {endpoint!r} wrote nothing for {inf if limit is None else limit:g} s (timeouts.{what}); "
        "raise the limit or configure another endpoint that can take over."
    )
    may_retry = False if has_begun and not has_spoken and (limit is None or limit >= LONG_S) else None
    return EndpointFailure(kind, error, may_retry=may_retry)


def has_replaced(
    *, same_endpoint: bool, wrote: bool, started: float, dead_wrote: bool, dead_ended: float
) -> bool:
    """Whether an attempt replaced one that failed: the definition of a failover in records, logs, metrics and replay.

    Args:
        same_endpoint: whether both attempts are of one endpoint; that is a retry.
        wrote: whether the attempt wrote part of the answer.
        started: when the attempt started, s.
        dead_wrote: whether the failed attempt had written.
        dead_ended: when the failed attempt ended, s.
    """
    # A hedge that ran before an attempt failed without content has won a race; it has replaced nothing.
    return not same_endpoint and wrote and (dead_wrote or started >= dead_ended)
