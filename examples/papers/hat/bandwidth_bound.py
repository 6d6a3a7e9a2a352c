"""The lower bound that the uplink puts on TTFT, `T A / up`, and the printed figures that are on or below it."""

from __future__ import annotations

from math import log
from typing import Literal, NamedTuple

from papers.hat.hat_fleets import DATA, DOWN, UP
from papers.hat.hat_printed import (
    ABLATION,
    ARM_NAMES,
    CNN_DM,
    HAT,
    SARATHI,
    SPEC_BENCH,
    TABLE_5,
    TTFT_AT,
)

__all__ = ["Bound", "Cell", "bound_ms", "cells", "mark"]

Rate = Literal["spread", "mean", "fastest"]
"""Rates that are spread evenly over the printed range (the mean of T A / rate), their mean, and the fastest one."""


class Bound(NamedTuple):
    """Lower bounds of a mean TTFT, ms, by the links' rates."""

    spread: float
    mean: float
    fastest: float


class Cell(NamedTuple):
    """A printed TTFT: its place, ms, and whether the prompt's states come down only after all of them are up."""

    where: str
    dataset: str
    ttft_ms: float
    in_turn: bool


def bound_ms(dataset: str, *, down: bool = False) -> Bound:
    """Return the bound of the mean prompt; `down`: of all rows up, and behind that all rows down."""
    data = DATA[dataset]

    def ways(rate: Rate) -> float:
        return sum(data.up_ms(_rate(rates, rate)) for rates in ((UP, DOWN) if down else (UP,)))

    return Bound(ways("spread"), ways("mean"), ways("fastest"))


def _rate(rates: tuple[float, float], rate: Rate) -> float:
    low, high = rates
    if rate == "fastest":
        return high
    return (low + high) / 2 if rate == "mean" else (high - low) / log(high / low)


def cells() -> list[Cell]:
    """Return every printed TTFT."""
    found = []
    for (figure, dataset), values in TTFT_AT.items():
        found += [
            Cell(f"Figure {figure}, {arm}", dataset, value, in_turn=arm not in (HAT, SARATHI))
            for arm, value in zip(ARM_NAMES, values, strict=True)
        ]
    for dataset in (SPEC_BENCH, CNN_DM):
        for column in ABLATION:
            found.append(
                Cell(f"Table V, {column.name}", dataset, TABLE_5[dataset][column.name][0], not column.chunks)
            )
    return found


def mark(cell: Cell) -> str:
    """Return what a printed TTFT is: impossible where it is on or below a bound, "" above all of them."""
    bound = bound_ms(cell.dataset, down=cell.in_turn)
    if cell.ttft_ms <= bound.fastest:
        return "impossible, even if every device had the fastest link"
    if cell.ttft_ms <= bound.mean:
        return "impossible at the mean rate"
    if cell.ttft_ms <= bound.spread:
        return "impossible with rates spread evenly"
    return ""
