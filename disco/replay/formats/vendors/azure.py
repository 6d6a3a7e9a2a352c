"""Azure's public LLM inference traces (Splitwise 2023, DynamoLLM 2024): CSV, dates with 100 ns ticks."""

from __future__ import annotations

from disco.replay.formats.format_adapter import Adapter

__all__ = ["AZURE"]

AZURE = Adapter(
    name="azure",
    about="Azure's LLM inference traces",
    needs=frozenset(("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    renames={"TIMESTAMP": "arrival_s", "ContextTokens": "prompt_tokens", "GeneratedTokens": "output_tokens"},
    dates=True,
)
