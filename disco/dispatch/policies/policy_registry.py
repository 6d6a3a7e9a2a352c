"""Policies by name: disco's own, and those that installed packages add as entry points of `disco.policies`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

import numpy as np

from disco.candidate import Candidate
from disco.dispatch.policies.baselines import DeviceOnly, Race, ServerOnly
from disco.dispatch.policies.length_threshold import LengthThreshold
from disco.dispatch.policies.optimal_wait import OptimalWait
from disco.dispatch.policies.policy import Policy, PolicyFactory
from disco.dispatch.policies.random_split import RandomSplit
from disco.dispatch.policies.wait_time import WaitTime
from disco.errors import ConfigurationError, nearest
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["ASSIST", "AUTO", "BUILT_IN", "CASCADE", "build_policy", "is_known_policy", "known_policies"]

AUTO: Final = "auto"
"""Not a policy itself: the regime selects wait_time or length_threshold for each request."""

ASSIST: Final = "assist"
"""Divides an answer between two sides (`dispatch/assist.py`), and is "auto" where it cannot."""

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

_GROUP = "disco.policies"


def known_policies() -> tuple[str, ...]:
    """Return every name of a policy for a device and a server, sorted. A preset may also name `ASSIST` or `CASCADE`."""
    return tuple(sorted({AUTO, *BUILT_IN, *(point.name for point in entry_points(group=_GROUP))}))


def is_known_policy(name: str) -> bool:
    """Whether a policy for a device and a server has this name; packages are searched only for names not disco's."""
    return name == AUTO or name in BUILT_IN or _entry_point(name) is not None


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

    Raises:
        ConfigurationError: no policy has that name, or the package that provides it cannot be loaded.
    """
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
    point = _entry_point(name)
    if point is None:
        raise ConfigurationError(f"no policy is called {name!r}. {nearest(name, known_policies())}")
    try:
        factory: PolicyFactory = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the policy {name!r} names {point.value}, which cannot be imported; "
            "reinstall the package that provides it"
        ) from error
    return factory(lengths=lengths, ttft=ttft, device=device, budget=budget, tail=tail, rng=rng)


def _entry_point(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=_GROUP, name=name)), None)
