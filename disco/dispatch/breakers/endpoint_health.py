"""The health of a client's endpoints: one breaker for each endpoint, for each model's rate limit, account and model.

An account or a model that is refused says nothing of the same server with another key, or with another model. So these
breakers belong to the key, too.

`Health` outlives requests. Each request makes a `HealthWatch` from it. The watch says which endpoints cool down and
which may be probed, and the session reports the outcome of every attempt to it. The live client and replay use the
same two classes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from disco.dispatch.breakers.circuit_breaker import Breaker, BreakerConfig
from disco.errors import EndpointFailure, FailureKind
from disco.plan import CoolDown, Plan

__all__ = ["AccountKey", "Asked", "BreakerKeys", "Health", "HealthWatch", "ModelKey"]

MOST_BREAKERS = 256  # callers of `disco serve` may send any model name; the oldest breakers are dropped


class Asked(NamedTuple):
    """An endpoint as one request asks it.

    Attributes:
        identity: what tells the endpoint from all others (the same name may later mean another server).
        model: the model that is requested from it.
        account: whose account the request is sent for; None where the endpoint knows no accounts.
    """

    identity: Hashable
    model: str
    account: Hashable = None


class AccountKey(NamedTuple):
    """The key of an account's breaker."""

    identity: Hashable
    account: Hashable


class ModelKey(NamedTuple):
    """The key of the breaker of a model, as an account is given it."""

    identity: Hashable
    account: Hashable
    model: str


class BreakerKeys(NamedTuple):
    """The keys of the breakers that say whether an endpoint may be asked: its own, and of what it is asked for."""

    endpoint: Hashable
    limit: Hashable
    account: AccountKey
    model: ModelKey


class Health:
    """All breakers of a client. Mutable: `_breakers`, each made when its first outcome is reported."""

    __slots__ = ("_breakers", "_config")

    def __init__(self, config: BreakerConfig = BreakerConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._breakers: dict[Hashable, Breaker] = {}

    def watch(self, endpoints: Mapping[str, Asked]) -> HealthWatch:
        """Return one request's view of the breakers; `endpoints` by name."""
        return HealthWatch(
            self,
            {
                name: BreakerKeys(one, (one, model), AccountKey(one, account), ModelKey(one, account, model))
                for name, (one, model, account) in endpoints.items()
            },
        )

    def find(self, key: Hashable) -> Breaker | None:
        """Return the breaker of this key; None: there is none yet."""
        return self._breakers.get(key)

    def forget(self, key: Hashable) -> None:
        """Drop the breaker of this key: what it stood for has changed."""
        self._breakers.pop(key, None)

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
        keys: by endpoint name, the keys of its breakers.
        claimed: the breakers that this request probes, with the probes' numbers. Mutable.
    """

    health: Health = field(repr=False)
    keys: Mapping[str, BreakerKeys]
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
            other = self.health.find(key)
            if other is not None:
                other.answered(started_at, now)

    def stopped(self, endpoint: str, started_at: float, now: float, *, overdue: bool) -> None:
        """Handle an attempt that was stopped before it wrote anything; see `Breaker.stopped`."""
        for key in self.keys.get(endpoint, ()):
            breaker = self.health.find(key)
            if breaker is not None:
                breaker.stopped(started_at, now, overdue=overdue)

    def failed(self, endpoint: str, failure: EndpointFailure, started_at: float, now: float) -> None:
        """Count an attempt's failure.

        A rate limit, a refused account and a missing model count only for the breaker of their own: the endpoint itself
        is reachable.
        """
        keys = self.keys.get(endpoint)
        if keys is None:
            return
        own = {
            FailureKind.RATE_LIMIT: keys.limit,
            FailureKind.ACCOUNT: keys.account,
            FailureKind.MODEL: keys.model,
        }.get(failure.kind)
        if own is None:
            self.health.make(keys.endpoint).failed(failure.kind, started_at, now)
            return
        self.health.make(keys.endpoint).answered(started_at, now)
        breaker = self.health.make(own)
        breaker.failed(failure.kind, started_at, now, retry_after_s=failure.retry_after_s)
        breaker.account = failure.account or breaker.account

    def close(self) -> None:
        """Withdraw this request's probes at the end of its answer. Idempotent."""
        for breaker, probe in self.claimed:
            breaker.withdraw(probe)
        self.claimed.clear()
