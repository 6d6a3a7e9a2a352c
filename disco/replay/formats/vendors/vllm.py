"""vLLM's serving benchmark with `--save-detailed`: one JSON object with one list per quantity, in seconds.

Older versions have no `start_times`. SGLang's benchmark with `--output-details` has the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from disco.errors import ConfigurationError
from disco.replay.formats.format_adapter import LASTS_S, Adapter, Row, number, whole

__all__ = ["VLLM"]

_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times")


def _rows(document: Row) -> Iterator[Row | None]:
    lists: dict[str, list[Any]] = {}
    for key in _LISTS:
        values = document.get(key)
        if values:
            if not isinstance(values, list):
                raise ConfigurationError(f"{key} is not a list; write the file with --save-detailed")
            lists[key] = values
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in lists.items())
        raise ConfigurationError(
            f"the lists must have one entry per request each, but have {lengths}; write the file again"
        )
    for entries in zip(*lists.values(), strict=True):
        yield dict(zip(lists, entries, strict=True))


def _row(row: Row) -> Row | None:
    if row.get("errors"):
        return None
    output_tokens = whole(row, "output_lens")
    ttft_s = number(row, "ttfts")
    if output_tokens == 0 or ttft_s == 0:
        return None
    gaps = row.get("itls")
    gaps_s = [number({"itls": gap}, "itls") for gap in gaps] if isinstance(gaps, list) else []
    found: dict[str, Any] = {
        "prompt_tokens": whole(row, "input_lens"),
        "output_tokens": output_tokens,
        "ttft_s": ttft_s,
        "tpot_s": sum(gaps_s) / (output_tokens - 1) if gaps_s and output_tokens > 1 else None,
        # A chunk may carry several tokens. Then only the mean of the gaps between tokens is known.
        "gaps_s": gaps_s if abs(len(gaps_s) - (output_tokens - 1)) <= 1 else [],
    }
    if "start_times" in row:
        return {**found, "arrival_s": number(row, "start_times")}
    return {**found, LASTS_S: ttft_s + sum(gaps_s)}


VLLM = Adapter(
    name="vllm",
    about="a vLLM serving benchmark saved with --save-detailed",
    needs=frozenset(("input_lens", "output_lens", "ttfts", "itls")),
    row=_row,
    document=_rows,
    sorts=True,
    note="arrivals are its start_times; without them, each request arrives when the one before it is complete",
)
