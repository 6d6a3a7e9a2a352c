"""The health of a client's endpoints: one breaker for each endpoint, and one for each model's rate limit.

`Health` outlives requests. Each request makes a `HealthWatch` from it. The watch says which endpoints cool down and
which may be probed, and the session reports the outcome of every attempt to it. The live client and replay use the
same two classes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from disco.dispatch.breakers.circuit_breaker import Breaker, BreakerConfig
from disco.errors import EndpointFailure, FailureKind
from disco.plan import CoolDown, Plan

__all__ = ["Health", "HealthWatch"]

MOST_BREAKERS = 256  # callers of `disco serve` may send any model name; the oldest breakers are dropped


class Health:
    """All breakers of a client. Mutable: `_breakers`, each made when its first outcome is reported."""

    __slots__ = ("_breakers", "_config")

    def __init__(self, config: BreakerConfig = BreakerConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._breakers: dict[Hashable, Breaker] = {}

    def watch(self, endpoints: Mapping[str, Hashable], model: str) -> HealthWatch:
        """Return one request's view of the breakers.

        Args:
            endpoints: by name, a key that identifies the endpoint (the same name may later mean another server).
            model: name of the model asked for; each model has its own rate limit.
        """
        return HealthWatch(self, {name: (key, (key, model)) for name, key in endpoints.items()})

    def find(self, key: Hashable) -> Breaker | None:
        """Return the breaker of this key; None: there is none yet."""
        return self._breakers.get(key)

    def make(self, key: Hashable) -> Breaker:
        """Return the breaker of this key, made now if there is none yet."""
        breaker = self._breakers.get(key)
        if breaker is None:
            if len(self._breakers) >= MOST_BREAKERS:
                del self._breakers[next(iter(self._breakers))]
            breaker = self._breakers[key] = Breaker(self._config)
        return breaker


@dataclass(slots=True)
class HealthWatch:
    """One request's view of the breakers; its session reports to it. See the module's docstring.

    Attributes:
        health: the breakers of all endpoints.
        keys: by endpoint name, the key of the endpoint's breaker and the key of its rate limit's breaker.
        claimed: the breakers that this request probes, with the probes' numbers. Mutable.
    """

    health: Health = field(repr=False)
    keys: Mapping[str, tuple[Hashable, Hashable]]
    claimed: list[tuple[Breaker, int]] = field(default_factory=list)

    def look(self, now: float, offline: Collection[str] = ()) -> tuple[dict[str, CoolDown], set[str]]:
        """Return which endpoints cool down, by name, and the names of those that this request may probe.

        Args:
            now: the time, s.
            offline: names of endpoints that this machine has no route to.
        """
        resting: dict[str, CoolDown] = {}
        probing: set[str] = set()
        for name, keys in self.keys.items():
            if name in offline:
                resting[name] = CoolDown(name, "offline")
                continue
            for key in keys:
                breaker = self.health.find(key)
                state = "closed" if breaker is None else breaker.state(now)
                if breaker is None or state == "closed":
                    continue
                if state == "half_open":
                    probing.add(name)
                elif name not in resting:
                    rest = breaker.rest(name, now)
                    assert rest is not None
                    resting[name] = rest
        return resting, probing - resting.keys()

    def claim(self, plan: Plan, now: float) -> None:
        """Make this request the probe of every half-open breaker whose endpoint the plan starts."""
        for start in plan.starts:
            for key in self.keys.get(start.endpoint, ()):
                breaker = self.health.find(key)
                probe = None if breaker is None else breaker.claim(now)
                if breaker is not None and probe is not None:
                    self.claimed.append((breaker, probe))

    def answered(self, endpoint: str, started_at: float, now: float) -> None:
        """Count an attempt's first content as an answer of its endpoint."""
        for key in self.keys.get(endpoint, ())[:1]:
            self.health.make(key).answered(started_at, now)
        for key in self.keys.get(endpoint, ())[1:]:
            limit = self.health.find(key)
            if limit is not None:
                limit.answered(started_at, now)

    def stopped(self, endpoint: str, started_at: float, now: float, *, overdue: bool) -> None:
        """Handle an attempt that was stopped before it wrote anything; see `Breaker.stopped`."""
        for key in self.keys.get(endpoint, ()):
            breaker = self.health.find(key)
            if breaker is not None:
                breaker.stopped(started_at, now, overdue=overdue)

    def failed(self, endpoint: str, failure: EndpointFailure, started_at: float, now: float) -> None:
        """Count an attempt's failure; a rate limit counts only for the breaker of the model's rate limit."""
        if endpoint not in self.keys:
            return
        key, limit_key = self.keys[endpoint]
        if failure.kind is FailureKind.RATE_LIMIT:
            self.health.make(key).answered(started_at, now)  # the endpoint itself is reachable
            self.health.make(limit_key).failed(
                failure.kind, started_at, now, retry_after_s=failure.retry_after_s
            )
        else:
            self.health.make(key).failed(failure.kind, started_at, now)

    def close(self) -> None:
        """Withdraw this request's probes at the end of its answer. Idempotent."""
        for breaker, probe in self.claimed:
            breaker.withdraw(probe)
        self.claimed.clear()
