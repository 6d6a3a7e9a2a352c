"""Who plans the requests of a replay: a dispatcher with a preset, a function, or something that knows more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from disco.dispatch import Dispatcher, Features, Plan, eligible
from disco.errors import ConfigurationError, nearest
from disco.plan import Candidate, CoolDown

__all__ = ["PlanFunction", "Planner", "planner_of"]

PlanFunction = Callable[[Features, Sequence[Candidate]], Plan]
"""Plans one request for the stations that may serve it, at least one, in the order in which they were given."""


@runtime_checkable
class Planner(Protocol):
    """Plans request by request, in order of arrival."""

    def plan_row(
        self,
        row: int,
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],
    ) -> Plan:
        """The plan of one request.

        Args:
            row: which one; what knows the workload (an oracle, a recording) can look it up.
            features: its lengths.
            candidates: all stations as they stand when it comes.
            resting: stations whose breaker is open, by name.
            probing: stations whose cool-down is over and may be tried by this request.

        Raises:
            NoEndpointError: no station may serve it; it counts as failed.
        """
        ...


def planner_of(plan: Dispatcher | PlanFunction | Planner) -> Planner:
    """What plans the requests, whatever was given for it."""
    if isinstance(plan, Dispatcher):
        return _ByDispatcher(plan)
    return plan if isinstance(plan, Planner) else _ByFunction(plan)


@dataclass(frozen=True, slots=True)
class _ByDispatcher:
    """As it plans live."""

    dispatcher: Dispatcher

    def plan_row(
        self,
        row: int,  # noqa: ARG002 - it must not know more than a live client
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],
    ) -> Plan:
        return self.dispatcher.plan(features, candidates, {}, resting=resting, probing=probing)


@dataclass(frozen=True, slots=True)
class _ByFunction:
    """A function decides; which stations may serve a request at all, and which rest, is decided before."""

    function: PlanFunction

    def plan_row(
        self,
        row: int,  # noqa: ARG002 - a function of the request alone
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],  # noqa: ARG002 - a station on trial takes part as any other
    ) -> Plan:
        able = eligible(features, candidates, {})
        # As under a dispatcher: a station that rests takes no part as long as another one may serve the request.
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
