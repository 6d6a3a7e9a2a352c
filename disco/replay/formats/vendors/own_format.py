"""disco's own record format: columns have the names of `Trace`'s columns; all others are features."""

from __future__ import annotations

from disco.replay.formats.format_adapter import Adapter

__all__ = ["OWN"]

OWN = Adapter(
    name="disco",
    about="columns named as in disco's own record format",
    needs=frozenset(("arrival_s", "prompt_tokens", "output_tokens")),
    from_zero=False,
)
