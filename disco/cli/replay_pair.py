"""`disco replay --pair FILE`: a device that drafts for a verify server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disco.replay.pairs import load_pair
from disco.replay.workload.scenario import Scenario

__all__ = ["with_pair"]


def with_pair(scenarios: Sequence[Scenario], path: Path) -> tuple[list[Scenario], list[str]]:
    """Return the scenarios with the pair of a file, and what a reader must know about it.

    Raises:
        ConfigurationError: the file cannot be read, or is wrong.
    """
    pair = load_pair(path)
    paired = [scenario.with_pair(pair) for scenario in scenarios]
    notes = [
        f"Drafts: {path.name}. The server's time per token is that of the file, except where the trace has one."
    ]
    for scenario in paired:
        _, server = scenario.stations(drafts=True)
        token_s = 1.0 / server.candidate().decode_tps
        notes.append(
            f"{scenario.name}: {1e3 * pair.alone_s:.1f} ms per token without drafts, {1e3 * token_s:.1f} ms predicted "
            "with drafts once the device has read the prompt."
        )
    return paired, notes
