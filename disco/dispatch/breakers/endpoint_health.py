"""How the endpoints of a client stand: one breaker for each, and one for each model's rate limit.

`Health` outlives requests. Each request takes a `HealthWatch` of it. The watch says which endpoints cool down
and which may be probed, and the session tells it what comes of every attempt. The live client and replay use
the same two.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from disco.dispatch.breakers.circuit_breaker import Breaker, BreakerConfig
from disco.errors import EndpointFailure, FailureKind
from disco.plan import CoolDown, Plan

__all__ = ["Health", "HealthWatch"]

MOST_BREAKERS = 256  # callers of `disco serve` may make up any model's name; the oldest are forgotten


class Health:
    """Mutable: `_breakers`, made when they are first told something."""

    __slots__ = ("_breakers", "_config")

    def __init__(self, config: BreakerConfig = BreakerConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._breakers: dict[Hashable, Breaker] = {}

    def watch(self, endpoints: Mapping[str, Hashable], model: str) -> HealthWatch:
        """One request's view.

        Args:
            endpoints: by name, what makes an endpoint the same one (a name may come to stand for another server).
            model: that is asked for; rate limits are a model's own.
        """
        return HealthWatch(self, {name: (key, (key, model)) for name, key in endpoints.items()})

    def find(self, key: Hashable) -> Breaker | None:
        """The breaker there is."""
        return self._breakers.get(key)

    def make(self, key: Hashable) -> Breaker:
        """The breaker; it comes into being now at the latest."""
        breaker = self._breakers.get(key)
        if breaker is None:
            if len(self._breakers) >= MOST_BREAKERS:
                del self._breakers[next(iter(self._breakers))]
            breaker = self._breakers[key] = Breaker(self._config)
        return breaker


@dataclass(slots=True)
class HealthWatch:
    """One request's view, and the ear of its session; see the module.

    Attributes:
        health: of all.
        keys: by endpoint name, the keys of its breaker and of its rate limit's.
        claimed: the probes this request is, with their numbers. Mutable.
    """

    health: Health = field(repr=False)
    keys: Mapping[str, tuple[Hashable, Hashable]]
    claimed: list[tuple[Breaker, int]] = field(default_factory=list)

    def look(self, now: float, offline: Collection[str] = ()) -> tuple[dict[str, CoolDown], set[str]]:
        """Which endpoints cool down, and which may be probed by this request.

        Args:
            now: the time.
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
        """The request goes by this plan: what it starts on trial is its probe, and no other request's."""
        for start in plan.starts:
            for key in self.keys.get(start.endpoint, ()):
                breaker = self.health.find(key)
                probe = None if breaker is None else breaker.claim(now)
                if breaker is not None and probe is not None:
                    self.claimed.append((breaker, probe))

    def answered(self, endpoint: str, started_at: float, now: float) -> None:
        """An attempt wrote its first content."""
        for key in self.keys.get(endpoint, ())[:1]:
            self.health.make(key).answered(started_at, now)
        for key in self.keys.get(endpoint, ())[1:]:
            limit = self.health.find(key)
            if limit is not None:
                limit.answered(started_at, now)

    def stopped(self, endpoint: str, started_at: float, now: float, *, overdue: bool) -> None:
        """An attempt was stopped before it wrote anything."""
        for key in self.keys.get(endpoint, ()):
            breaker = self.health.find(key)
            if breaker is not None:
                breaker.stopped(started_at, now, overdue=overdue)

    def failed(self, endpoint: str, failure: EndpointFailure, started_at: float, now: float) -> None:
        """An attempt failed."""
        if endpoint not in self.keys:
            return
        key, limit_key = self.keys[endpoint]
        if failure.kind is FailureKind.RATE_LIMIT:
            self.health.make(key).answered(started_at, now)  # it is there
            self.health.make(limit_key).failed(
                failure.kind, started_at, now, retry_after_s=failure.retry_after_s
            )
        else:
            self.health.make(key).failed(failure.kind, started_at, now)

    def close(self) -> None:
        """The answer is over. Idempotent."""
        for breaker, probe in self.claimed:
            breaker.withdraw(probe)
        self.claimed.clear()
