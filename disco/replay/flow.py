"""Stretches of an answer between whose packets nothing stands but the reader's pace, taken at once.

A replay knows what an endpoint will write and when. So what `Session.deltas` and `Session.woken` would do packet by
packet is done by `playback.stretch` for many packets, and written down in the session here. A move that is only
considered does not end a stretch: the rule is asked at the same times as live, and the first packet at which its verdict
would change anything is left to the session. Tests hold both ways against each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from disco.endpoints.simulated_script import Scripted
from disco.events import Delta, Ended
from disco.playback.stretch import Asking, Pieces, play_stretch
from disco.session.handover import RECONSIDER_S
from disco.session.machine import Session

__all__ = ["KnownPackets", "take_stretch"]

_ROUNDING_S = 1e-9  # while an answer moves `wake_at` is worked out anew at every packet


class KnownPackets:
    """An attempt's events, whose times and texts are known: packets of one token each, then the end.

    Mutable: `taken`, how many packets have been. Iterating takes them one by one.
    """

    __slots__ = ("_ended", "_packets", "_times_s", "first", "pieces", "taken")

    def __init__(
        self,
        times_s: list[float],
        packets: Sequence[list[Delta]],
        pieces: Pieces,
        first: int,
        ended: Ended,
    ) -> None:
        """Take over what is given.

        Args:
            times_s: of the packets since the attempt's beginning; where there is none, of the end.
            packets: what is written; of one token each.
            pieces: of the text that they are a part of.
            first: the piece that the first packet is.
            ended: comes with the last packet.
        """
        self._times_s = times_s
        self._packets = packets
        self._ended: Ended | None = ended
        self.pieces = pieces
        self.first = first
        self.taken = 0

    def __iter__(self) -> KnownPackets:
        return self

    def __next__(self) -> Scripted:
        taken = self.taken
        if taken < len(self._packets):
            self.taken = taken + 1
            return self._times_s[taken], self._packets[taken]
        if self._ended is None:
            raise StopIteration
        ended, self._ended = self._ended, None
        return self._times_s[-1], ended

    def coming(self, started_at: float, until: float) -> list[float]:
        """When the packets come that are not taken yet and come before `until`; on the clock of `started_at`."""
        if self.taken >= len(self._packets):
            return []
        times = self._times_s[self.taken :]
        if started_at:
            if self._times_s[-1] + started_at >= until:  # as many as may come by then, or one more
                del times[bisect_left(times, until - started_at) + 1 :]
            times = [started_at + at for at in times]
        return times if times[-1] < until else times[: bisect_left(times, until)]


def take_stretch(session: Session, number: int, known: KnownPackets, started_at: float, until: float) -> int:
    """Have a session take as many packets as can be taken at once.

    Args:
        session: between two events; nothing is done where it does not allow a stretch.
        number: the attempt that writes them.
        known: what the attempt writes; the packets taken are taken from it.
        started_at: when it began, s.
        until: packets of that time or later are not taken.

    Returns:
        How many.
    """
    playback, pieces, first = session.playback, known.pieces, known.first + known.taken
    if session.is_moving_from(number):
        times = known.coming(started_at, min(until, session.wake_at - _ROUNDING_S))
        if times:
            session.take_beyond(number, times, pieces.deltas[first : first + len(times)])
            known.taken += len(times)
        return len(times)
    if playback.pace is None or not session.flows(number, considering=True):
        return 0
    times = known.coming(started_at, until)
    if not times:
        return 0
    considered = session.considered_move(times[0])
    asking = None
    if considered is not None:
        asking = Asking(considered.leaves_all_as_it_is, RECONSIDER_S, considered.ask_at)
    played = play_stretch(playback, pieces, first, times, until, asking)
    if played is None:
        return 0
    taken = played.taken
    known.taken += taken
    written = slice(first, first + taken)
    left = slice(first, first + len(played.released_at) - len(played.queued))
    session.take_stretch(
        number,
        written_at=times[:taken],
        written=(pieces.texts[written], pieces.tokens[written]),
        released_at=played.released_at,
        released=(
            [delta.text for delta in played.queued] + pieces.texts[left],
            [delta.tokens for delta in played.queued] + pieces.tokens[left],
        ),
        wake_at=played.next_at,
        asked_until=None if asking is None else asking.next_at,
    )
    return taken
