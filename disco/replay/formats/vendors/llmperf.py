"""llmperf's `*_individual_responses.json`: one object per request, in seconds, without arrival times.

Its `inter_token_latency_s` is the whole time over the output tokens, so it contains the time to first token. The time
per token after the first is computed from the other two instead. `ttft_s` is 0 if no text came at all.
"""

from __future__ import annotations

from disco.replay.formats.format_adapter import LASTS_S, Adapter, Row, number, whole

__all__ = ["LLMPERF"]


def _row(row: Row) -> Row | None:
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
    row=_row,
    note="llmperf has no arrival times: each request arrives when the one before it is complete",
)
