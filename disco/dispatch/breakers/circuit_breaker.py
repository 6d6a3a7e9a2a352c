"""When an endpoint that fails is left alone, and when it is tried again: a circuit breaker without a clock.

Closed, failures of the endpoint's own are weighed against its answers; enough of them open it. Open, it rests for a
cool-down. Then it is half-open: one request at a time may try it. An answer closes it, a failure opens it again for
twice as long. A cool-down that has grown goes back to its beginning only once the endpoint has been well for a while,
so whatever the pattern of failures, it does not flap.

Plain data and arithmetic: times are passed in, on one clock, in seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Literal

from disco.errors import FailureKind
from disco.plan import CoolDown

__all__ = ["Breaker", "BreakerConfig", "State"]

State = Literal["closed", "open", "half_open"]

# How much of `BreakerConfig.failures` one failure is. An endpoint that cannot be reached at all counts more than one
# that answers badly.
_WEIGHTS = {
    FailureKind.CONNECTION: 1.5,
    FailureKind.TIMEOUT: 1.5,
    FailureKind.STALLED: 1.0,
    FailureKind.SERVER: 1.0,
    FailureKind.GARBAGE: 1.0,
    FailureKind.INCOMPLETE: 1.0,
    FailureKind.CRASHED: 1.0,
    FailureKind.RATE_LIMIT: inf,  # it said itself that it wants to be left alone
}
_ABSENT = frozenset({FailureKind.CONNECTION, FailureKind.TIMEOUT})
# Refusals of one request: an endpoint that refuses is there and works.
_ANSWERS = frozenset(
    {
        FailureKind.AUTHENTICATION,
        FailureKind.BAD_REQUEST,
        FailureKind.CONTENT_FILTER,
        FailureKind.CONTEXT_LENGTH,
    }
)
_OUTCOMES = 20  # that are weighed at most


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """What a breaker puts up with. Seconds, and failures.

    Attributes:
        failures: that many within `window_s` open it, if they are half of all outcomes there at least. Refused
            connections and time-outs count one and a half times, a rate limit opens it at once.
        window_s: how long an outcome counts.
        cool_down_s: the first rest; each further one is twice as long.
        absent_s: the first cool-down of an endpoint that could not be reached, which is over sooner (a network that
            comes back, a server that restarts).
        longest_s: no rest is longer, except one that the server asked for.
        shortest_s: no rest is shorter, whatever the server asks for.
        healthy_s: after so long without a failure the next rest is a first one again.
        probe_s: a probe that has not reported after so long is taken for lost.
    """

    failures: float = 3.0
    window_s: float = 60.0
    cool_down_s: float = 5.0
    absent_s: float = 2.0
    longest_s: float = 120.0
    shortest_s: float = 1.0
    healthy_s: float = 60.0
    probe_s: float = 30.0


class Breaker:
    """The breaker of one endpoint, or of one model's rate limit there. All fields but `config` are mutable."""

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
        "config",
    )

    def __init__(self, config: BreakerConfig = BreakerConfig()) -> None:
        self.config = config
        self._outcomes: deque[tuple[float, float]] = deque(maxlen=_OUTCOMES)  # (time, weight; 0: an answer)
        self._opened_at: float | None = None  # None: closed
        self._until = 0.0  # end of the cool-down
        self._level = 0  # openings since it was last well for a while
        self._closed_at = -inf
        self._failed_at = -inf
        self._failures = 0  # that led to this rest
        self._why = FailureKind.CONNECTION  # the last failure that counted
        self._probe = 0  # number of the latest probe
        self._probe_until = -inf

    def state(self, now: float) -> State:
        """Whether it may be started: always, not at all, or as a probe."""
        if self._opened_at is None or now < self._opened_at:  # a clock that went back belongs to another loop
            return "closed"
        return "open" if now < self._until or now < self._probe_until else "half_open"

    def rest(self, endpoint: str, now: float) -> CoolDown | None:
        """Why it rests; None when it does not."""
        if self.state(now) != "open":
            return None
        if now >= self._until:
            return CoolDown(endpoint, "probed", str(self._why), self._failures)
        reason: Literal["rate_limit", "failures"] = (
            "rate_limit" if self._why is FailureKind.RATE_LIMIT else "failures"
        )
        return CoolDown(endpoint, reason, str(self._why), self._failures, self._until - now)

    def claim(self, now: float) -> int | None:
        """Become the probe of a half-open breaker.

        Returns:
            A number to `withdraw` it with; None where none is needed: every request may start it, or none.
        """
        if self.state(now) != "half_open":
            return None
        self._probe += 1
        self._probe_until = now + self.config.probe_s
        return self._probe

    def withdraw(self, probe: int) -> None:
        """A probe is over, or was never started (another endpoint spoke first): the next request may probe."""
        if probe == self._probe:
            self._probe_until = -inf

    def answered(self, started_at: float, now: float) -> None:
        """An attempt that was started at `started_at` has written something, or was refused for its own fault."""
        if self.state(now) == "closed":
            self._outcomes.append((now, 0.0))
        elif self._is_news(started_at) and now >= self._until:
            self._opened_at = None
            self._closed_at = now
            self._probe_until = -inf
            self._outcomes.clear()

    def stopped(self, started_at: float, now: float, *, overdue: bool) -> None:
        """An attempt that was started at `started_at` was stopped before it said anything.

        Of a probe that was overdue this is a failure like any other: else a mute endpoint would be tried, and waited
        for, by every single request.
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
        """An attempt that was started at `started_at` has failed.

        Args:
            kind: of failure; those that say nothing about the endpoint do not count.
            started_at: what began before the endpoint was opened is no news.
            now: the time.
            retry_after_s: how long the server asks to be left alone, where it did.
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
            self._until = max(self._until, now + retry_after_s)

    def _is_news(self, started_at: float) -> bool:
        return self._opened_at is not None and started_at >= self._opened_at

    def _open(self, kind: FailureKind, failures: int, now: float, retry_after_s: float | None) -> None:
        config = self.config
        if kind is FailureKind.RATE_LIMIT and retry_after_s is not None:
            rest_s = max(retry_after_s, config.shortest_s)
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
