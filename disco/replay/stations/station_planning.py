"""Planners of a replay's requests: a dispatcher with a preset, a function, or a planner that knows the workload."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from disco.candidate import Candidate, Place
from disco.dispatch import Dispatcher, Features, Plan, eligible
from disco.errors import ConfigurationError, nearest
from disco.plan import CoolDown, Spend

__all__ = ["HoldsBudget", "PlanFunction", "Planner", "planner_of"]

PlanFunction = Callable[[Features, Sequence[Candidate]], Plan]
"""Plan one request for the stations that may serve it (at least one), in the order in which they were given."""


@runtime_checkable
class Planner(Protocol):
    """Plans requests one by one, in order of arrival."""

    def plan_row(
        self,
        row: int,
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],
    ) -> Plan:
        """Return the plan of one request.

        Args:
            row: number of the request; a planner that knows the workload (an oracle, a recording) looks it up.
            features: the request's lengths.
            candidates: all stations, in their state when the request arrives.
            resting: stations whose breaker is open, by name.
            probing: stations whose cool-down is over and that this request may try.

        Raises:
            NoEndpointError: no station may serve the request; it counts as failed.
        """
        ...


@runtime_checkable
class HoldsBudget(Protocol):
    """A planner with a budget, which is to be told where attempts were started in the end."""

    def settle(self, spend: Spend | None, places: Collection[Place]) -> None:
        """See `Dispatcher.settle`."""
        ...


def planner_of(plan: Dispatcher | PlanFunction | Planner) -> Planner:
    """Return a planner for any of the accepted types."""
    if isinstance(plan, Dispatcher):
        return _ByDispatcher(plan)
    return plan if isinstance(plan, Planner) else _ByFunction(plan)


@dataclass(frozen=True, slots=True)
class _ByDispatcher:
    """Plan with a dispatcher, as in a live client."""

    dispatcher: Dispatcher

    def plan_row(
        self,
        row: int,  # noqa: ARG002 - a dispatcher must not know more than a live client
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],
    ) -> Plan:
        return self.dispatcher.plan(features, candidates, {}, resting=resting, probing=probing)

    def settle(self, spend: Spend | None, places: Collection[Place]) -> None:
        self.dispatcher.settle(spend, places)


@dataclass(frozen=True, slots=True)
class _ByFunction:
    """Plan with a function. Which stations may serve a request, and which cool down, is decided before the call."""

    function: PlanFunction

    def plan_row(
        self,
        row: int,  # noqa: ARG002 - a function of the request alone
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],  # noqa: ARG002 - a station that is probed takes part like any other
    ) -> Plan:
        # A trace tells how long a prompt is.
        counted = {c.name: features.prompt_tokens for c in candidates if c.context_tokens is not None}
        able = eligible(replace(features, counted=counted) if counted else features, candidates, {})
        # As under a dispatcher: a station that cools down takes no part as long as another one may serve the request.
        awake = [c for c in able if c.name not in resting] or able
        plan = self.function(features, awake)
        named = [
            *(s.endpoint for s in plan.starts),
            *plan.fallbacks,
            *(m.target for m in plan.migrations.values()),
        ]
        _check_names(named, [c.name for c in candidates])
        deprioritised = [c.name for c in able if c not in awake and c.name not in named]
        if not deprioritised:
            return plan
        return replace(
            plan,
            fallbacks=(*plan.fallbacks, *deprioritised),
            deprioritised=tuple(resting[name] for name in deprioritised),
        )


def _check_names(named: Iterable[str], names: Collection[str]) -> None:
    for name in named:
        if name not in names:
            raise ConfigurationError(f"the plan names the station {name!r}. {nearest(name, names)}")
