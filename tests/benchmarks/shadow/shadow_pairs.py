"""A preset with another as its shadow, and then the other one for real: what was predicted, beside what happened."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from disco import RouteLog
from disco.cost import Phase, Rates
from disco.replay.shadow.shadow_figures import Comparison, compare
from disco.replay.shadow.shadow_recording import read_shadowed
from disco.replay.shadow.shadow_runs import play_shadows
from disco.session.records.route_record import RouteRecord

__all__ = ["Pair", "Truth", "predicted_and_happened"]


@dataclass(frozen=True)
class Pair:
    """The real preset, and its shadow."""

    real: str
    shadow: str


Answers = Callable[[Pair, RouteLog], Awaitable[tuple[list[RouteRecord], list[RouteRecord]]]]
"""Asks all requests of a workload under a preset with the other as its shadow, and under the other one; by turns."""


@dataclass(frozen=True)
class Truth:
    """What `disco shadow` predicted for a preset, and what then happened under it."""

    pair: Pair
    predicted: Comparison
    mean_s: float
    p50_s: float
    p99_s: float
    cost_usd: float
    ended: str  # names of the reasons why answers of the second run are left out, with their numbers

    def deviations(self) -> tuple[float, float, float]:
        """Of the mean and the P99 of TTFT, and of the cost: (predicted - happened)/happened."""
        other = self.predicted.other
        return tuple(
            (a - b) / b if b else float("nan")
            for a, b in (
                (other.ttft_mean_s, self.mean_s),
                (other.ttft_p99_s, self.p99_s),
                (other.cost_usd, self.cost_usd),
            )
        )


async def predicted_and_happened(pairs: Sequence[Pair], ask: Answers, *, draws: int = 16) -> list[Truth]:
    """Run each pair: in shadow mode, and for real."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, pair in enumerate(pairs):
            path = Path(folder) / f"{number}.jsonl"
            with RouteLog(path) as log:
                before, routes = await ask(pair, log)
            (predicted,) = compare(play_shadows(read_shadowed(path), draws=draws, seed=0), seed=0)
            whole = [r for r in routes if r.pace.ttft_raw_s is not None and r.finish_reason is not None]
            rates = {e.name: Rates(e.cost_in, e.cost_out, e.cached_share) for e in before[-1].endpoints}
            first_s = np.array([r.pace.ttft_raw_s for r in whole])
            found.append(
                Truth(
                    pair,
                    predicted,
                    float(first_s.mean()),
                    float(np.quantile(first_s, 0.5)),
                    float(np.quantile(first_s, 0.99)),
                    float(np.mean([_cost_usd(r, rates) for r in whole])),
                    f"{len(routes) - len(whole)} failed",
                )
            )
    return found


def _cost_usd(route: RouteRecord, rates: dict[str, Rates]) -> float:
    """At the rates of the first run: the two presets may differ in what energy is worth."""
    charges = [c for c in route.ledger.charges if c.phase != Phase.PROBE]
    return sum(rates[c.endpoint].cost(c.prompt_tokens, c.completion_tokens, c.cached_tokens) for c in charges)
