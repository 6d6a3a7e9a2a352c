"""From pools to members: which targets and drafters there are, what they cost, who is linked to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from disco.errors import ConfigurationError
from papers.fleet.fleet_scenario import DrafterPool, FleetScenario, Link, TargetPool
from papers.fleet.measured_costs import load_costs
from papers.fleet.pass_costs import PassCosts, gpu_costs, step_costs

__all__ = ["Drafting", "Serving", "Topology", "expand"]

Pool = TypeVar("Pool", TargetPool, DrafterPool)


@dataclass(frozen=True, slots=True)
class Serving:
    """A target: its pool, its costs, and those of the draft model beside it (mode "fused")."""

    pool: TargetPool
    costs: PassCosts
    draft_costs: PassCosts | None


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter: its pool, its costs, and the numbers of the targets with its vocabulary."""

    pool: DrafterPool
    costs: PassCosts
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """A fleet's members; they have the numbers of their places.

    Attributes:
        targets: all targets.
        drafters: all drafters, of all pools in turn, so that any number of first ones is mixed.
        links: by (name of the drafter's pool, name of the target's pool).
    """

    targets: tuple[Serving, ...]
    drafters: tuple[Drafting, ...]
    links: dict[tuple[str, str], Link]


def expand(scenario: FleetScenario) -> Topology:
    """Return the members of a fleet.

    Raises:
        ConfigurationError: costs that are not known, a drafter without a target of its vocabulary, or a pair without a
            link.
    """
    auto = scenario.auto_topology
    targets: list[Serving] = []
    for target_pool, count in _counts(scenario.targets, auto.targets):
        costs = _costs("targets", target_pool)
        beside = _draft_costs(target_pool) if scenario.mode == "fused" else None
        targets += [Serving(target_pool, costs, beside)] * count
    by_pool: list[tuple[Drafting, int]] = []
    for drafter_pool, count in _counts(scenario.drafters, auto.drafters):
        own = tuple(n for n, one in enumerate(targets) if one.pool.vocabulary == drafter_pool.vocabulary)
        if not own and scenario.mode != "alone":
            known = sorted({one.pool.vocabulary for one in targets})
            raise ConfigurationError(
                f"drafters.{drafter_pool.name}: no target has the vocabulary {drafter_pool.vocabulary!r}; targets "
                f"have {', '.join(map(repr, known))}. A draft is of use only to a target with the same vocabulary."
            )
        served = own if scenario.mode != "alone" else tuple(range(len(targets)))
        by_pool.append((Drafting(drafter_pool, _costs("drafters", drafter_pool), served), count))
    links = {
        (drafters.name, targets_.name): _link(scenario, drafters, targets_)
        for drafters in scenario.drafters
        for targets_ in scenario.targets
        if drafters.vocabulary == targets_.vocabulary or scenario.mode == "alone"
    }
    return Topology(tuple(targets), tuple(_mixed(by_pool)), links)


def _counts(pools: Sequence[Pool], total: int | None) -> list[tuple[Pool, int]]:
    """Return how many members each pool has: its count, or its share of `total` by largest remainders."""
    shares = sum(pool.share or 0.0 for pool in pools)
    exact = [(total or 0) * (pool.share or 0.0) / (shares or 1.0) for pool in pools]
    counts = [int(each + 1e-9) for each in exact]
    by_remainder = sorted(range(len(pools)), key=lambda n: (counts[n] - exact[n], n))
    left = (total or 0) - sum(counts)
    for n in [n for n in by_remainder if pools[n].share][:left]:
        counts[n] += 1
    return [(pool, pool.count or count) for pool, count in zip(pools, counts, strict=True)]


def _mixed(by_pool: Sequence[tuple[Drafting, int]]) -> list[Drafting]:
    """Return all drafters such that pools take turns by their sizes."""
    places = [((n + 0.5) / count, order) for order, (_, count) in enumerate(by_pool) for n in range(count)]
    return [by_pool[order][0] for _, order in sorted(places)]


def _costs(what: str, pool: TargetPool | DrafterPool) -> PassCosts:
    overhead_s = pool.overhead_ms / 1e3
    try:
        if pool.steps_ms:
            return step_costs([(rows, ms / 1e3) for rows, ms in pool.steps_ms], overhead_s=overhead_s)
        if pool.costs:
            return load_costs(pool.costs, pool.model or None, overhead_s=overhead_s)
        return gpu_costs(
            pool.model,
            pool.hardware,
            pool.gpus,
            overhead_s=overhead_s,
            all_reduce=pool.all_reduce,
            launch_s=pool.launch_ms / 1e3,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}.{pool.name}: {error}") from None


def _draft_costs(pool: TargetPool) -> PassCosts:
    if pool.draft_steps_ms:
        return step_costs([(rows, ms / 1e3) for rows, ms in pool.draft_steps_ms])
    if not pool.hardware:
        raise ConfigurationError(
            f"targets.{pool.name}: draft_model needs hardware; give draft_steps_ms instead"
        )
    try:
        return gpu_costs(pool.draft_model, pool.hardware, pool.draft_gpus, all_reduce=pool.all_reduce)
    except ConfigurationError as error:
        raise ConfigurationError(f"targets.{pool.name}: draft_model: {error}") from None


def _link(scenario: FleetScenario, drafters: DrafterPool, targets: TargetPool) -> Link:
    for link in scenario.links:
        if link.drafters in ("*", drafters.name) and link.targets in ("*", targets.name):
            return link
    if scenario.auto_topology.link is not None:
        return scenario.auto_topology.link
    raise ConfigurationError(
        f"there is no link between drafters.{drafters.name} and targets.{targets.name}; add [[links]] with rtt_ms, "
        "or [auto_topology.link] for all pairs"
    )
