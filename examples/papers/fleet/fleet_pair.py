"""A drafter and a target: their window, what it may look at, and the link between them."""

from __future__ import annotations

from functools import lru_cache
from math import exp, log
from random import Random
from typing import Final

from disco.replay import DraftedRequest
from disco.speculate import Acceptance, Seen, Smoothed, Static, VerifyCurve, Window
from papers.fleet.fleet_scenario import Link

__all__ = ["AccessLink", "Pair"]

_MOVED: Final = 0.05  # the curve that a window sees is changed once it is off by so much
_STEP: Final = 0.05  # and is then the nearest of a grid of curves that all pairs share, so that few are made


@lru_cache(maxsize=1024)
def _scaled(curve: VerifyCurve, step: int) -> VerifyCurve:
    ratio = exp(step * _STEP)
    return VerifyCurve((rows, ratio * seconds) for rows, seconds in curve.points)


class AccessLink:
    """A device's own connection. Mutable: when its directions are free, and when their last messages arrive."""

    __slots__ = ("down_free_s", "last_down_s", "last_up_s", "up_free_s", "waited_s")

    def __init__(self) -> None:
        self.up_free_s = self.down_free_s = self.last_up_s = self.last_down_s = self.waited_s = 0.0


class Pair:
    """A drafter and a target. Mutable.

    Attributes:
        window: chooses; None where `fixed` is the window of every round.
        seen: what the window may look at.
        one_way_s: delay of the link in one direction.
        plain: whether every message takes just `one_way_s`.
    """

    __slots__ = (
        *("_acceptance", "_access", "_curve_ratio", "_down_rate", "_jitter_s", "_queue"),
        *("_ratio", "_rng", "_said", "_token", "_up_rate", "_waited"),
        *("fixed", "one_way_s", "plain", "seen", "stop_below", "window"),
    )

    def __init__(
        self, window: Window, link: Link, access: AccessLink, rng: Random, draft_s: float, verify: VerifyCurve
    ) -> None:
        self.window = window
        self.stop_below = window.stop_below
        self.seen = Seen(draft_s=draft_s, round_trip_s=2 * link.one_way_s, verify=verify, token_s=verify.s(1))
        # The most frequent window is not asked anew for every round.
        self.fixed = window.choose(self.seen) if type(window) is Static else None
        self.one_way_s = link.one_way_s
        self._jitter_s = link.jitter_ms / 1e3
        self._up_rate, self._down_rate = (
            None if mbps is None else mbps * 1e6 / 8 for mbps in (link.up_mbps, link.down_mbps)
        )
        self.plain = not self._jitter_s and self._up_rate is None and self._down_rate is None
        self._access, self._rng = access, rng
        self._said = verify
        self._acceptance = Acceptance()
        self._queue, self._token, self._waited, self._ratio = (Smoothed() for _ in range(4))
        self._curve_ratio = 1.0
        self.seen.acceptance = self._acceptance.value

    def up_s(self, now: float, size: int) -> float:
        """Return when a message that is sent now arrives at the target; `size` in bytes."""
        if self.plain:
            return now + self.one_way_s
        access = self._access
        sent = now
        if self._up_rate is not None:
            begins = max(now, access.up_free_s)
            access.waited_s += begins - now
            sent = access.up_free_s = begins + size / self._up_rate
        access.last_up_s = max(access.last_up_s, sent + self._delay_s())
        return access.last_up_s

    def down_s(self, now: float, size: int) -> float:
        """Return when a message that the target sends now arrives at the device."""
        if self.plain:
            return now + self.one_way_s
        access = self._access
        sent = now
        if self._down_rate is not None:
            begins = max(now, access.down_free_s)
            access.waited_s += begins - now
            sent = access.down_free_s = begins + size / self._down_rate
        access.last_down_s = max(access.last_down_s, sent + self._delay_s())
        return access.last_down_s

    def take_waited_s(self) -> float:
        """Return how long messages have waited for others of the device since the last call."""
        waited, self._access.waited_s = self._access.waited_s, 0.0
        return waited

    def _delay_s(self) -> float:
        jitter = self._rng.gauss(0.0, self._jitter_s) if self._jitter_s else 0.0
        return max(0.0, self.one_way_s + jitter)

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn a verdict, as the live machine does (`speculate.estimates`)."""
        seen, acceptance = self.seen, self._acceptance
        seen.last_window = drafted
        for place in range(min(accepted + 1, drafted)):
            acceptance.add(place, right=place < accepted)
        seen.acceptance = acceptance.value
        self.window.judged(drafted, accepted)

    def timed(self, rows: int, wait_s: float, pass_s: float, token_s: float) -> None:
        """Learn the times of a verdict.

        The live machine keeps an average for each number of rows; here the server's curve is scaled as a whole by how
        long passes took, others' rows included. That differs little, and a round stays cheap.

        Args:
            rows: of this answer in the pass.
            wait_s: in the target's queue.
            pass_s: of the pass.
            token_s: per token that the verdict brought, since the one before.
        """
        seen, said = self.seen, self._said
        self._queue.add(wait_s)
        self._token.add(token_s)
        self._waited.add(float(wait_s > 0.05 * pass_s))
        self._ratio.add(pass_s / (said.s(rows) or 1.0))
        seen.queue_s = self._queue.value or 0.0
        seen.token_s = self._token.value or 0.0
        seen.utilisation = self._waited.value or 0.0
        ratio = self._ratio.value or 1.0
        if abs(ratio - self._curve_ratio) > _MOVED * self._curve_ratio and ratio > 0:
            step = round(log(ratio) / _STEP)
            self._curve_ratio = exp(step * _STEP)
            seen.verify = _scaled(said, step)

    def next_window(self, request: DraftedRequest, place: int) -> int:
        """Return how many tokens are drafted next, from `place` in the answer on; 0: the target alone."""
        drafted = self.window.choose(self.seen) if self.fixed is None else self.fixed
        if self.stop_below and drafted:
            return request.drafted_until_unsure(place, drafted, self.stop_below)
        return drafted
