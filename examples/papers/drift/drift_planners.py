"""The planners that are compared: what each knows of the server's times, and when it plans again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch import Features
from disco.plan import Start
from disco.profiles import AdaptiveRolling, Empirical, Rolling
from papers.drift.drift_workloads import Times
from papers.drift.point_forecasts import FORECASTS

__all__ = ["ADAPTIVE", "PLANNERS", "ROLLING", "ForecastPolicy", "Knowledge", "Planner", "knowledge_of"]

REFIT_EVERY: Final = 16  # as in a live client
_NEXT_S: Final = 3600.0
_FEWEST: Final = 20  # times in the oracle's hour
_SCORES: Final = 200  # newest requests that the price of a token is set by

Knows = Literal["once", "rolling", "adaptive", "next hour"]


@dataclass(frozen=True, slots=True)
class Planner:
    """A line of the comparison.

    Attributes:
        name: for tables.
        knows: where its distribution comes from; or the name of a point forecast.
        governed: whether `budget_governor` keeps the budget in every window.
    """

    name: str
    knows: str
    governed: bool = True


ROLLING: Final = "rolling window"
ADAPTIVE: Final = "adaptive (ours)"
PLANNERS: Final = (
    Planner("offline once (paper), no rule", "once", governed=False),
    Planner("rolling window, no rule", "rolling", governed=False),
    Planner("adaptive, no rule", "adaptive", governed=False),
    Planner("offline once (paper)", "once"),
    Planner(ROLLING, "rolling"),
    Planner(ADAPTIVE, "adaptive"),
    Planner("oracle of the next hour", "next hour"),
    *(Planner(name, name) for name in FORECASTS),
)


class Knowledge(Protocol):
    """A planner's knowledge of the server's times."""

    @property
    def changes(self) -> int:
        """How many changes it has found."""
        ...

    def observe(self, ttft_s: float, *, censored: bool) -> None:
        """Take in what a request showed: its time, or only that it took longer."""
        ...

    def plan_with(self, row: int) -> Empirical | None:
        """Return the distribution to plan request `row` with; None: that of the request before."""
        ...


class _Once:
    """The paper's: what was known before the first request. Mutable: `_due`."""

    changes = 0

    def __init__(self, warm_s: NDArray[np.float64]) -> None:
        self._known = Empirical.from_samples(warm_s)
        self._due = True

    def observe(self, ttft_s: float, *, censored: bool) -> None:
        pass

    def plan_with(self, row: int) -> Empirical | None:  # noqa: ARG002 - a knowledge's signature
        due, self._due = self._due, False
        return self._known if due else None


class _Window:
    """What a live client learns. Mutable: all."""

    def __init__(self, rolling: Rolling, warm_s: NDArray[np.float64]) -> None:
        self._rolling = rolling
        for ttft_s in warm_s.tolist():
            rolling.observe(ttft_s)
        self._last: int | None = None

    @property
    def changes(self) -> int:
        return self._rolling.changes if isinstance(self._rolling, AdaptiveRolling) else 0

    def observe(self, ttft_s: float, *, censored: bool) -> None:
        (self._rolling.observe_censored if censored else self._rolling.observe)(ttft_s)

    def plan_with(self, row: int) -> Empirical | None:
        if self._last is not None and row - self._last < REFIT_EVERY and not self._rolling.is_unsettled:
            return None
        self._last = row
        return self._rolling.snapshot()


class _NextHour:
    """The true times of the hour that begins now, from this request on. Mutable: `_last`."""

    changes = 0

    def __init__(self, times: Times) -> None:
        self._times = times
        self._last: int | None = None

    def observe(self, ttft_s: float, *, censored: bool) -> None:
        pass

    def plan_with(self, row: int) -> Empirical | None:
        if self._last is not None and row - self._last < REFIT_EVERY // 2:
            return None
        self._last = row
        end = int(self._times.arrival_s.searchsorted(self._times.arrival_s[row] + _NEXT_S))
        return Empirical.from_samples(self._times.ttft_s[row : max(end, row + _FEWEST)])


def knowledge_of(planner: Planner, times: Times, warm: int) -> Knowledge:
    """Return what a planner knows after the first `warm` requests, all of which the server answered."""
    warm_s = times.ttft_s[:warm]
    match planner.knows:
        case "rolling":
            return _Window(Rolling(), warm_s)
        case "adaptive":
            return _Window(AdaptiveRolling(), warm_s)
        case "next hour":
            return _NextHour(times)
    return _Once(warm_s)


class ForecastPolicy:
    """Plans by a point forecast: the limited side starts at once on the requests that gain most for a token.

    This is what the replay's oracle does with the true times. The least gain for a token is set such that, of the
    newest 200 requests, those above it have the budget's share of the tokens. A point forecast has no tail, so there
    is no wait to plan.

    Mutable: `row` (of the next request), `_newest`.
    """

    name = "forecast"

    def __init__(
        self,
        predicted_s: NDArray[np.float64],
        *,
        budget: float,
        limited: Literal["device", "server"],
    ) -> None:
        self.row = 0
        self._predicted_s: list[float] = predicted_s.tolist()
        self._budget = budget
        self._limits_device = limited == "device"
        self._newest: deque[tuple[float, int]] = deque(maxlen=_SCORES)

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            raise ValueError("a point forecast needs a device and a server to compare")
        tokens = features.prompt_tokens
        ahead_s = self._predicted_s[self.row] - device.time_to_first_token_s(tokens)
        gain = (ahead_s if self._limits_device else -ahead_s) / max(tokens, 1)
        self._newest.append((gain, tokens))
        free, scarce = (server, device) if self._limits_device else (device, server)
        if gain <= 0.0 or gain < self._least():
            return (Start(free.name),)
        return Start(free.name), Start(scarce.name)

    def _least(self) -> float:
        left = self._budget * sum(tokens for _, tokens in self._newest)
        for gain, tokens in sorted(self._newest, reverse=True):
            left -= tokens
            if left < 0.0:
                return gain
        return 0.0
