"""Frames that were sent and their replies; what was lost on the way, or there, is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
        slot, at, wanted: as sent.
        states: as sent, shape (rows, hidden); kept until the reply is there.
        number: of the newest sending.
        sent_s, replied_s: when, s.
        reply: None until it is there.
        resent: how often it was sent again.
    """

    slot: int
    at: int
    wanted: int
    states: npt.NDArray[Any] = field(repr=False)
    number: int = -1
    sent_s: float = 0.0
    replied_s: float = 0.0
    reply: Frame | None = None
    resent: int = 0

    @property
    def rows(self) -> int:
        """How many states there are."""
        return len(self.states)


class Exchange:
    """The frames of one device. For one thread.

    Mutable: `flag`, `_pending`, `_ahead` (by slot, how many rows were sent again that come before those with a reply).

    Args:
        link: the connection; opened when it is needed.
        states_of: returns the states of a sequence from a position to another, to send again what the server has lost
            of it.
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
        self._ahead: dict[int, int] = {}

    def send(self, frame: Sent) -> None:
        """Send states; their reply is waited for by `collect`.

        Raises:
            Aborted: the flag was set.
            EndpointFailure: the server cannot be reached, or refuses the rows.
        """
        # Whoever asked for rows that these replace has left. Nobody waits for them, nor can they be sent again.
        replaced = frame.slot, frame.at
        self._pending = [
            one for one in self._pending if one.slot != replaced[0] or one.at + one.rows <= replaced[1]
        ]
        self._pending.append(frame)
        with self._all_or_none():
            for attempt in range(_RECONNECTIONS + 1):
                try:
                    self._connect(self._pending[:-1])
                    self._put(frame)
                    return
                except LinkLost as lost:
                    self._look(lost, attempt)

    def _connect(self, frames: Sequence[Sent]) -> None:
        """Make the connection anew where it broke, and send again what has no reply."""
        if not self._link.is_open:
            self._link.open()
            self._send_again(frames)

    def _put(self, frame: Sent) -> None:
        frame.sent_s = self._clock()
        frame.number = self._link.send(frame.slot, frame.at, frame.states, frame.wanted)

    def _send_again(self, frames: Sequence[Sent]) -> None:
        for frame in frames:
            if frame.reply is None:
                self._put(frame)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Forget all frames where one fails: their answers fail with it, and no later one must wait for them."""
        try:
            yield
        except BaseException:
            self._pending.clear()
            self._ahead.clear()
            raise

    def _look(self, lost: LinkLost, attempt: int) -> None:
        """Give up where the thread is to stop, or the link was made anew often enough.

        A server that says nothing on a new connection either has failed, whatever it may do later.
        """
        if self.flag.is_set():
            raise Aborted from lost
        if attempt == _RECONNECTIONS or (lost.silent and attempt > 0):
            raise self._link.unreachable(lost) from lost

    def collect(self, meter: LinkMeter | None = None) -> None:
        """Wait until every frame has its reply, and let the meter learn from them.

        Raises:
            Aborted, EndpointFailure: as from `send`.
        """
        attempt = 0
        until: float | None = None
        with self._all_or_none():
            while waiting := [frame for frame in self._pending if frame.reply is None]:
                try:
                    self._connect(waiting)
                    if until is None:
                        rows = sum(frame.rows for frame in waiting) + sum(self._ahead.values())
                        until = self._link.until(rows)
                    if self._take(self._link.receive(self.flag.is_set, until)):
                        attempt, until = 0, None
                except LinkLost as lost:
                    self._look(lost, attempt)
                    attempt, until = attempt + 1, None
                    self._ahead.clear()  # on the new connection the server says what it lacks
        if meter is not None:
            self._learn(self._pending, meter)
        self._pending = []

    def _take(self, reply: Frame) -> bool:
        """Take what came; return whether it was waited for."""
        frame = next((one for one in self._pending if one.number == reply.number), None)
        if frame is None or frame.reply is not None:
            return False  # of an earlier sending
        if reply.kind is Kind.STATES and reply.rows == frame.wanted:
            frame.reply, frame.replied_s = reply, self._clock()
            self._ahead.pop(frame.slot, None)
        elif reply.kind is Kind.ERROR and reply.code is Code.LOST and frame.resent < _RESENDS:
            self._catch_up(frame.slot, reply.at)
        else:
            raise self._refused(reply)
        return True

    def _catch_up(self, slot: int, have: int) -> None:
        """Send again what the server has lost of a sequence, and the frames behind it."""
        later = [frame for frame in self._pending if frame.slot == slot and frame.reply is None]
        first = min(frame.at for frame in later)
        have = min(have, first)
        if have < first:
            most = self._most_rows
            for at in range(have, first, most):
                self._link.send(slot, at, self._states_of(slot, at, min(at + most, first)), 0)
            self._ahead[slot] = first - have
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
