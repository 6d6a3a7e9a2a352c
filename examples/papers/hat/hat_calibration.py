"""How the constants of `hat_fleets` were found. They are kept there; a slow test finds them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from papers.hat import hat_fleets
from papers.hat.hat_fleets import (
    COUNTED,
    DATA,
    DOWN,
    SKIPPED,
    UP,
    paper_arm,
    paper_fleet,
    paper_requests,
)
from papers.hat.hat_printed import (
    CNN_DM,
    HAT,
    SPEC_BENCH,
    TABLE_4,
    TABLE_5,
    U_MEDUSA,
    U_SHAPE,
)
from papers.hat.split_figures import SplitFigures, split_figures
from papers.hat.split_requests import Drafts, accept_length
from papers.hat.split_simulator import simulate_split

__all__ = ["calibrate", "drafter_for", "tree_for"]

_STEPS: Final = 11
_TURNS: Final = 2


def drafter_for(dataset: str) -> float:
    """Return the mean confidence of a drafter with HAT's accept length (Table IV)."""
    wanted = TABLE_4[dataset][HAT][0]
    return _solve(lambda mean: accept_length(Drafts(mean), 0.6, 12), wanted, 0.2, 0.9)


def tree_for(dataset: str) -> float:
    """Return the probability of a tree's level with U-Medusa's accept length: `1 + p + ... + p^4`."""
    return _solve(lambda p: sum(p**level for level in range(5)), TABLE_4[dataset][U_MEDUSA][0], 0.0, 1.0)


def calibrate() -> tuple[float, float, dict[str, float]]:
    """Return slowness, the rate of CNN/DM, and the link factors by data set."""
    slowness, links = hat_fleets.SLOWNESS, {name: data.link_factor for name, data in DATA.items()}
    rate = DATA[CNN_DM].rate
    ttft_ms, tbt_ms = TABLE_5[SPEC_BENCH]["none"]
    for _ in range(_TURNS):
        link = links[SPEC_BENCH]
        slowness = _solve(lambda s: _run(SPEC_BENCH, s, link, 6.0).tbt_ms, tbt_ms, 0.1, 4.0)  # noqa: B023 - used at once
        links[SPEC_BENCH] = _link(SPEC_BENCH, slowness, 6.0, ttft_ms)
    ttft_ms, tbt_ms = TABLE_5[CNN_DM]["none"]
    for _ in range(_TURNS):
        link = links[CNN_DM]
        rate = _solve(lambda r: _run(CNN_DM, slowness, link, r).tbt_ms, tbt_ms, 0.5, 4.0)  # noqa: B023 - used at once
        links[CNN_DM] = _link(CNN_DM, slowness, rate, ttft_ms)
    return slowness, rate, links


def _link(dataset: str, slowness: float, rate: float, ttft_ms: float) -> float:
    return _solve(lambda factor: -_run(dataset, slowness, factor, rate).ttft_ms, -ttft_ms, 0.5, 3.0)


def _run(dataset: str, slowness: float, link: float, rate: float) -> SplitFigures:
    data = DATA[dataset]
    fleet = paper_fleet(data, paper_arm(U_SHAPE, data), rate=rate)
    change = slowness / hat_fleets.SLOWNESS
    fleet = replace(
        fleet,
        pools=tuple(
            replace(pool, least=change * pool.least, most=change * pool.most) for pool in fleet.pools
        ),
        up=(link * UP[0], link * UP[1]),
        down=(link * DOWN[0], link * DOWN[1]),
    )
    return split_figures(simulate_split(fleet, paper_requests(dataset, tree=False)), SKIPPED, COUNTED)


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Bisect: return where a rising function has the wanted value."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
