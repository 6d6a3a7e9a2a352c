"""When a migration under way is given up, because its target is late. A pure function of what is known of it."""

from __future__ import annotations

from math import inf

from disco.session.attempt.attempt_state import AttemptState, is_content
from disco.session.session_config import RunningMigration, SessionConfig

__all__ = ["late_at"]


def late_at(
    moving: RunningMigration, source: AttemptState, read_at: float, config: SessionConfig, lateness: float
) -> float:
    """Return when to give up a migration of a streamed answer, in seconds; `inf` where it is not to be given up.

    A rise is not given up: what the source writes is in doubt. Nor is the heir of a silent source. Giving up another
    migration pays only while the source still writes and has text after the cut, or is paused. With a pace, the time is
    when the reader has read everything; a paused source goes on early enough that its next token is not late. Without a
    pace the reader waits from the cut on; the time is then `margin` times the expected duration after the decision.

    Args:
        moving: the migration under way.
        source: its source.
        read_at: when a reader with a pace will have read all that is released, s.
        config: the session's.
        lateness: how many times as long as expected this answer's targets took; it grows with each that was late.
    """
    if moving.rises or moving.is_doubt or not source.active:
        return inf
    paused = source.paused_at is not None
    if not (paused or is_content(moving.beyond)):
        return inf
    if config.pace_tps is None:
        return moving.decided_at + lateness * config.margin * moving.expected_s
    if paused:
        next_token_s = config.margin / source.candidate.decode_tps
        read_at -= max(0.0, next_token_s - sum(d.tokens for d in moving.beyond) / config.pace_tps)
    return read_at
