"""Requests to servers whose times change: from traces, over users' days, and made up."""

from __future__ import annotations

import csv
import datetime as dt
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.profiles import Empirical, load_server
from papers.text_files import open_text

__all__ = ["Source", "Times", "made_up", "read_times", "shipped_traces", "users_days"]

_DATA: Final = Path(__file__).resolve().parent / "data"
_HOUR_S: Final = 3600.0
_INTERVAL_S: Final = 30.0
_BASE: Final = "deepseek-v3-2025"
_DAY_REQUESTS: Final = 1000
_USERS_DAY: Final = "2025-01-12"  # the day of the trace that the users' requests meet
_FEWEST: Final = 400

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """When requests come, and how long the server takes for each.

    Attributes:
        arrival_s: not decreasing, s, float64, shape (n,).
        ttft_s: of the server, s, float64, shape (n,).
    """

    arrival_s: Floats
    ttft_s: Floats


@dataclass(frozen=True, slots=True)
class Source:
    """A workload of the comparison.

    Attributes:
        name: for tables.
        group: "trace", "user" or "synthetic".
        what: description, with the source.
        draw: returns the requests of a seed; a function at module level with its arguments, so it can be pickled.
        arguments: of `draw`, before the seed.
    """

    name: str
    group: str
    what: str
    draw: Callable[..., Times]
    arguments: tuple[Any, ...]

    def __call__(self, seed: int) -> Times:
        return self.draw(*self.arguments, seed)


@lru_cache(maxsize=2)
def _data(name: str) -> Mapping[str, Any]:
    return tomllib.loads((_DATA / name).read_text(encoding="utf-8"))


def _trace(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in _data("server_times.toml")["trace"] if one["name"] == name)
    return found


def _inverse(values: list[float], u: Floats) -> Floats:
    return np.interp(u, _data("server_times.toml")["levels"], values)


def shipped_traces() -> tuple[Source, ...]:
    """Return the traces whose quantile tables the package carries, one table for each hour, run or host."""
    return tuple(
        Source(
            one["name"],
            "trace",
            f"{one['about']} ({one['source']}, {one['licence']})",
            _drawn,
            (one["name"],),
        )
        for one in _data("server_times.toml")["trace"]
    )


def _drawn(name: str, seed: int) -> Times:
    rng = np.random.default_rng([seed, 1])
    trace = _trace(name)
    times = [_inverse(part["ttft_s"], rng.random(part["rows"])) for part in trace["segments"]]
    ttft_s = np.concatenate(times)
    return Times(rng.exponential(trace["interval_s"], ttft_s.size).cumsum(), ttft_s)


def users_days() -> tuple[Source, ...]:
    """Return ten users' days against the DeepSeek API of one day."""
    data = _data("users.toml")
    return tuple(
        Source(f"user {row + 1}", "user", f"client {one['client']} of {data['source']}", _user_day, (row,))
        for row, one in enumerate(data["user"])
    )


def _user_day(row: int, seed: int) -> Times:
    """Draw a day: Gamma intervals with the user's variation, their clock running at the rate of the hour."""
    rng = np.random.default_rng([seed, 2, row])
    user = _data("users.toml")["user"][row]
    shape = 1.0 / user["cv"] ** 2
    gaps = rng.gamma(shape, 1.0 / shape, _DAY_REQUESTS)
    progress = gaps.cumsum()
    progress /= progress[-1] * (1.0 + 1.0 / _DAY_REQUESTS)
    edges = np.concatenate([[0.0], np.cumsum(user["hourly"])])
    # A tiny rate in every hour makes the clock invertible.
    edges = (edges / edges[-1] + np.linspace(0.0, 1e-6, 25)) / (1.0 + 1e-6)
    hours = np.interp(progress, edges, np.arange(25.0))
    tables = {
        int(part["name"][-2:]): part["ttft_s"]
        for part in _trace(_BASE)["segments"]
        if part["name"].startswith(_USERS_DAY)
    }
    levels = rng.random(_DAY_REQUESTS)
    ttft_s = np.empty(_DAY_REQUESTS)
    for hour, table in tables.items():
        mine = hours.astype(np.int64) == hour
        ttft_s[mine] = _inverse(table, levels[mine])
    return Times(hours * _HOUR_S, ttft_s)


