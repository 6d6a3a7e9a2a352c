"""Playback of a stretch of packets in which only the reader's pace matters between one packet and the next.

These functions do what `Session.deltas` and `Session.woken` would do packet by packet, for a driver that knows the
packets in advance. `flow` takes them one by one. `take_stretch` takes many at once, if the text and the times of an
attempt are known. A migration that is only considered does not end a stretch: the rule is asked at the same times as in
a live client, and the session handles the first packet at which the rule's verdict would change anything. Both leave
a session in the same state as packet by packet, to the last bit; but for `AttemptState.longest_gap_s`, which nothing
in replay reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from math import inf
from typing import Any

from disco.endpoints.simulation.simulated_script import Scripted
from disco.events import Delta, Ended
from disco.replay.simulator.paced_stretch import Asking, Pieces, play_stretch
from disco.session.attempt.attempt_state import AttemptState
from disco.session.machine import Session
from disco.session.switching.migration import RECONSIDER_S

__all__ = ["KnownPackets", "flow", "flows", "take_stretch"]

_ROUNDING_S = 1e-9  # while an answer migrates, `wake_at` is computed again at every packet


def flows(session: Session, state: AttemptState) -> bool:
    """Return whether only releases can follow from the attempt's next packets."""
    return (
        session.transcript.writer is state
        and state.first_content_at is not None
        and not (session.migration.move or session.migration.moving)
        and only_moves(session)
        and state.allowance is None
    )


def only_moves(session: Session) -> bool:
    """Return whether only releases and at most a migration can follow from the writer's next packets."""
    ended = session.ending.ended or not session.config.streams or session.rise is not None
    if session.assist is not None and session.assist.outcome == "running":
        return False
    if session.silence is not None and session.silence.next_at < inf:
        return False
    parts = session.parts
    return not (ended or parts.race.pending) and parts.attempts.deadlines.next_at == inf


def flow(
    session: Session,
    state: AttemptState,
    packets: Iterable[tuple[float, Any]],
    offset_s: float,
    until: float,
    out: list[tuple[float, list[Delta]]] | None = None,
) -> tuple[float, Any]:
    """Take all consecutive packets of the writer.

    Args:
        session: a session for which `flows` holds.
        state: the writer.
        packets: (seconds after `offset_s`, event) in order. They are taken up to the first event that is not a packet
            of the writer; the last event never is one.
        offset_s: time that the packets' times are counted from, s.
        until: packets at this time or later are not taken.
        out: list that gets (time, deltas) when the reader gets them; None: they are not written down.

    Returns:
        (time, event) of the event that was fetched and not taken.
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
    raise AssertionError("the events of an attempt must end with Ended or a failure")


class KnownPackets:
    """An attempt's events with known times and texts: packets of one token each, then the end.

    Mutable: `taken`, how many packets were taken. Iterating takes them one by one.
    """

    __slots__ = (
        "_ended",
        "_first_at",
        "_gaps",
        "_known_at",
        "_known_from_at",
        "_known_s",
        "_packets",
        "first",
        "pieces",
        "taken",
    )

    def __init__(
        self,
        first_at: float,
        gaps: Iterator[float],
        packets: Sequence[list[Delta]],
        pieces: Pieces,
        first: int,
        ended: Callable[[], Ended],
    ) -> None:
        """Store the arguments.

        Args:
            first_at: time of the first packet, s since the attempt's beginning; without packets, of the end.
            gaps: seconds between each packet and the next; only as many as needed are taken.
            packets: what is written, one token each.
            pieces: the text that the packets are a part of.
            first: number of the piece that is the first packet.
            ended: returns the event that comes with the last packet.
        """
        self._first_at = first_at
        self._gaps = gaps
        # Both are computed late: most attempts that lose a race are asked only for the first packet.
        self._known_s: list[float] | None = None
        self._known_at: list[float] | None = None
        self._known_from_at = 0.0
        self._packets = packets
        self._ended: Callable[[], Ended] | None = ended
        self.pieces = pieces
        self.first = first
        self.taken = 0

    def __iter__(self) -> KnownPackets:
        return self

    @property
    def _times_s(self) -> list[float]:
        times_s = self._known_s
        if times_s is None:
            every = accumulate(chain((self._first_at,), self._gaps))
            times_s = self._known_s = list(islice(every, max(len(self._packets), 1)))
        return times_s

    def __next__(self) -> Scripted:
        taken = self.taken
        if not taken and self._packets:
            self.taken = 1
            return self._first_at, self._packets[0]
        if taken < len(self._packets):
            self.taken = taken + 1
            return self._times_s[taken], self._packets[taken]
        if self._ended is None:
            raise StopIteration
        ended, self._ended = self._ended, None
        return self._times_s[-1], ended()

    def coming(self, started_at: float, until: float) -> list[float]:
        """Return the times of the packets that are not taken yet and come before `until`, s.

        Args:
            started_at: time when the attempt began to work, s; later than at the call before after a pause.
            until: time, s.
        """
        times = self._known_at
        if times is None or started_at != self._known_from_at:
            self._known_from_at = started_at
            times = self._times_s
            if started_at:
                times = [started_at + at for at in times]
            self._known_at = times
        return times[self.taken : bisect_left(times, until, self.taken, len(self._packets))]


def take_stretch(
    session: Session, state: AttemptState, known: KnownPackets, started_at: float, until: float
) -> int:
    """Let a session take as many packets as can be taken at once.

    Args:
        session: between two events. Nothing is done if its state does not allow a stretch.
        state: the attempt that writes.
        known: the attempt's packets; those that the session takes are removed.
        started_at: time when the attempt began, s.
        until: packets at this time or later are not taken.

    Returns:
        How many packets were taken.
    """
    transcript, migration = session.transcript, session.migration
    playback = transcript.playback
    if (
        playback.pace is None
        or transcript.writer is not state
        or state.first_content_at is None
        or state.allowance is not None
        or not only_moves(session)
    ):
        return 0
    if migration.moving is not None:
        return _take_beyond(session, state, known, started_at, until)
    times = known.coming(started_at, until)
    if not times:
        return 0
    considered = migration.considered()
    asking = None
    if considered is not None:
        asking = Asking(considered.leaves_all_as_it_is, RECONSIDER_S, considered.ask_at)
    pieces, first = known.pieces, known.first + known.taken
    played = play_stretch(playback, pieces, first, times, asking)
    if played is None:
        return 0
    taken, queued = played.taken, played.queued
    known.taken += taken
    written = slice(first, first + taken)
    left = slice(first, first + len(played.released_at) - len(queued))
    transcript.take_stretch(
        (times[:taken], pieces.texts[written], pieces.tokens[written]),
        (
            played.released_at,
            [delta.text for delta in queued] + pieces.texts[left],
            [delta.tokens for delta in queued] + pieces.tokens[left],
        ),
    )
    session.wake_at = played.next_at
    if asking is not None:
        migration.was_asked(asking.next_at)
    return taken


def _take_beyond(
    session: Session, state: AttemptState, known: KnownPackets, started_at: float, until: float
) -> int:
    """Take what a migration's source writes behind the cut until `wake_at`; the session handles the last packet."""
    moving = session.migration.moving
    if moving is None or not moving.beyond or moving.source != state.number:
        return 0
    times = known.coming(started_at, min(until, session.wake_at - _ROUNDING_S))[:-1]
    first = known.first + known.taken
    for now, delta in zip(times, known.pieces.deltas[first : first + len(times)], strict=True):
        state.last_at = now
        session.transcript.add(state, [delta], now, moving.beyond)
    known.taken += len(times)
    return len(times)
