"""The formats that disco reads, and how it detects them.

To add one: write its `Adapter` in `vendors` (the class says how; `MOONCAKE` is the shortest with a unit, `LLMPERF` the
shortest with a function per row) and add it to `FORMATS`. Nothing else is needed: `read_trace`,
`read_chunks`, "auto", the command line's choices and the error messages read this mapping.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from disco.errors import ConfigurationError, meant, nearest
from disco.replay.formats.format_adapter import Adapter
from disco.replay.formats.route_records import ROUTES
from disco.replay.formats.vendors import AZURE, BURSTGPT, LLMPERF, MOONCAKE, OWN, VLLM

__all__ = ["AUTO", "FORMATS", "adapter_for"]

AUTO = "auto"

FORMATS: Mapping[str, Adapter] = {
    adapter.name: adapter
    for adapter in (
        OWN,
        BURSTGPT,
        AZURE,
        MOONCAKE,
        LLMPERF,
        VLLM,
        ROUTES,
    )
}

_VLLM_SUMMARY = frozenset(("request_throughput", "mean_ttft_ms"))


def adapter_for(
    format: str,  # noqa: A002 (the users' word)
    heads: Sequence[Collection[str]],
    path: Path,
) -> Adapter:
    """Return the adapter of a format, or the one that matches the columns.

    Args:
        format: a name in `FORMATS`, or "auto".
        heads: the file's column names, or the keys of each of its first JSON objects; at least one. The first that
            matches decides.
        path: for the message.

    Raises:
        ConfigurationError: there is no such format, or columns that it needs are missing.
    """
    columns = heads[0]
    found = set(columns)
    if format != AUTO:
        adapter = known_format(format)
        if not any(adapter.needs <= set(head) for head in heads):
            raise ConfigurationError(f"{path}: {_lacks(adapter, found)} {_it_has(columns)}")
        return adapter
    for head in map(set, heads):
        fitting = [adapter for adapter in FORMATS.values() if adapter.needs <= head]
        if fitting:
            return max(fitting, key=lambda adapter: len(adapter.needs))
    if found >= _VLLM_SUMMARY:
        raise ConfigurationError(
            f"{path}: this is the summary of a vLLM serving benchmark, without its requests; run the benchmark with "
            "--save-result --save-detailed"
        )
    closest = max(FORMATS.values(), key=lambda adapter: len(adapter.needs & found) / len(adapter.needs))
    known = "; ".join(f"{a.name} ({', '.join(sorted(a.needs))})" for a in FORMATS.values())
    raise ConfigurationError(
        f"{path}: no known format has these columns. {_it_has(columns)} Formats: {known}. {_lacks(closest, found)}"
    )


def known_format(format: str) -> Adapter:  # noqa: A002
    """Return the adapter of a format.

    Raises:
        ConfigurationError: there is no such format.
    """
    try:
        return FORMATS[format]
    except KeyError:
        raise ConfigurationError(
            f"unknown trace format {format!r}. {nearest(format, [*FORMATS, AUTO])}"
        ) from None


def _lacks(adapter: Adapter, found: set[str]) -> str:
    missing = sorted(adapter.needs - found)
    spare = found - adapter.needs
    close = [f"{name!r}: {hint}" for name in missing if (hint := meant(name, spare))]
    hint = f" ({' '.join(close)})" if close else ""
    return f"For the format {adapter.name!r} the file lacks {', '.join(map(repr, missing))}{hint}."


def _it_has(columns: Collection[str]) -> str:
    shown = [repr(c) for c in list(columns)[:20]]
    more = f" and {len(columns) - 20} more" if len(columns) > 20 else ""
    return f"The file has {', '.join(shown) or 'none'}{more}."