def made_up() -> tuple[Source, ...]:
    """Return one steady stream, and streams whose times change by known factors."""
    what = f"times drawn from the profile {_BASE}, a request every {_INTERVAL_S:g} s on average; "
    about = {
        "steady": "nothing changes",
        "step": "twice as long from the middle on",
        "step down": "half as long from the middle on",
        "outages": "20 times as long during 40 and during 10 requests",
        "spike": "four times as long for an hour",
        "day cycle": "between half and twice as long, as a sine over 24 h",
        "ramp": "slowly two and a half times as long",
    }
    return tuple(Source(name, "synthetic", what + text, _synthetic, (name,)) for name, text in about.items())


def _synthetic(name: str, seed: int) -> Times:
    n = 2 * _DAY_REQUESTS
    rng = np.random.default_rng([seed, 3])
    arrival_s = rng.exponential(_INTERVAL_S, n).cumsum()
    row = np.arange(n)
    match name:
        case "step":
            factor = np.where(row < n // 2, 1.0, 2.0)
        case "step down":
            factor = np.where(row < n // 2, 1.0, 0.5)
        case "outages":
            out = ((row >= 700) & (row < 740)) | ((row >= 1400) & (row < 1410))
            factor = np.where(out, 20.0, 1.0)
        case "spike":
            factor = np.where((arrival_s >= 8 * _HOUR_S) & (arrival_s < 9 * _HOUR_S), 4.0, 1.0)
        case "day cycle":
            factor = 2.0 ** np.sin(2.0 * np.pi * arrival_s / (24 * _HOUR_S))
        case "ramp":
            factor = 1.0 + 1.5 * row / n
        case _:
            factor = np.ones(n)
    known: Empirical = load_server(_BASE).ttft()
    return Times(arrival_s, known.sample(rng, n) * factor)


def read_times(path: str | os.PathLike[str]) -> Source:
    """Read a trace of a server's times from a CSV file with the columns ttft_s and, if known, timestamp and error.

    Rows with an error are left out. Without time stamps (`2025-01-11 04:21:02`), a request comes every 30 s. Every
    seed gets the same times; prompts differ.

    Raises:
        ConfigurationError: no such file, no column ttft_s, a value that is no time, or too few rows.
    """
    file = Path(path)
    ttft_s: list[float] = []
    at_s: list[float] = []
    with open_text(file) as text:
        reader = csv.DictReader(text)
        if "ttft_s" not in (reader.fieldnames or ()):
            raise ConfigurationError(
                f"{file} has no column ttft_s; its first line must name ttft_s, in seconds"
            )
        for row in reader:
            if row.get("error") or not (row["ttft_s"] or "").strip():
                continue
            try:
                value = float(row["ttft_s"])
                stamp = (row.get("timestamp") or "").strip()
                at = _unix_s(stamp) if stamp else len(ttft_s) * _INTERVAL_S
            except ValueError as error:
                raise ConfigurationError(f"{file}, line {reader.line_num}: {error}") from error
            if not 0.0 <= value < float("inf"):
                raise ConfigurationError(
                    f"{file}, line {reader.line_num}: ttft_s must be at least 0 s, not {value}"
                )
            ttft_s.append(value)
            at_s.append(at)
    if len(ttft_s) < _FEWEST:
        raise ConfigurationError(f"{file} has {len(ttft_s)} times; drift needs at least {_FEWEST}")
    arrival_s = np.maximum.accumulate(np.array(at_s) - at_s[0])
    name = f"{file.parent.name}/{file.name}" if file.parent.name else file.name
    return Source(
        name, "trace", f"the file itself, {len(ttft_s):,} times", _as_read, (arrival_s, np.array(ttft_s))
    )


def _unix_s(stamp: str) -> float:
    at = dt.datetime.fromisoformat(stamp)
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()


def _as_read(arrival_s: Floats, ttft_s: Floats, seed: int) -> Times:  # noqa: ARG001 - the same for every seed
    return Times(arrival_s, ttft_s)
