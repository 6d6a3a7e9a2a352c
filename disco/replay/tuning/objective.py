"""What tuning is to achieve, and what a candidate achieved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from disco.errors import ConfigurationError, nearest
from disco.replay.tuning.preset_file import PresetChoice

__all__ = ["OBJECTIVES", "Objective", "Trial", "TuningObjective", "parse_max_cost"]

Objective = Literal["p99-ttft", "mean-ttft", "cost", "qoe"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)

AS_GOOD: Final = 1.01  # within that factor of the best, the second thing that matters decides


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate and what it came to, per request.

    Attributes:
        choice: its settings.
        ttft_mean_s, ttft_p99_s: s.
        server_usd: the server's bill.
        device_usd: the device's energy at the user's exchange rate.
        least_usd: what it might cost if every answer moved to the cheap side at once (a lower bound); its cost
            where it was verified.
        qoe, late_tokens: means per answer; None until it was verified.
        requests: of the replay the figures are from.
        verified: they are the event-accurate evaluator's.
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
        """Bill and energy together, USD per request."""
        return self.server_usd + self.device_usd


@dataclass(frozen=True, slots=True)
class TuningObjective:
    """An objective and its limits.

    Attributes:
        objective: what is to be best.
        max_cost: per request: USD, or "0.8x" of what server_only costs; None: no limit.
        max_p99_s: P99 of TTFT, s; None: no limit.

    Raises:
        ConfigurationError: unknown objective, or a limit that is none.
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
            raise ConfigurationError(f"a limit of P99 is seconds above 0, not {self.max_p99_s}")

    def limit_usd(self, reference: Trial) -> float | None:
        """What a request may cost, USD."""
        limit = parse_max_cost(self.max_cost) if isinstance(self.max_cost, str) else self.max_cost
        return float(limit.removesuffix("x")) * reference.cost_usd if isinstance(limit, str) else limit

    def keeps(self, trial: Trial, reference: Trial, *, hoping: bool = False) -> bool:
        """Whether it keeps to the limits; `hoping`: whether it might once its answers move."""
        limit = self.limit_usd(reference)
        usd = trial.least_usd if hoping else trial.cost_usd
        return (limit is None or usd <= limit) and (
            self.max_p99_s is None or trial.ttft_p99_s <= self.max_p99_s
        )

    def value(self, trial: Trial) -> float:
        """What is to be small. Until QoE is known the mean TTFT, which it mostly follows, stands for it."""
        match self.objective:
            case "p99-ttft":
                return trial.ttft_p99_s
            case "cost":
                return trial.cost_usd if trial.verified else trial.least_usd
            case "qoe" if trial.verified:
                return math.inf if trial.qoe is None else 1.0 - trial.qoe
        return trial.ttft_mean_s

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Best first."""
        ordered = sorted(trials, key=self.value)
        if not ordered:
            return []
        best = self.value(ordered[0])
        near = [t for t in ordered if self.value(t) <= best * AS_GOOD + 1e-12]
        second = (lambda t: t.ttft_p99_s) if self.objective == "cost" else (lambda t: t.cost_usd)
        return sorted(near, key=second) + ordered[len(near) :]

    def out_of_reach(self, trials: Sequence[Trial], reference: Trial) -> str:
        """Says that nothing keeps to the limits, and how near it gets."""
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
            f"nothing that was tried {' and '.join(wanted)}. The cheapest is {cheapest.choice.label} at "
            f"{_usd(cheapest.cost_usd)} ({cheapest.cost_usd / max(reference.cost_usd, 1e-300):.2f}x) with a P99 of "
            f"{cheapest.ttft_p99_s:.2f} s; the fastest is {fastest.choice.label} with a P99 of "
            f"{fastest.ttft_p99_s:.2f} s at {_usd(fastest.cost_usd)}. Allow more, or try another device or server"
        )


def parse_max_cost(text: str) -> float | str:
    """A cost limit: "0.8x" (of what server_only costs) stays a string, "0.0004" becomes USD per request.

    Raises:
        ConfigurationError: neither.
    """
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigurationError(
            f'a cost limit is a multiple of what server_only costs, such as "0.8x", or USD per request, not {text!r}'
        )
    return text if text.endswith("x") else value


def _usd(usd: float) -> str:
    return f"${usd:.3g}"
