"""Checks for numbers that are in another unit than the column says: an error instead of a silent factor of 1000."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.replay.formats.format_adapter import Adapter
from disco.replay.workload.trace import Trace

__all__ = ["check_names", "check_units"]

_TIMES = ("arrival", "ttft", "device_ttft", "tpot", "device_tpot", "gaps")
_PER_SECOND = {"ms": "1000", "us": "1,000,000", "ns": "1,000,000,000"}

# If a tenth of the values is above these limits (s), the column is in milliseconds. A phone may take minutes to read a
# long prompt; no reader waits more than a few seconds for each single token.
_IMPLAUSIBLE_S = {
    "ttft_s": 300.0,
    "device_ttft_s": 3600.0,
    "tpot_s": 5.0,
    "device_tpot_s": 5.0,
    "gaps_s": 5.0,
}
_SHARE = 0.1
# Seconds since 1970 stay below the first of these until the year 5138.
_EPOCH_UNITS = ((1e17, "nanoseconds", "1e9"), (1e14, "microseconds", "1e6"), (1e11, "milliseconds", "1000"))


def check_names(columns: Collection[str], path: Path) -> None:
    """Reject a column such as `ttft_ms`, which would become a feature while the TTFT seems to be known.

    Raises:
        ConfigurationError: there is such a column, and none with the right name.
    """
    for base in _TIMES:
        if f"{base}_s" in columns:
            continue
        for unit, factor in _PER_SECOND.items():
            if f"{base}_{unit}" in columns:
                raise ConfigurationError(
                    f"{path}: column {base}_{unit} is not in seconds; divide it by {factor} and call it {base}_s"
                )
        if base in columns:
            raise ConfigurationError(
                f"{path}: column {base} does not name its unit; call it {base}_s if it is in seconds"
            )


def check_units(trace: Trace, path: Path, adapter: Adapter) -> None:
    """Check the beginning of a file, which is enough to see that a column is in another unit.

    Raises:
        ConfigurationError: a column seems to be in another unit; the message names it and how to convert it.
    """
    first_s = float(trace.arrival_s[0])
    for limit, unit, factor in _EPOCH_UNITS:
        if first_s > limit:
            raise ConfigurationError(
                f"{path}: column {adapter.theirs('arrival_s')} begins at {first_s:.6g}, which looks like {unit} since "
                f"1970; divide it by {factor}"
            )
    for name, limit in _IMPLAUSIBLE_S.items():
        values = _known(trace, name)
        above = int((values > limit).sum())
        if above <= _SHARE * values.size:
            continue
        verb = "looks" if above > values.size / 2 else "has rows that look"
        raise ConfigurationError(
            f"{path}: {above} of the first {values.size} values of column {adapter.theirs(name)} are above "
            f"{limit:g} s; the column {verb} like milliseconds. Write seconds throughout: divide by 1000"
        )


def _known(trace: Trace, name: str) -> NDArray[np.float64]:
    if name == "gaps_s":
        return np.empty(0) if trace.gaps is None else trace.gaps.values_s
    values: NDArray[np.float64] = getattr(trace, name)
    return values[~np.isnan(values)]
