"""A circuit breaker: decides when an endpoint that fails is left alone, and when it is tried again.

While the breaker is closed, it weighs the endpoint's own failures against its answers; enough failures open the
breaker. While it is open, the endpoint cools down. Then the breaker is half-open: one request at a time may probe the
endpoint. An answer closes the breaker; a failure opens it again for twice as long. A longer cool-down returns to the
first length only after the endpoint has not failed for a while, so no pattern of failures makes the breaker switch
back and forth quickly.

Plain data and arithmetic, without a clock: the caller passes all times, in seconds, on one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Literal

from disco.errors import FailureKind
from disco.plan import CoolDown

__all__ = ["REFUSED", "Breaker", "BreakerConfig", "Opening", "State"]

State = Literal["closed", "open", "half_open"]

# How much one failure counts towards `BreakerConfig.failures`. A failure to reach the endpoint counts more than a bad
# answer.
_WEIGHTS = {
    FailureKind.CONNECTION: 1.5,
    FailureKind.TIMEOUT: 1.5,
    FailureKind.STALLED: 1.0,
    FailureKind.SERVER: 1.0,
    FailureKind.GARBAGE: 1.0,
    FailureKind.INCOMPLETE: 1.0,
    FailureKind.CRASHED: 1.0,
    FailureKind.RATE_LIMIT: inf,  # the server itself asks for fewer requests
    FailureKind.ACCOUNT: inf,  # the next request would be refused, too, until a person does something
    FailureKind.MODEL: inf,
}
REFUSED = frozenset({FailureKind.ACCOUNT, FailureKind.MODEL})
"""Failures that a person has to mend: they last, so the cool-down is long."""
_ABSENT = frozenset({FailureKind.CONNECTION, FailureKind.TIMEOUT})
# Refusals of one request: an endpoint that refuses a request is reachable and works.
_ANSWERS = frozenset({FailureKind.BAD_REQUEST, FailureKind.CONTENT_FILTER, FailureKind.CONTEXT_LENGTH})
_OUTCOMES = 20  # the most outcomes that are weighed


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a breaker opens, and for how long. Times are in seconds.

    Attributes:
        failures: the number of failures within `window_s` that opens the breaker, if at least half of all outcomes in
            this time are failures. Refused connections and time-outs count one and a half times; a rate limit, a
            refused account and a missing model open the breaker at once.
        window_s: how long an outcome counts.
        cool_down_s: the first cool-down; each further one is twice as long.
        absent_s: the first cool-down of an endpoint that could not be reached. It is shorter because such a failure
            may end soon (the network returns, the server restarts).
        longest_s: the longest cool-down, except where the server asked for a longer one.
        longest_asked_s: the longest that a server may ask for: a limit per day.
        refused_s: the first cool-down after a refusal of the account or the model, which only a person can mend.
        longest_refused_s: the longest such cool-down.
        shortest_s: the shortest cool-down, even where the server asks for a shorter one.
        healthy_s: after this time without a failure, the next cool-down is a first one again.
        probe_s: a probe that has not reported after this time counts as lost.
    """

    failures: float = 3.0
    window_s: float = 60.0
    cool_down_s: float = 5.0
    absent_s: float = 2.0
    longest_s: float = 120.0
    longest_asked_s: float = 86_400.0
    refused_s: float = 300.0
    longest_refused_s: float = 3600.0
    shortest_s: float = 1.0
    healthy_s: float = 60.0
    probe_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Opening:
    """Why and until when a breaker is open. Times are in seconds, on the breaker's clock.

    Attributes:
        why: the last failure that counted.
        failures: how many failures led to this.
        level: how often the breaker has opened since the endpoint was last well for a while; sets the next cool-down.
        at: when it opened.
        until: the end of the cool-down.
    """

    why: FailureKind
    failures: int
    level: int
    at: float
    until: float


