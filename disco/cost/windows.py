"""The windows of absolute budgets: a number of seconds that slides, or a calendar period in UTC.

A calendar period is the same for every program and machine, whatever their time zones and their daylight saving: the
bills of providers are made by the month in UTC.

A window is counted in pieces, which are whole numbers. Pure functions of Unix times in seconds.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Final, Literal, get_args

from disco import amounts

__all__ = [
    "BUCKETS",
    "PERIODS",
    "Period",
    "Window",
    "freed_at",
    "gone_until",
    "in_words",
    "named",
    "piece_of",
]

Period = Literal["hour", "day", "week", "month"]
"""A calendar period, in UTC. Weeks begin on Mondays."""

Window = float | Period
"""A number of seconds, above 0, of which every span counts; or a calendar period."""

PERIODS: Final[tuple[Period, ...]] = get_args(Period)

BUCKETS: Final = 1024
"""A sliding window has this many pieces; the cost of a piece is freed when its last moment has left the window."""

_PRECISION_S: Final = 1e-6  # of Unix times as floats
_LENGTHS_S: Final = {"hour": 3600, "day": 86_400, "week": 604_800}
_FIRST_MONDAY_S: Final = 4 * 86_400  # the Unix epoch was a Thursday
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def piece_of(window: Window, at: float) -> int:
    """Return the piece that a time falls into: of a sliding window, the first one that ends no earlier."""
    if not isinstance(window, str):
        grain_s = _grain_s(window)
        piece = math.ceil(at / grain_s)
        return piece if piece * grain_s >= at else piece + 1
    if window == "month":
        when = _EPOCH + dt.timedelta(seconds=math.floor(at))
        return when.year * 12 + when.month - 1
    return math.floor((at - _offset_s(window)) / _LENGTHS_S[window])


def gone_until(window: Window, now: float) -> int:
    """Return the last piece that has left the window."""
    if isinstance(window, str):
        return piece_of(window, now) - 1
    grain_s = _grain_s(window)
    piece = math.floor((now - window) / grain_s)
    while piece * grain_s + window > now:
        piece -= 1
    return piece


def freed_at(window: Window, piece: int) -> float:
    """Return when a piece leaves the window, Unix time, s."""
    if not isinstance(window, str):
        return piece * _grain_s(window) + window
    if window == "month":
        year, month = divmod(piece + 1, 12)
        return (dt.datetime(year, month + 1, 1, tzinfo=dt.UTC) - _EPOCH).total_seconds()
    return float((piece + 1) * _LENGTHS_S[window] + _offset_s(window))


def in_words(window: Window, now: float | None = None) -> str:
    """Return which time a window is: "in any 24 hours", "a month"; with the present, "this month (until 1 May, UTC)".

    Args:
        window: the window.
        now: the present, Unix time, s.
    """
    if not isinstance(window, str):
        return f"in any {amounts.span(window)}"
    if now is None:
        return f"{'an' if window == 'hour' else 'a'} {window}"
    return f"{named(window)} (until {amounts.date(freed_at(window, piece_of(window, now)), now)})"


def named(period: str) -> str:
    """Return what people call the present period."""
    return "today" if period == "day" else f"this {period}"


def _grain_s(window_s: float) -> float:
    return max(window_s / BUCKETS, _PRECISION_S)


def _offset_s(period: Period) -> int:
    return _FIRST_MONDAY_S if period == "week" else 0
