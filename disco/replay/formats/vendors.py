"""disco's own format, and those of public workloads and of benchmarks. To add one: `FORMATS` in `format_registry`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from disco.errors import ConfigurationError
from disco.replay.formats.format_adapter import LASTS_S, Adapter, Row, number, whole

__all__ = ["AZURE", "BURSTGPT", "LLMPERF", "MOONCAKE", "OWN", "VLLM"]

# Columns have the names of `Trace`'s columns; all others are features.
OWN = Adapter(
    name="disco",
    about="columns named as in disco's own record format",
    needs=frozenset(("arrival_s", "prompt_tokens", "output_tokens")),
    from_zero=False,
)

# A university's Azure OpenAI traffic (Wang et al., arXiv 2401.17644), CSV, times in seconds. Later releases have
# two more columns, `Session ID` and `Elapsed time` (the whole answer's, s). A failed request has 0 response tokens.
BURSTGPT = Adapter(
    name="burstgpt",
    about="BurstGPT's CSV files",
    needs=frozenset(("Timestamp", "Model", "Request tokens", "Response tokens")),
    renames={
        "Timestamp": "arrival_s",
        "Request tokens": "prompt_tokens",
        "Response tokens": "output_tokens",
        "Model": "model",
        "Log Type": "log_type",
        "Session ID": "session",
        "Elapsed time": "elapsed_s",
    },
    drops=frozenset(("Total tokens",)),
    failed=lambda columns: columns["output_tokens"] == 0,
)

# Azure's public LLM inference traces (Splitwise 2023, DynamoLLM 2024): CSV, dates with 100 ns ticks.
AZURE = Adapter(
    name="azure",
    about="Azure's LLM inference traces",
    needs=frozenset(("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    renames={"TIMESTAMP": "arrival_s", "ContextTokens": "prompt_tokens", "GeneratedTokens": "output_tokens"},
    dates=True,
)

# FAST 2025: JSON lines, times in milliseconds, prompts as hashes of their blocks.
MOONCAKE = Adapter(
    name="mooncake",
    about="Mooncake's JSONL files",
    needs=frozenset(("timestamp", "input_length", "output_length")),
    renames={"timestamp": "arrival_s", "input_length": "prompt_tokens", "output_length": "output_tokens"},
    divide={"arrival_s": 1000},
    drops=frozenset(("hash_ids",)),
)


# llmperf's `*_individual_responses.json`: one object per request, in seconds, without arrival times. Its
# `inter_token_latency_s` is the whole time over the output tokens, so it contains the time to first token. The time per
# token after the first is computed from the other two instead. `ttft_s` is 0 if no text came at all.
def _llmperf_row(row: Row) -> Row | None:
    if row.get("error_code") is not None:
        return None
    output_tokens = whole(row, "number_output_tokens")
    ttft_s = number(row, "ttft_s")
    if output_tokens == 0 or ttft_s == 0:
        return None
    lasts_s = number(row, "end_to_end_latency_s")
    tpot_s = max(lasts_s - ttft_s, 0.0) / (output_tokens - 1) if output_tokens > 1 else None
    return {
        "prompt_tokens": whole(row, "number_input_tokens"),
        "output_tokens": output_tokens,
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        LASTS_S: lasts_s,
    }


LLMPERF = Adapter(
    name="llmperf",
    about="llmperf's individual_responses.json",
    needs=frozenset(("ttft_s", "number_input_tokens", "number_output_tokens", "end_to_end_latency_s")),
    row=_llmperf_row,
    note="llmperf has no arrival times: each request arrives when the one before it is complete",
)

# vLLM's serving benchmark with `--save-detailed`: one JSON object with one list per quantity, in seconds. Older
# versions have no `start_times`. SGLang's benchmark with `--output-details` has the same keys.
_VLLM_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times")


def _vllm_rows(document: Row) -> Iterator[Row | None]:
    lists: dict[str, list[Any]] = {}
    for key in _VLLM_LISTS:
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


def _vllm_row(row: Row) -> Row | None:
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
    row=_vllm_row,
    document=_vllm_rows,
    sorts=True,
    note="arrivals are its start_times; without them, each request arrives when the one before it is complete",
)
