"""Failing: what becomes of an answer when its writer fails (design rules 5 to 7). A pure function of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from disco.errors import AnswerTimeoutError, EndpointFailure, FailureKind
from disco.plan import Candidate
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
]

RETRY_S = 0.5  # first back-off before the only endpoint is tried again; doubles
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


class Beginning(StrEnum):
    """Where a replacement begins."""

    FIRST = "first"  # nothing is written yet
    GO_ON = "go on"  # from the last good prefix
    ANEW = "anew"  # what is written was not shown: it is forgotten


@dataclass(frozen=True, slots=True)
class StartWaiting:
    """Start all that wait for their time now."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Another endpoint takes over."""

    candidate: Candidate
    beginning: Beginning


@dataclass(frozen=True, slots=True)
class Retry:
    """An endpoint that has failed is asked once more, at that time."""

    candidate: Candidate
    beginning: Beginning
    at: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No endpoint can go on."""


Step = StartWaiting | Replace | Retry | GiveUp


@dataclass(slots=True)
class Failures:
    """Which endpoints have failed this answer. All fields are mutable.

    Attributes:
        failed: their names.
        again: of these, which may be asked once more, and from when.
        retries: how often that was done.
    """

    failed: set[str] = field(default_factory=set)
    again: dict[str, float] = field(default_factory=dict)
    retries: int = 0

    def note(self, endpoint: str, failure: EndpointFailure, now: float) -> None:
        """An attempt there has failed."""
        self.failed.add(endpoint)
        wait_s = failure.retry_after_s
        # A crash that says when it is over: the process of the local model is started again.
        returns = failure.kind is FailureKind.CRASHED and wait_s is not None
        if returns or failure.kind in RETRIED:
            self.again[endpoint] = now + (RETRY_S * 2**self.retries if wait_s is None else wait_s)
        else:
            self.again.pop(endpoint, None)


@dataclass(frozen=True, slots=True)
class FailoverView:
    """All that the rule looks at, at one moment.

    Attributes:
        now: the time.
        until: no attempt begins later than this: the whole answer's deadline.
        candidates: by name.
        order: names of endpoints that may take over, in order of preference.
        failures: what has failed so far.
        max_retries: how often an endpoint that has failed may be asked again, all together.
        starts_wait: starts of the plan wait for their time, and no endpoint has spoken.
        has_content: something is written.
        nothing_shown: the reader has nothing of it.
        may_continue: another endpoint may go on with it.
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

    def beginning(self, candidate: Candidate) -> Beginning | None:
        """Where this endpoint could begin; None where it cannot take over."""
        if not self.has_content:
            return Beginning.FIRST
        if candidate.continues and self.may_continue:
            return Beginning.GO_ON
        return Beginning.ANEW if self.nothing_shown else None


def next_step(view: FailoverView, failure: EndpointFailure) -> Step:
    """What to do about a writer, or the last starter, that has failed.

    A mistake in the request is the caller's: no other endpoint is asked. Else whatever the plan still has waiting
    starts; else the next endpoint that can go on takes over; else one that has failed is asked again.
    """
    if failure.kind.is_callers_fault:
        return GiveUp()
    if view.starts_wait:
        return StartWaiting()
    for name in dict.fromkeys(view.order):
        if name not in view.failures.failed:
            candidate = view.candidates[name]
            beginning = view.beginning(candidate)
            if beginning is not None:
                return Replace(candidate, beginning)
    return _retry(view)


def _retry(view: FailoverView) -> Step:
    again = view.failures.again
    if view.failures.retries < view.max_retries:
        for name in sorted(again, key=again.__getitem__):  # the one that may be asked first
            candidate, at = view.candidates[name], max(view.now, again[name])
            beginning = view.beginning(candidate)
            if beginning is not None and at <= view.until:
                return Retry(candidate, beginning, at)
    return GiveUp()


def silence(endpoint: str, clocks: Timeouts, *, has_spoken: bool) -> EndpointFailure:
    """The failure that an attempt's silence is, once its clock has run out."""
    if has_spoken:
        kind, limit, what = FailureKind.STALLED, clocks.gap_s, "gap_s"
    else:
        kind, limit, what = FailureKind.TIMEOUT, clocks.first_content_s, "first_content_s"
    error = AnswerTimeoutError(
        f"Endpoint {endpoint!r} wrote nothing for {limit or inf:g} s (timeouts.{what}); "
        "raise the limit or configure another endpoint that can take over."
    )
    return EndpointFailure(kind, error)


def has_replaced(
    *, same_endpoint: bool, wrote: bool, started: float, dead_wrote: bool, dead_ended: float
) -> bool:
    """Whether an attempt replaced one that failed: what a failover is, in records, logs, metrics and replay.

    Args:
        same_endpoint: both attempts are of one endpoint; that is a retry.
        wrote: some of the answer is by the attempt.
        started: when the attempt started, s.
        dead_wrote: the failed attempt had written.
        dead_ended: when the failed attempt ended, s.
    """
    # A hedge that was under way before a mute attempt failed has won a race. It has taken nothing over.
    return not same_endpoint and wrote and (dead_wrote or started >= dead_ended)
