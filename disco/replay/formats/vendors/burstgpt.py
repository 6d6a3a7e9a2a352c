"""BurstGPT: a university's Azure OpenAI traffic (Wang et al., arXiv 2401.17644), CSV, times in seconds.

Later releases have two more columns, `Session ID` and `Elapsed time` (the whole answer's, in seconds). The source marks
a failed request with 0 response tokens.
"""

from __future__ import annotations

from disco.replay.formats.format_adapter import Adapter

__all__ = ["BURSTGPT"]

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
