"""Figures of fleets as tables and as JSON; several seeds as means with confidence intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from disco.replay import Figure, figure
from papers.fleet.fleet_figures import FleetFigures
from papers.fleet.fleet_sweep import FleetRun

__all__ = ["HEADER", "fleet_json", "fleet_rows", "over_seeds"]

# Column, figure (a dot for a part of a spread), decimals, factor.
_COLUMNS: Final = (
    ("requests/s", "requests_per_s", 2, 1.0),
    ("TTFT ms", "ttft_ms.mean", 0, 1.0),
    ("P99", "ttft_ms.p99", 0, 1.0),
    ("TPOT ms", "tpot_ms.mean", 1, 1.0),
    ("P99", "tpot_ms.p99", 1, 1.0),
    ("window", "window", 1, 1.0),
    ("accepted %", "acceptance", 0, 100.0),
    ("tokens/round", "tokens_per_round", 2, 1.0),
    ("alone %", "alone", 0, 100.0),
    ("busy %", "utilisation", 0, 100.0),
    ("batch", "batch", 1, 1.0),
    ("wait ms", "wait_round_ms.mean", 1, 1.0),
)
HEADER: Final = ("setting", *(column for column, _, _, _ in _COLUMNS))
"""The columns of `fleet_rows`."""


def fleet_rows(runs: Sequence[FleetRun]) -> list[list[str]]:
    """Return a line of the table for each label, over its seeds: the mean, ± half the 95 % interval."""
    rows = []
    for label, figures in _by_label(runs).items():
        cells = [label or figures[0].scenario]
        for _, name, decimals, factor in _COLUMNS:
            cells.append(_cell(over_seeds([run.figures for run in figures], name), decimals, factor))
        rows.append(cells)
    return rows


def over_seeds(figures: Sequence[FleetFigures], name: str) -> Figure:
    """Return a figure over seeds: mean and 95 % interval.

    Args:
        figures: one per seed.
        name: of an attribute, with a part of its spread: "requests_per_s", "tpot_ms.mean".
    """
    return figure([_value(one, name) for one in figures])


def fleet_json(runs: Sequence[FleetRun]) -> str:
    """Return all runs as JSON: a list, in the order of the sweep."""
    lines: list[dict[str, Any]] = [
        {"scenario": run.scenario, "setting": run.label, "seed": run.seed, "figures": run.figures.to_json()}
        for run in runs
    ]
    return json.dumps({"schema": 1, "runs": lines}, indent=1)


def _by_label(runs: Sequence[FleetRun]) -> dict[str, list[FleetRun]]:
    found: dict[str, list[FleetRun]] = {}
    for run in runs:
        found.setdefault(f"{run.scenario} {run.label}".strip(), []).append(run)
    return found


def _value(figures: FleetFigures, name: str) -> float:
    first, _, part = name.partition(".")
    value = getattr(figures, first)
    return float(asdict(value)[part] if part else value)


def _cell(found: Figure, decimals: int, factor: float) -> str:
    text = f"{found.mean * factor:,.{decimals}f}"
    half = (found.high - found.low) / 2 * factor
    return text if half == 0 else f"{text}±{half:.{decimals}f}"
