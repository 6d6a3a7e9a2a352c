"""The interface of a policy, and the tools that the fitted policies share."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch.request_features import Features
from disco.plan import Source, Start, Why
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
    "expected",
    "source_of",
]


class Policy(Protocol):
    """Decides which of one device and one server start, and when."""

    @property
    def name(self) -> str:
        """The name that presets and route records use."""
        ...

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        """Return at least one start; where one side is None, the other starts alone at once.

        Args:
            features: what the request needs.
            device: the device; None: there is none, or it may not serve the request.
            server: the same of the server.

        Raises:
            ValueError: both sides are None.
        """
        ...


class Delays(NamedTuple):
    """When each side starts, in seconds after its request came; `inf`: never. float64, shape (n,) each."""

    device_s: NDArray[np.float64]
    server_s: NDArray[np.float64]


@runtime_checkable
class VectorPolicy(Protocol):
    """A policy that decides for many requests at once, for replay at millions of requests a second."""

    def delays(self, prompt_tokens: NDArray[np.int64]) -> Delays:
        """Return what `starts` would decide for these requests in order, with both a device and a server.

        Args:
            prompt_tokens: prompt length of each request, in order of arrival; int64, shape (n,).
        """
        ...


@runtime_checkable
class FittedPolicy(Protocol):
    """A policy that follows the distributions as they change."""

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Plan again; the error diffusion keeps its rounding error.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
        """
        ...


class PolicyFactory(Protocol):
    """A callable that makes a policy; an entry point of the group `disco.policies` names one.

    It may leave out arguments that it does not need. Arguments that it has besides are its options: the user sets them
    in `[dispatch.options]` of a preset. It raises ValueError for a wrong one.
    """

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
            device: the device, with its speed and price.
            budget: share b of input tokens that the constrained endpoint may process.
            tail: share α of the budget kept for the tail.
            rng: the only source of randomness.
        """
        ...


class ErrorDiffusion:
    """Takes a share of a sequence of requests so that the number of tokens is right, not only on average.

    One-bit error diffusion over tokens: the rounding error of each decision is carried to the next. For any order and
    any lengths, the tokens taken differ from the plan by less than the longest prompt. The random phase makes each
    single decision right in expectation, too, as long as one length asks at a time.

    A request of `t` tokens is taken when the tokens owed reach `(1 − phase)·t`. In a run of requests of equal length
    with the same share `s`, `clip(⌊owed/t + phase + k·s⌋, 0, k)` of the first `k` are taken. Single decisions use this
    formula as well, so decisions made together are the same to the last bit.

    Args:
        rng: gives the random phase.
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
        """Whether this request of `tokens` tokens is taken, as one of the `share` in [0, 1] that is."""
        if not tokens:
            return False
        if tokens != self._tokens or share != self._share:
            self._begin_run(share, tokens)
        self._asked = asked = self._asked + 1
        # int() rounds towards 0; with the lower limit of 0 that is the same as rounding down.
        taken = min(max(int(self._origin + asked * share), 0), asked)
        more = taken > self._taken
        self._taken = taken
        return more

    def take_many(self, share: float, tokens: int, n: int) -> NDArray[np.bool_]:
        """Return the next `n` results of `take`, all for requests of `tokens` tokens; bool, shape (n,).

        Args:
            share: the share of the tokens to take, in [0, 1].
            tokens: length of each request, tokens.
            n: number of requests.
        """
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


def alone(device: Candidate | None, server: Candidate | None, tokens: int) -> tuple[Start, ...]:
    """Return a start, at once, of the device or else of the server, for a prompt of so many tokens.

    Raises:
        ValueError: both are None.
    """
    only = device if device is not None else server
    if only is None:
        raise ValueError("a policy needs a device or a server")
    return (Start(only.name, 0.0, expected("alone", only, tokens)),)


def expected(code: str, candidate: Candidate, tokens: int) -> Why:
    """Return a reason whose number is when the first token of a candidate is expected, s; see `plan.Why`.

    Args:
        code: the rule that chose.
        candidate: who starts.
        tokens: length of the prompt.
    """
    return Why(code, candidate.usual_first_token_s(tokens), None, candidate.times_from, candidate.times_seen)


def source_of(lengths: Lengths) -> tuple[Source, int]:
    """Return where prompt lengths are from, and how many requests they are of."""
    return ("own", lengths.observed) if lengths.observed else ("prior", 0)


def check_share(name: str, value: float) -> float:
    """Return `value` when it is in [0, 1].

    Raises:
        ValueError: it is not (or is NaN).
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is a share and must lie between 0 and 1, not {value}")
    return value
