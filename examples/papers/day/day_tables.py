"""The day's results as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from disco.replay import Figure, Table
from papers.day.day_run import ALL, DayResult, PhaseFigures
from papers.day.day_schedule import BATTERY_J
from papers.evaluation import UNKNOWN

__all__ = ["day_dict", "day_tables"]

_HEADER = (
    *("preset", "[power]", "energy, J", "of the battery", "server, USD", "MB", "TTFT mean, s", "P99, s"),
    *("by the device", "failed"),
)


def day_tables(results: Sequence[DayResult]) -> list[Table]:
    """Return the tables: the whole day, what [power] saved, and each phase."""
    first = results[0]
    kinds = [kind for kind in first.without if kind != ALL]
    days = "one day, so without" if first.seeds == 1 else f"means of {first.seeds} days with 95 %"
    about = (
        f"Device {first.device}, server {first.server}; {days} intervals. "
        '"of the battery": what was drawn from it, as a share of 50 Wh.'
    )
    return [
        Table("The whole day", _HEADER, _rows(results, ALL), (about,)),
        Table(
            "What the rule saved a day (without it minus with it; same requests and draws)",
            ("preset", "energy, J", "from the battery, J", "server, USD", "MB", "TTFT mean, s", "P99, s"),
            tuple(
                (
                    r.preset,
                    *(
                        _shown(r.saved[name])
                        for name in ("energy_j", "battery_j", "server_usd", "traffic_mb")
                    ),
                    *(_shown(r.saved[name]) for name in ("ttft_mean_s", "ttft_p99_s")),
                )
                for r in results
            ),
            tuple(
                f"{r.preset}: conditions began or ended {r.changes.mean:.1f} times a day; without hysteresis "
                f"{r.crossings.mean:.1f} times."
                for r in results
            ),
        ),
        *(
            Table(f"Phase: {kind}", _HEADER, _rows(results, kind), (_requests(first, kind),))
            for kind in kinds
        ),
    ]


def day_dict(results: Sequence[DayResult]) -> dict[str, Any]:
    """Return the figures as plain data for JSON; a figure that nothing was measured for is null."""
    data: dict[str, Any] = _without_nan([asdict(result) for result in results])
    return {"battery_j": BATTERY_J, "days": data}


def _rows(results: Sequence[DayResult], kind: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (result.preset, label, *_cells(figures[kind]))
        for result in results
        for label, figures in (("without", result.without), ("with", result.with_power))
    )


def _cells(of: PhaseFigures) -> tuple[str, ...]:
    return (
        _shown(of.energy_j),
        UNKNOWN if math.isnan(of.battery_j.mean) else f"{of.battery_j.mean / BATTERY_J:.2%}",
        _shown(of.server_usd),
        _shown(of.traffic_mb),
        _shown(of.ttft_mean_s),
        _shown(of.ttft_p99_s),
        UNKNOWN if math.isnan(of.device_share.mean) else f"{of.device_share.mean:.0%}",
        f"{of.failed.mean:.1f}",
    )


def _requests(result: DayResult, kind: str) -> str:
    return f"{result.without[kind].requests.mean:.1f} requests a day."


def _shown(figure: Figure) -> str:
    if math.isnan(figure.mean):
        return UNKNOWN
    half = (figure.high - figure.low) / 2
    digits = 0 if abs(figure.mean) >= 100 else 2 if abs(figure.mean) >= 0.1 or figure.mean == 0 else 4
    return f"{figure.mean:.{digits}f}" + (f" ± {half:.{digits}f}" if half else "")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
