"""Mooncake's traces (FAST 2025): JSON lines, times in milliseconds, prompts as hashes of their blocks."""

from __future__ import annotations

from disco.replay.formats.format_adapter import Adapter

__all__ = ["MOONCAKE"]

MOONCAKE = Adapter(
    name="mooncake",
    about="Mooncake's JSONL files",
    needs=frozenset(("timestamp", "input_length", "output_length")),
    renames={"timestamp": "arrival_s", "input_length": "prompt_tokens", "output_length": "output_tokens"},
    divide={"arrival_s": 1000},
    drops=frozenset(("hash_ids",)),
)
