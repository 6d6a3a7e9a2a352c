"""Objectives of tuning, and the figures of the settings that were tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from disco import _words
from disco.errors import ConfigurationError, nearest
from disco.replay.tuning.preset_file import PresetChoice

__all__ = ["OBJECTIVES", "Objective", "Trial", "TuningObjective", "parse_max_cost"]

Objective = Literal["p99-ttft", "mean-ttft", "cost", "qoe"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)

AS_GOOD: Final = 1.01  # within this factor of the best value, the second criterion decides


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of settings and its figures per request.

    Attributes:
        choice: the settings.
        ttft_mean_s, ttft_p99_s: s.
        server_usd: the server's bill.
        device_usd: the device's energy at the user's exchange rate.
        least_usd: lower bound of the cost, reached if every answer moved to the cheaper side at once; the cost itself
            if `verified`.
        qoe, late_tokens: means per answer; None until `verified`.
        requests: number of requests of the replay that gave the figures.
        verified: the figures come from the event-accurate evaluator.
    """

    choice: PresetChoice
    ttft_mean_s: float
    ttft_p99_s: float
    server_usd: float
    device_usd: float
    least_usd: float
    qoe: float | None
    late_tokens: float | None
    requests: int
    verified: bool

    @property
    def cost_usd(self) -> float:
        """Return the server's bill and the device's energy together, USD per request."""
        return self.server_usd + self.device_usd


@dataclass(frozen=True, slots=True)
class TuningObjective:
    """An objective and its limits.

    Attributes:
        objective: the figure to optimise.
        max_cost: limit per request: USD, or "0.8x" of the cost of server_only; None: no limit.
        max_p99_s: P99 of TTFT, s; None: no limit.

    Raises:
        ConfigurationError: unknown objective, or a limit that is not valid.
    """

    objective: Objective
    max_cost: float | str | None = None
    max_p99_s: float | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            known = nearest(self.objective, OBJECTIVES)
            raise ConfigurationError(f"no objective is called {self.objective!r}. {known}")
        if isinstance(self.max_cost, str):
            parse_max_cost(self.max_cost)
        if self.max_p99_s is not None and not self.max_p99_s > 0:
            raise ConfigurationError(
                f"max_p99_s is a limit of TTFT's P99 in seconds above 0, not {self.max_p99_s}"
            )

    def limit_usd(self, reference: Trial) -> float | None:
        """Return what a request may cost, USD; None: no limit."""
        limit = parse_max_cost(self.max_cost) if isinstance(self.max_cost, str) else self.max_cost
        return float(limit.removesuffix("x")) * reference.cost_usd if isinstance(limit, str) else limit

    def keeps(self, trial: Trial, reference: Trial, *, hoping: bool = False) -> bool:
        """Return whether a trial keeps to the limits; `hoping`: whether it may once its answers migrate."""
        limit = self.limit_usd(reference)
        usd = trial.least_usd if hoping else trial.cost_usd
        return (limit is None or usd <= limit) and (
            self.max_p99_s is None or trial.ttft_p99_s <= self.max_p99_s
        )

    def value(self, trial: Trial) -> float:
        """Return the value to minimise. Until QoE is known, mean TTFT stands for it: QoE mostly follows mean TTFT."""
        match self.objective:
            case "p99-ttft":
                return trial.ttft_p99_s
            case "cost":
                return trial.cost_usd if trial.verified else trial.least_usd
            case "qoe" if trial.verified:
                return math.inf if trial.qoe is None else 1.0 - trial.qoe
        return trial.ttft_mean_s

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials, the best first."""
        ordered = sorted(trials, key=self.value)
        if not ordered:
            return []
        best = self.value(ordered[0])
        near = [t for t in ordered if self.value(t) <= best * AS_GOOD + 1e-12]
        second = (lambda t: t.ttft_p99_s) if self.objective == "cost" else (lambda t: t.cost_usd)
        return sorted(near, key=second) + ordered[len(near) :]

    def out_of_reach(self, trials: Sequence[Trial], reference: Trial) -> str:
        """Return a message: no trial keeps to the limits, and how close the cheapest and the fastest come."""
        limit = self.limit_usd(reference)
        wanted = []
        if limit is not None:
            wanted.append(
                f"costs at most {_usd(limit)} per request ({limit / reference.cost_usd:.2f}x server_only)"
                if reference.cost_usd
                else f"costs at most {_usd(limit)} per request"
            )
        if self.max_p99_s is not None:
            wanted.append(f"has a P99 of TTFT of at most {self.max_p99_s:g} s")
        cheapest = min(trials, key=lambda t: t.cost_usd)
        fastest = min(trials, key=lambda t: t.ttft_p99_s)
        return (
            f"no settings that were tried {' and '.join(wanted)}. The cheapest is {cheapest.choice.label} at "
            f"{_usd(cheapest.cost_usd)} ({cheapest.cost_usd / max(reference.cost_usd, 1e-300):.2f}x) with a P99 of "
            f"{cheapest.ttft_p99_s:.2f} s; the fastest is {fastest.choice.label} with a P99 of "
            f"{fastest.ttft_p99_s:.2f} s at {_usd(fastest.cost_usd)}. Raise the limits, or try another device or server"
        )


def parse_max_cost(text: str) -> float | str:
    """Parse a cost limit: "0.8x" (of the cost of server_only) stays a string, "0.0004" becomes USD per request.

    Raises:
        ConfigurationError: `text` is neither.
    """
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigurationError(
            f'a cost limit is a multiple of the cost of server_only, such as "0.8x", or USD per request, not {text!r}'
        )
    return text if text.endswith("x") else value


def _usd(usd: float) -> str:
    return _words.money(usd)