class Breaker:
    """The breaker of one endpoint, or of one model's rate limit there. All fields but `config` are mutable.

    Attributes:
        config: when it opens, and for how long.
        answered_at: when the newest answer was counted, s; -inf: none was.
        account: whose account was refused at the newest opening, where that is known; see `EndpointFailure.account`.
    """

    __slots__ = (
        "_closed_at",
        "_failed_at",
        "_failures",
        "_level",
        "_opened_at",
        "_outcomes",
        "_probe",
        "_probe_until",
        "_until",
        "_why",
        "account",
        "answered_at",
        "config",
    )

    def __init__(self, config: BreakerConfig = BreakerConfig()) -> None:
        self.config = config
        self.answered_at = -inf
        self.account: Hashable = None
        self._outcomes: deque[tuple[float, float]] = deque(maxlen=_OUTCOMES)  # (time, weight; 0: an answer)
        self._opened_at: float | None = None  # None: closed
        self._until = 0.0  # end of the cool-down
        self._level = 0  # openings since the last `healthy_s` without a failure
        self._closed_at = -inf
        self._failed_at = -inf
        self._failures = 0  # failures that led to this cool-down
        self._why = FailureKind.CONNECTION  # the last failure that counted
        self._probe = 0  # number of the latest probe
        self._probe_until = -inf

    def state(self, now: float) -> State:
        """Return whether requests may start the endpoint: all ("closed"), none ("open"), or one as a probe."""
        if self._opened_at is None or now < self._opened_at:  # an earlier `now`: another event loop's clock
            return "closed"
        return "open" if now < self._until or now < self._probe_until else "half_open"

    def rest(self, endpoint: str, now: float) -> CoolDown | None:
        """Return why the endpoint cools down; None when it does not."""
        if self.state(now) != "open":
            return None
        if now >= self._until:
            return CoolDown(endpoint, "probed", str(self._why), self._failures)
        reason: Literal["rate_limit", "failures"] = (
            "rate_limit" if self._why is FailureKind.RATE_LIMIT else "failures"
        )
        return CoolDown(endpoint, reason, str(self._why), self._failures, self._until - now)

    @property
    def opening(self) -> Opening | None:
        """Why and until when the breaker is open, the half-open one included; None: it is closed."""
        if self._opened_at is None:
            return None
        return Opening(self._why, self._failures, self._level, self._opened_at, self._until)

    def reopen(self, known: Opening) -> None:
        """Open as another breaker of the same endpoint is, unless this one stays open for longer."""
        if self._opened_at is None or known.until > self._until:
            self._opened_at, self._until = known.at, known.until
            self._why, self._failures = known.why, known.failures
            self._level = max(self._level, known.level)
            self._failed_at = max(self._failed_at, known.at)
            self._probe_until = -inf
            self._outcomes.clear()

    def claim(self, now: float) -> int | None:
        """Make the calling request the probe of a half-open breaker.

        Returns:
            The probe's number, for `withdraw`; None where the breaker is not half-open and needs no probe.
        """
        if self.state(now) != "half_open":
            return None
        self._probe += 1
        self._probe_until = now + self.config.probe_s
        return self._probe

    def withdraw(self, probe: int) -> None:
        """Let the next request probe: this probe has ended, or was never started (another endpoint wrote first)."""
        if probe == self._probe:
            self._probe_until = -inf

    def answered(self, started_at: float, now: float) -> None:
        """Count an answer: an attempt started at `started_at` has written content, or its request was refused."""
        self.answered_at = now
        if self.state(now) == "closed":
            self._outcomes.append((now, 0.0))
        elif self._is_news(started_at) and now >= self._until:
            self._opened_at = None
            self._closed_at = now
            self._probe_until = -inf
            self._outcomes.clear()

    def stopped(self, started_at: float, now: float, *, overdue: bool) -> None:
        """Handle a probe, started at `started_at`, that was stopped before it wrote anything.

        An overdue probe counts as a failure: otherwise every request would probe a silent endpoint and wait for it.
        After any other probe, the next request may probe.
        """
        if self.state(now) == "closed" or not self._is_news(started_at) or now < self._until:
            return
        if overdue:
            self._failed_at = now
            self._open(self._why, self._failures + 1, now, None)
        else:
            self._probe_until = -inf

    def failed(
        self, kind: FailureKind, started_at: float, now: float, *, retry_after_s: float | None = None
    ) -> None:
        """Count the failure of an attempt.

        Args:
            kind: the kind of failure; one that says nothing about the endpoint does not count.
            started_at: when the attempt started, s; attempts that started before the breaker opened are ignored.
            now: the time, s.
            retry_after_s: the server's Retry-After, where it sent one, s.
        """
        if kind in _ANSWERS:
            self.answered(started_at, now)
            return
        weight = _WEIGHTS.get(kind)
        if weight is None:
            return
        if self.state(now) == "closed":
            config = self.config
            if now - max(self._closed_at, self._failed_at) >= config.healthy_s:
                self._level = 0
            self._failed_at = now
            self._outcomes.append((now, weight))
            recent = [w for at, w in self._outcomes if 0.0 <= now - at < config.window_s]
            failures = sum(1 for w in recent if w)
            if (sum(recent) >= config.failures and 2 * failures >= len(recent)) or weight == inf:
                self._open(kind, failures, now, retry_after_s)
        elif self._is_news(started_at) and now >= self._until:
            self._failed_at = now
            self._open(kind, self._failures + 1, now, retry_after_s)
        elif retry_after_s is not None and kind is FailureKind.RATE_LIMIT:
            self._until = max(self._until, now + min(retry_after_s, self.config.longest_asked_s))

    def _is_news(self, started_at: float) -> bool:
        return self._opened_at is not None and started_at >= self._opened_at

    def _open(self, kind: FailureKind, failures: int, now: float, retry_after_s: float | None) -> None:
        config = self.config
        if kind is FailureKind.RATE_LIMIT and retry_after_s is not None:
            rest_s = min(max(retry_after_s, config.shortest_s), config.longest_asked_s)
        elif kind in REFUSED and retry_after_s is not None:
            rest_s = min(max(retry_after_s, config.shortest_s), config.longest_refused_s)
        elif kind in REFUSED:
            rest_s = min(config.refused_s * 2.0 ** min(self._level, 16), config.longest_refused_s)
        else:
            first_s = config.absent_s if kind in _ABSENT else config.cool_down_s
            rest_s = min(first_s * 2.0 ** min(self._level, 16), config.longest_s)
        self._level += 1
        self._opened_at = now
        self._until = now + rest_s
        self._probe_until = -inf
        self._failures = failures
        self._why = kind
        self._outcomes.clear()
