"""What a policy is, and the two small tools that the fitted ones share."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from disco.dispatch.features import Features
from disco.dispatch.plan import Candidate, Start
from disco.profiles.distributions import Empirical
from disco.profiles.lengths import Lengths

__all__ = ["Diffusion", "FittedPolicy", "Policy", "PolicyFactory", "alone", "check_share"]


class Policy(Protocol):
    """Decides which of one device and one server start, and when."""

    @property
    def name(self) -> str:
        """What presets and route records call it."""
        ...

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        """At least one start; with one side None the other starts alone at once.

        Raises:
            ValueError: both sides are None.
        """
        ...


@runtime_checkable
class FittedPolicy(Protocol):
    """A policy that follows the distributions as they change."""

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Plan again; what is owed from earlier rounding stays owed."""
        ...


class PolicyFactory(Protocol):
    """What an entry point of the group `disco.policies` names: a callable that makes a policy."""

    def __call__(
        self, *, lengths: Lengths, ttft: Empirical, budget: float, tail: float, rng: np.random.Generator
    ) -> Policy:
        """Make a policy.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
            budget: share b of input tokens that the constrained endpoint may process.
            tail: share α of the budget kept for the tail.
            rng: the only source of randomness.
        """
        ...


class Diffusion:
    """Takes a share of a sequence so that the tokens come out right, not only on average.

    One-bit error diffusion over tokens: what rounding owes is carried to the next decision. Whatever the
    order and the lengths, the tokens taken differ from the plan by less than the longest prompt. The random
    phase makes each single decision right in expectation too, as long as one length asks at a time.
    """

    # Mutable: _owed_tokens.
    __slots__ = ("_owed_tokens", "_phase")

    def __init__(self, rng: np.random.Generator) -> None:
        self._phase = 1.0 - float(rng.random())  # in (0, 1]: a share of 0 is then never taken
        self._owed_tokens = 0.0

    def take(self, share: float, tokens: int) -> bool:
        """Whether this request of `tokens` belongs to the `share` in [0, 1] that is taken."""
        owed = self._owed_tokens + share * tokens
        taken = owed >= self._phase * tokens if tokens else False
        self._owed_tokens = owed - tokens if taken else owed
        return taken


def alone(device: Candidate | None, server: Candidate | None) -> tuple[Start, ...]:
    """The one side there is starts at once."""
    only = device if device is not None else server
    if only is None:
        raise ValueError("a policy needs a device or a server")
    return (Start(only.name),)


def check_share(name: str, value: float) -> float:
    """Return `value` when it is in [0, 1].

    Raises:
        ValueError: it is not (or is NaN).
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is a share and must lie between 0 and 1, not {value}")
    return value
