"""What the rounds of an answer are charged for, and what its record says of them; the same live and in a replay."""

from __future__ import annotations

from disco.events import SpeculationReport, Usage
from disco.speculate.tally import Tally

__all__ = ["report_of", "usage_of"]


def usage_of(
    server: str, server_used: Usage, rejected: int, drafter: str | None, drafter_used: Usage
) -> Usage:
    """Return the usage of a pair, with a share for each of its two parts.

    Args:
        server: the endpoint's name.
        server_used: what the server read and wrote, without `rejected`.
        rejected: drafted tokens that the server computed in vain.
        drafter: name of who is charged for drafting; None: there is none.
        drafter_used: what the drafter read and guessed.
    """
    prompt, written, cached = (
        server_used.prompt_tokens,
        server_used.completion_tokens,
        server_used.cached_tokens,
    )
    shares = [(server, Usage(prompt, written + rejected, cached, drafted=(0, rejected, 0)))]
    if drafter is not None and (drafter_used.prompt_tokens or drafter_used.completion_tokens):
        counts = drafter_used.prompt_tokens, drafter_used.completion_tokens, drafter_used.cached_tokens
        shares.append((drafter, Usage(*counts, drafted=counts)))
    return Usage(prompt, written, cached, shares=tuple(shares))


def report_of(tally: Tally, rejected: int) -> SpeculationReport:
    """Return what an answer's record says of its rounds; `rejected` as for `usage_of`."""
    return SpeculationReport(
        rounds=tally.rounds,
        drafted=tally.drafted,
        judged=tally.judged,
        accepted=tally.accepted,
        rejected=max(rejected, tally.rejected),
        windows=tuple(sorted(tally.windows.items())),
        distributed_tokens=tally.tokens["distributed"],
        alone_tokens=tally.tokens["alone"],
        late=tally.late,
        switches=tally.switches,
        retries=tally.retries,
        draft_s=tally.draft_s,
        wire_s=tally.wire_s,
        queue_s=tally.queue_s,
        verify_s=tally.verify_s,
        timed_windows=tuple(tally.timed_windows),
    )
