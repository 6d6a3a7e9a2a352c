"""Playing a stretch in which nothing but the reader's pace stands between one packet and the next.

What `Session.deltas` and `Session.woken` would do, packet by packet, for a driver that knows what comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from disco.events import Delta
from disco.session.attempts import AttemptState
from disco.session.machine import Session

__all__ = ["flow", "flows"]


def flows(session: Session, state: AttemptState) -> bool:
    """Whether nothing but releases can follow from what this attempt writes next."""
    return (
        session.transcript.writer is state
        and state.first_content_at is not None
        and session.is_undisturbed
        and state.allowance is None
    )


def flow(
    session: Session,
    state: AttemptState,
    packets: Iterable[tuple[float, Any]],
    offset_s: float,
    until: float,
    out: list[tuple[float, list[Delta]]] | None = None,
) -> tuple[float, Any]:
    """Take all that the writer writes in a row.

    Args:
        session: of which `flows` holds.
        state: the writer.
        packets: (seconds after `offset_s`, event) in order; taken up to the first event that is none of the
            writer's packets, which is the last at the latest.
        offset_s: see there.
        until: packets of that time or later are not taken either.
        out: where (time, deltas) is written down as the reader gets it, if anywhere.

    Returns:
        (time, event) of the one that was fetched and not taken.
    """
    transcript, playback, wake_at = session.transcript, session.transcript.playback, session.wake_at
    for at, event in packets:
        now = at + offset_s
        if now >= until or type(event) is not list:
            session.wake_at = wake_at
            return now, event
        while wake_at < now:
            deltas = transcript.release(wake_at)
            if deltas and out is not None:
                out.append((wake_at, deltas))
            next_at = playback.next_at
            wake_at = inf if next_at is None else next_at
        state.last_at = now
        transcript.add(state, event, now, None)
        deltas = transcript.release(now)
        if deltas and out is not None:
            out.append((now, deltas))
        next_at = playback.next_at
        wake_at = inf if next_at is None else next_at
    raise AssertionError("what an attempt does ends with Ended or a failure")
