"""What a policy is, and the two small tools that the fitted ones share."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.request_features import Features
from disco.plan import Candidate, Start
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = [
    "Delays",
    "ErrorDiffusion",
    "FittedPolicy",
    "Policy",
    "PolicyFactory",
    "VectorPolicy",
    "alone",
    "check_share",
]


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


class Delays(NamedTuple):
    """When each side starts, in seconds after its request came; `inf`: it does not. float64, shape (n,) each."""

    device_s: NDArray[np.float64]
    server_s: NDArray[np.float64]


@runtime_checkable
class VectorPolicy(Protocol):
    """A policy that decides for many requests at once, for replay at millions of requests a second."""

    def delays(self, prompt_tokens: NDArray[np.int64]) -> Delays:
        """What `starts` would decide for these requests one after the other, a device and a server being there.

        Args:
            prompt_tokens: of each request, in order of arrival; int64, shape (n,).
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
        self,
        *,
        lengths: Lengths,
        ttft: Empirical,
        device: Candidate,
        budget: float,
        tail: float,
        rng: np.random.Generator,
    ) -> Policy:
        """Make a policy.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
            device: how fast and dear the device is.
            budget: share b of input tokens that the constrained endpoint may process.
            tail: share α of the budget kept for the tail.
            rng: the only source of randomness.
        """
        ...


class ErrorDiffusion:
    """Takes a share of a sequence so that the tokens come out right, not only on average.

    One-bit error diffusion over tokens: what rounding owes is carried to the next decision. Whatever the
    order and the lengths, the tokens taken differ from the plan by less than the longest prompt. The random
    phase makes each single decision right in expectation too, as long as one length asks at a time.

    A request of `t` tokens is taken when the tokens owed reach `(1 − phase)·t`. Of a run of requests that
    are equally long, with the same share `s`, that takes `clip(⌊owed/t + phase + k·s⌋, 0, k)` of the first
    `k`. Decisions one by one count along this formula, so those made together are the same to the last bit.
    """

    # Mutable: _owed_tokens (when the run began), _share and _tokens (of the run), _origin, _asked and _taken
    # (in the run).
    __slots__ = ("_asked", "_origin", "_owed_tokens", "_phase", "_share", "_taken", "_tokens")

    def __init__(self, rng: np.random.Generator) -> None:
        self._phase = float(rng.random())  # in [0, 1): a share of 0 is then never taken
        self._owed_tokens = 0.0
        self._share, self._tokens = 0.0, 0
        self._origin = self._phase
        self._asked = self._taken = 0

    def take(self, share: float, tokens: int) -> bool:
        """Whether this request of `tokens` belongs to the `share` in [0, 1] that is taken."""
        if not tokens:
            return False
        if tokens != self._tokens or share != self._share:
            self._begin_run(share, tokens)
        self._asked = asked = self._asked + 1
        # int() cuts towards 0, which the lower limit makes the same as rounding down.
        taken = min(max(int(self._origin + asked * share), 0), asked)
        more = taken > self._taken
        self._taken = taken
        return more

    def take_many(self, share: float, tokens: int, n: int) -> NDArray[np.bool_]:
        """The next `n` decisions, all on requests of `tokens`: what `take` would return, shape (n,)."""
        if not tokens or not n:
            return np.zeros(n, dtype=np.bool_)
        if tokens != self._tokens or share != self._share:
            self._begin_run(share, tokens)
        asked = np.arange(self._asked, self._asked + n + 1)
        taken = asked * share
        taken += self._origin
        counts = taken.astype(np.int64)
        np.clip(counts, 0, asked, out=counts)
        self._asked, self._taken = int(asked[-1]), int(counts[-1])
        more: NDArray[np.bool_] = counts[1:] > counts[:-1]
        return more

    def _begin_run(self, share: float, tokens: int) -> None:
        self._owed_tokens += (self._asked * self._share - self._taken) * self._tokens
        self._share, self._tokens = share, tokens
        self._origin = self._owed_tokens / tokens + self._phase
        self._asked = self._taken = 0


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
