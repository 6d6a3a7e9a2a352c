"""Policies by name: disco's own, and those that installed packages add as entry points of `disco.policies`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from disco._plugins import POLICIES, Installed, find, installed
from disco.candidate import Candidate
from disco.dispatch.policies.baselines import DeviceOnly, Race, ServerOnly
from disco.dispatch.policies.length_threshold import LengthThreshold
from disco.dispatch.policies.optimal_wait import OptimalWait
from disco.dispatch.policies.plugged_policy import check_plugged, make_plugged, takes
from disco.dispatch.policies.policy import Policy
from disco.dispatch.policies.random_split import RandomSplit
from disco.dispatch.policies.wait_time import WaitTime
from disco.errors import ConfigurationError, nearest
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = [
    "ASSIST",
    "AUTO",
    "BUILT_IN",
    "CASCADE",
    "OWN_NAMES",
    "SERVER_ONLY",
    "build_policy",
    "check_options",
    "has_budget",
    "is_known_policy",
    "known_policies",
]

AUTO: Final = "auto"
"""Not a policy itself: the regime selects wait_time or length_threshold for each request."""

ASSIST: Final = "assist"
"""Divides an answer between two sides (`dispatch/assist.py`), and is "auto" where it cannot."""

SERVER_ONLY: Final = "server_only"
"""The server starts; under it, servers take over before devices."""

CASCADE: Final = "cascade"
"""Not a `Policy` either: it decides between any number of endpoints (`dispatch/cascade.py`), not between two sides."""

BUILT_IN: Final = (
    "device_only",
    "length_threshold",
    "optimal_wait",
    "race",
    "random",
    "server_only",
    "wait_time",
)

OWN_NAMES: Final = frozenset((*BUILT_IN, ASSIST, AUTO, CASCADE))
"""Names that no package can take: they are disco's."""

_BUDGETLESS = frozenset(("device_only", "race", "server_only"))
_NO_OPTIONS: Mapping[str, Any] = {}


def known_policies() -> tuple[str, ...]:
    """Return every name of a policy for a device and a server, sorted. A preset may also name `ASSIST` or `CASCADE`."""
    return tuple(sorted({AUTO, *BUILT_IN, *(one.name for one in installed(POLICIES))}))


def is_known_policy(name: str) -> bool:
    """Whether a policy for a device and a server has this name; packages are searched only for names not disco's."""
    return name == AUTO or name in BUILT_IN or _plugged(name) is not None


def has_budget(name: str) -> bool:
    """Whether a policy plans with a budget; one of another package does if its factory names it.

    A policy that is not known here is taken to have one.

    Raises:
        ConfigurationError: the package that adds the policy is at fault.
    """
    if name == AUTO or name in BUILT_IN:
        return name not in _BUDGETLESS
    found = _plugged(name)
    return found is None or "budget" in takes(found)[0]


def check_options(name: str, options: Mapping[str, Any]) -> Policy | None:
    """Check the settings of a policy's own options; disco's policies have none.

    Returns:
        The policy of another package, made on made-up figures; None for one of disco's.

    Raises:
        ConfigurationError: an option is unknown or refused, or the package that adds the policy is at fault.
    """
    found = None if name in OWN_NAMES else _plugged(name)
    if found is not None:
        return check_plugged(found, options)
    if options:
        raise ConfigurationError(
            f"the policy {name!r} has no options of its own; remove {', '.join(options)}"
        )
    return None


def build_policy(
    name: str,
    *,
    lengths: Lengths,
    ttft: Empirical,
    device: Candidate,
    budget: float,
    tail: float,
    rng: np.random.Generator,
    server_constrained: bool,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> Policy:
    """Make a policy by name.

    Args:
        name: any of `known_policies()` but "auto".
        lengths: prompt lengths, tokens.
        ttft: the server's time to first token, s.
        device: the device, with its speed and price.
        budget: share b of all prompt tokens that the constrained endpoint may process.
        tail: share α of the budget kept for the tail.
        rng: the only source of randomness.
        server_constrained: which side the budget of "random" limits.
        options: settings of a policy of another package, by name.

    Raises:
        ConfigurationError: no policy has that name, the package that adds it is at fault, or an option is.
    """
    if options and name in BUILT_IN:
        check_options(name, options)
    match name:
        case "device_only":
            return DeviceOnly()
        case "server_only":
            return ServerOnly()
        case "race":
            return Race()
        case "random":
            return RandomSplit(
                budget=budget, constrained="server" if server_constrained else "device", rng=rng
            )
        case "length_threshold":
            return LengthThreshold.fitted(lengths, budget=budget, rng=rng)
        case "wait_time":
            return WaitTime.fitted(lengths, ttft, budget=budget, tail=tail, rng=rng)
        case "optimal_wait":
            return OptimalWait(lengths, ttft, device, budget=budget, tail=tail, rng=rng)
    found = _plugged(name)
    if found is None:
        raise ConfigurationError(f"no policy is called {name!r}. {nearest(name, known_policies())}")
    return make_plugged(
        found, options, lengths=lengths, ttft=ttft, device=device, budget=budget, tail=tail, rng=rng
    )


def _plugged(name: str) -> Installed | None:
    return find(POLICIES, name)
