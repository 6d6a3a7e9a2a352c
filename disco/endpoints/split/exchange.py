"""Frames that were sent and their replies; what was lost on the way, or there, is sent again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy.typing as npt

from disco.endpoints.llamacpp.model.stop_flag import Aborted, StopFlag
from disco.endpoints.split.layer_link import LayerLink, LinkLost
from disco.endpoints.split.link_meter import LinkMeter
from disco.endpoints.split.wire import Code, Frame, Kind
from disco.errors import ContextLengthError, EndpointFailure, FailureKind, IncompleteAnswerError

__all__ = ["Exchange", "Sent"]

_RECONNECTIONS: Final = 2
_RESENDS: Final = 4  # of one frame that the server has lost the beginning for


@dataclass(slots=True)
class Sent:
    """A frame and its reply. Mutable.

    Attributes:
        slot, at, rows, wanted: as sent.
        number: of the newest sending.
        sent_s, replied_s: when, s.
        reply: None until it is there.
        resent: how often it was sent again.
    """

    slot: int
    at: int
    rows: int
    wanted: int
    number: int = -1
    sent_s: float = 0.0
    replied_s: float = 0.0
    reply: Frame | None = None
    resent: int = 0


class Exchange:
    """The frames of one device. For one thread. Mutable: `flag`, `_pending`.

    Args:
        link: the connection; opened when it is needed.
        states_of: returns the states of a sequence from a position to another.
        name: the endpoint's, for messages.
        most_rows: of one frame.
        clock: s.

    Attributes:
        flag: stops all waiting.
    """

    def __init__(
        self,
        link: LayerLink,
        states_of: Callable[[int, int, int], npt.NDArray[Any]],
        *,
        name: str,
        most_rows: int,
        clock: Callable[[], float],
    ) -> None:
        self._link, self._states_of = link, states_of
        self._name, self._most_rows, self._clock = name, most_rows, clock
        self.flag = StopFlag()
        self._pending: list[Sent] = []

    def send(self, frame: Sent, states: npt.NDArray[Any]) -> None:
        """Send states; their reply is waited for by `collect`.

        Raises:
            Aborted: the flag was set.
            EndpointFailure: the server cannot be reached, or refuses the rows.
        """
        self._pending.append(frame)
        for attempt in range(_RECONNECTIONS + 1):
            try:
                if not self._link.is_open:
                    self._link.open()
                    self._send_again(self._pending[:-1])
                self._put(frame, states)
                return
            except LinkLost as lost:
                self._look(lost, attempt)

    def _put(self, frame: Sent, states: npt.NDArray[Any]) -> None:
        frame.sent_s = self._clock()
        frame.number = self._link.send(frame.slot, frame.at, states, frame.wanted)

    def _send_again(self, frames: Sequence[Sent]) -> None:
        for frame in frames:
            if frame.reply is None:
                self._put(frame, self._states_of(frame.slot, frame.at, frame.at + frame.rows))

    def _look(self, lost: LinkLost, attempt: int) -> None:
        """Give up where the thread is to stop, or the link was made anew often enough."""
        if self.flag.is_set():
            self._pending.clear()
            raise Aborted from lost
        if attempt == _RECONNECTIONS:
            self._pending.clear()
            raise self._link.unreachable(lost) from lost

    def collect(self, meter: LinkMeter | None = None) -> None:
        """Wait until every frame has its reply, and let the meter learn from them.

        Raises:
            Aborted, EndpointFailure: as from `send`.
        """
        attempt = 0
        while waiting := [frame for frame in self._pending if frame.reply is None]:
            try:
                if not self._link.is_open:
                    self._link.open()
                    self._send_again(waiting)
                size = sum(self._link.frame_bytes(frame.rows) for frame in waiting)
                self._take(self._link.receive(self.flag.is_set, size))
            except LinkLost as lost:
                self._look(lost, attempt)
                attempt += 1
        if meter is not None:
            self._learn(self._pending, meter)
        self._pending = []

    def _take(self, reply: Frame) -> None:
        frame = next((one for one in self._pending if one.number == reply.number), None)
        if frame is None or frame.reply is not None:
            return  # of an earlier sending
        if reply.kind is Kind.STATES and reply.rows == frame.wanted:
            frame.reply, frame.replied_s = reply, self._clock()
        elif reply.kind is Kind.ERROR and reply.code is Code.LOST and frame.resent < _RESENDS:
            self._catch_up(frame.slot, reply.at)
        else:
            self._pending.clear()
            raise self._refused(reply)

    def _catch_up(self, slot: int, have: int) -> None:
        """Send again what the server has lost of a sequence, and the frames behind it."""
        later = [frame for frame in self._pending if frame.slot == slot and frame.reply is None]
        first = min(frame.at for frame in later)
        have = min(have, first)
        if have < first:
            most = self._most_rows
            for at in range(have, first, most):
                self._link.send(slot, at, self._states_of(slot, at, min(at + most, first)), 0)
        for frame in later:
            frame.resent += 1
        self._send_again(later)

    def _refused(self, reply: Frame) -> EndpointFailure:
        if reply.code is Code.TOO_LONG:
            message = f"The prompt is longer than the layer server of {self._name!r} takes."
            return EndpointFailure(FailureKind.CONTEXT_LENGTH, ContextLengthError(message))
        busy = reply.code is Code.BUSY
        kind = FailureKind.RATE_LIMIT if busy else FailureKind.SERVER
        why = reply.text or "a reply of another length"
        message = f"The layer server of {self._name!r} refused rows: {why}."
        return EndpointFailure(kind, IncompleteAnswerError(message), retry_after_s=1.0 if busy else None)

    def _learn(self, frames: Sequence[Sent], meter: LinkMeter) -> None:
        """Learn what the cloud's passes took, and the uplink's rate where frames followed each other in a row."""
        for frame in frames:
            assert frame.reply is not None
            meter.computed(frame.rows, frame.reply.wanted, frame.reply.compute_s)
        for before, frame in pairwise(frames):
            apart_s = frame.replied_s - before.replied_s
            reply = frame.reply
            if reply is not None and frame.sent_s < before.replied_s and apart_s > 2 * reply.compute_s:
                meter.flowed_up(self._link.frame_bytes(frame.rows), apart_s)
