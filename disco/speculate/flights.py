"""Rounds on their way, and verdicts that came before those they follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from disco.speculate.effects import Send
from disco.speculate.estimates import Estimates
from disco.speculate.messages import Verdict
from disco.speculate.tally import Tally

__all__ = ["Flight", "Flights", "new_deltas"]


@dataclass(slots=True)
class Flight:
    """A round whose reply has not ended.

    Attributes:
        send: the round.
        sent_s: when it was sent.
        is_only: nothing else was in flight then, so its time tells the round trip.
        is_stale: its verdict is of no use: tokens before its own were refuted.
        is_measured: a verdict of it was counted.
    """

    send: Send
    sent_s: float
    is_only: bool
    is_stale: bool = False
    is_measured: bool = False

    @property
    def end(self) -> int:
        """Position behind its drafted tokens."""
        return self.send.at + len(self.send.draft)

    @property
    def is_window(self) -> bool:
        """Whether it has drafted tokens; otherwise the target writes alone."""
        return bool(self.send.draft)

    def right_tokens(self, right_until: int) -> int:
        """Return how many of its drafted tokens lie before a position of the answer until which all were right."""
        return min(len(self.send.draft), max(0, right_until - self.send.at))

    def time(self, now: float, right_until: int, tally: Tally) -> None:
        """Enter when it was in flight, and how many of its tokens were right, if it is a window."""
        if self.is_window:
            right = self.right_tokens(right_until)
            tally.timed_windows.append((self.sent_s, now, len(self.send.draft), right))


class Flights:
    """The rounds in flight, by number. Stale ones keep their place until their reply has come."""

    __slots__ = ("_early", "_flights", "count")

    def __init__(self) -> None:
        self._flights: dict[int, Flight] = {}
        self._early: dict[int, Verdict] = {}
        self.count = 0  # rounds so far; the next one's number

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, number: int) -> Flight | None:
        """Return a round in flight."""
        return self._flights.get(number)

    @property
    def fresh(self) -> list[Flight]:
        """Those whose verdicts are waited for."""
        return [flight for flight in self._flights.values() if not flight.is_stale]

    def send(self, now: float, at: int, draft: tuple[int, ...] = (), alone: int = 0) -> Send:
        """Return a new round, which is in flight from now on."""
        send = Send(self.count, at, draft, alone)
        self._flights[send.number] = Flight(send, now, is_only=not self._flights)
        self.count += 1
        return send

    def pop(self, number: int) -> Flight | None:
        """Take a round out whose reply has ended, unless its verdict waits here; None: there is none."""
        return None if number in self._early else self._flights.pop(number, None)

    def send_again(self, now: float, flight: Flight) -> Send:
        """Return a round that failed; it is in flight again."""
        flight.sent_s, flight.is_only, flight.is_measured = now, False, False
        self._flights[flight.send.number] = flight
        return flight.send

    def streams(self) -> list[int]:
        """Return the numbers of rounds in which the target writes alone."""
        return [number for number, flight in self._flights.items() if not flight.is_window]

    def refute(self, position: int) -> list[Flight]:
        """Make the windows stale that go beyond a position whose drafted token was wrong; return them."""
        refuted = [flight for flight in self.fresh if flight.is_window and flight.end > position]
        for flight in refuted:
            flight.is_stale = True
        return refuted

    def measure(self, now: float, verdict: Verdict, estimates: Estimates, tally: Tally) -> None:
        """Learn what a round cost: a window once, a stream with each of its verdicts.

        The first round reads the prompt, so its first verdict only tells how long a round trip takes at most.
        """
        flight = self._flights.get(verdict.number)
        if flight is None or (flight.is_measured and flight.is_window):
            return
        is_first, flight.is_measured = not flight.is_measured, True
        tally.queue_s += verdict.queue_s
        tally.verify_s += verdict.compute_s
        if is_first and flight.send.number == 0:
            estimates.opened(now - flight.sent_s - verdict.queue_s - verdict.compute_s)
            return
        trip_s = None
        if is_first:
            wire_s = max(0.0, now - flight.sent_s - verdict.queue_s - verdict.compute_s)
            tally.wire_s += wire_s
            trip_s = wire_s if flight.is_only else None
        estimates.verified(verdict.rows, verdict.queue_s, verdict.compute_s, trip_s)

    def clear(self) -> None:
        """Forget all."""
        self._flights.clear()
        self._early.clear()

    def keep_early(self, verdict: Verdict) -> bool:
        """Keep a verdict that begins beyond the answer's end; return whether that is in order.

        A window's verdict is kept until the one before it has come; that of a stale window is of no use, as is that
        of a round that is not in flight. False: a stream's, whose verdicts come in order, so tokens of it are missing.
        """
        flight = self._flights.get(verdict.number)
        if flight is None:
            return True
        if flight.is_stale:
            del self._flights[verdict.number]
        elif flight.is_window:
            self._early[verdict.number] = verdict
        return flight.is_window

    def take_early(self, length: int) -> Verdict | None:
        """Take a kept verdict that begins within the answer now."""
        for number, verdict in self._early.items():
            if verdict.at <= length:
                return self._early.pop(number)
        return None

    def take_hopeless(self) -> list[Flight]:
        """Take out the rounds whose kept verdicts can never be used: nothing is on its way that could close the gap."""
        if not self._early or len(self._early) < len(self._flights):
            return []
        hopeless = [self._flights.pop(number) for number in self._early]
        self._early.clear()
        return hopeless


def new_deltas(verdict: Verdict, length: int) -> tuple[Mapping[str, Any], ...]:
    """Return the deltas that came with tokens from position `length` on, without their own positions.

    A delta without a position counts as following the one before it, from the verdict's position on.
    """
    new: list[Mapping[str, Any]] = []
    follows = verdict.at
    for delta in verdict.deltas:
        at = delta.get("at")
        if (at if isinstance(at, int) else follows) >= length:
            new.append({name: value for name, value in delta.items() if name != "at"})
        tokens = delta.get("tokens", 1)
        follows += tokens if isinstance(tokens, int) else 1
    return tuple(new)
