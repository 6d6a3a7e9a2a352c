"""Running estimates of what a round costs and how many drafted tokens are right; what windows are chosen by."""

from __future__ import annotations

from math import isfinite
from typing import Final

from disco.speculate.messages import LONGEST_DRAFT
from disco.speculate.seen import Seen, VerifyCurve

__all__ = ["Acceptance", "Estimates", "Smoothed", "VerifyTimes"]

_WEIGHT: Final = 0.2
_WAIT_WEIGHT: Final = 0.05
_OUTLIER: Final = 4.0
"""A measurement counts as at most so many times the estimate: a machine's pause says nothing about the next round."""
_READ_SHARE: Final = 0.25
"""What a token that the drafter reads costs, as a share of one that it drafts: it reads several in a batch."""
_SHORT_READ: Final = 4
"""Behind more tokens to read, a draft's time only says between which bounds that of the drafted tokens lies."""
_EARLY: Final = 3
"""So many measurements are averaged before outliers are cut: the first may be the odd one."""


class Smoothed:
    """An exponential moving average that begins as the plain mean, with outliers cut unless `cuts` is false.

    Attributes:
        value: None before the first measurement.

    Args:
        weight: of a new measurement, once there are enough for it; 0 to 1.
        cuts: whether one counts as at most four times the average.
    """

    __slots__ = ("_count", "_cuts", "_weight", "value")

    def __init__(self, weight: float = _WEIGHT, *, cuts: bool = True) -> None:
        self._weight, self._cuts = weight, cuts
        self._count = 0
        self.value: float | None = None

    def add(self, measured: float, times: int = 1) -> None:
        """Learn a `measured` value that counts as so many `times`; one that is not finite or below 0 is passed over."""
        if not (measured >= 0 and isfinite(measured)):
            return
        self._count += 1
        if self.value is None:
            self.value = measured
            return
        if self._cuts and self._count > _EARLY and self.value > 0:
            measured = min(measured, _OUTLIER * self.value)
        weight = max(self._weight, 1 / self._count)
        self.value += (1 - (1 - weight) ** times) * (measured - self.value)


class Acceptance:
    """The probability that a drafted token is right when all before it are.

    Positions behind the first wrong token are censored, not rejected: nobody knows whether they would have been right.
    So the estimate is accepted / (accepted + first wrong ones). Accepted over drafted would be too low, the more so
    the longer the window. Older tokens are forgotten.
    """

    __slots__ = ("_by_place", "_keep", "_right", "_wrong", "judged")

    def __init__(self, prior: float = 0.7, weight: float = 2.0, memory: float = 100.0) -> None:
        """Begin with a prior that weighs as much as `weight` tokens; of a token 1/e is left after `memory` others."""
        self._right, self._wrong = prior * weight, (1 - prior) * weight
        self._keep = 1 - 1 / memory
        self._by_place: list[list[float]] = []
        self.judged = 0

    @property
    def value(self) -> float:
        """The probability, 0 to 1."""
        return self._right / (self._right + self._wrong)

    def add(self, place: int, *, right: bool) -> None:
        """Learn that a drafted token was right, or was the first wrong one; `place`: in its window, from 0."""
        self.judged += 1
        self._right = self._right * self._keep + right
        self._wrong = self._wrong * self._keep + (not right)
        while len(self._by_place) <= place < LONGEST_DRAFT:
            self._by_place.append([0.0, 0.0])
        if place < LONGEST_DRAFT:
            counts = self._by_place[place]
            counts[0] = counts[0] * self._keep + right
            counts[1] = counts[1] * self._keep + (not right)

    def at(self, place: int, weight: float = 4.0) -> float:
        """Return the probability at a place of the window, from 0, where `value` counts as `weight` tokens, too."""
        right, wrong = self._by_place[place] if place < len(self._by_place) else (0.0, 0.0)
        return (right + weight * self.value) / (right + wrong + weight)


class VerifyTimes:
    """Seconds of the target's batch by rows: the server's own curve, corrected by what is measured.

    Row counts that were measured have their own average; the others have the server's time, times the usual ratio of
    measured to said. The curve is then made monotone by pooling neighbours that contradict it.
    """

    __slots__ = ("_curve", "_measured", "_ratio", "_said")

    def __init__(self, said: VerifyCurve | None = None) -> None:
        self._said = said
        self._ratio = Smoothed()
        self._measured: dict[int, Smoothed] = {}
        self._curve = said

    def add(self, rows: int, seconds: float) -> None:
        """Learn that a batch of so many rows took so long."""
        if rows < 1 or not (seconds > 0 and isfinite(seconds)):
            return
        if self._said is not None and self._said.s(rows) > 0:
            self._ratio.add(seconds / self._said.s(rows))
        self._measured.setdefault(rows, Smoothed()).add(seconds)
        self._curve = None

    @property
    def curve(self) -> VerifyCurve | None:
        """The curve; None while neither the server nor a measurement says anything."""
        if self._curve is None and self._measured:
            times = {rows: average.value or 0.0 for rows, average in self._measured.items()}
            if self._said is not None:
                ratio = 1.0 if self._ratio.value is None else self._ratio.value
                times = {rows: ratio * seconds for rows, seconds in self._said.points} | times
            self._curve = VerifyCurve(_monotone(sorted(times.items())))
        return self._curve


def _monotone(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the points with times that never fall: the nearest such ones (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # (mean, how many)
    for _, seconds in points:
        mean, count = seconds, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    times = [mean for mean, count in pools for _ in range(count)]
    return [(rows, seconds) for (rows, _), seconds in zip(points, times, strict=True)]


class Estimates:
    """All estimates of one pair of drafter and target. One object may serve many answers of the pair.

    Attributes:
        acceptance: of drafted tokens.
        verify: of the target's batches.
    """

    __slots__ = (
        "_draft",
        "_draft_is_bound",
        "_queue",
        "_round_trip",
        "_token",
        "_trip_is_bound",
        "_waited",
        "acceptance",
        "verify",
    )

    def __init__(self, said: VerifyCurve | None = None) -> None:
        """Begin with the server's own curve, where it has one."""
        # Of a good drafter. From a lower one the target may stay alone for good. A higher one costs little: before the
        # first draft is sent, one is compared with what the target writes alone (`rounds`).
        self.acceptance = Acceptance(prior=0.9, weight=4.0)
        self.verify = VerifyTimes(said)
        self._draft, self._draft_is_bound = Smoothed(), False
        self._round_trip, self._trip_is_bound = Smoothed(), True
        self._token = Smoothed()
        # Most rounds do not wait, so a wait is no outlier.
        self._queue, self._waited = Smoothed(_WAIT_WEIGHT, cuts=False), Smoothed(_WAIT_WEIGHT, cuts=False)

    @property
    def draft_s(self) -> float | None:
        """Seconds per drafted token; None before the first draft."""
        return self._draft.value

    def drafted(self, tokens: int, read: int, took_s: float) -> None:
        """Learn how long a draft took.

        Args:
            tokens: that were drafted.
            read: tokens that the drafter read before.
            took_s: for both, s.
        """
        if tokens < 1:
            return
        if read <= _SHORT_READ:
            if self._draft_is_bound:
                self._draft = Smoothed()
            self._draft.add(took_s / (tokens + _READ_SHARE * max(0, read - 1)), tokens)
            self._draft_is_bound = False
            return
        # Reading takes some of the time: on a GPU next to none, on a processor nearly as much a token as drafting.
        known = self._draft.value
        self._draft_is_bound = self._draft_is_bound or known is None
        slowest, fastest = took_s / tokens, took_s / (tokens + read - 1)
        if known is not None and slowest < known:
            self._draft = Smoothed()  # drafting cannot take longer, so what was known is wrong
        self._draft.add(slowest if known is None else min(max(known, fastest), slowest), tokens)

    def verified(self, rows: int, queue_s: float, compute_s: float, round_trip_s: float | None) -> None:
        """Learn what a round cost at the target and, where nothing else was in flight, on the network."""
        self.verify.add(rows, compute_s)
        if rows > 0:
            self._queue.add(queue_s)
            # Of arrivals at random times, the share that has to wait is the share of time in which the queue works.
            self._waited.add(float(queue_s > 0.05 * compute_s))
        if round_trip_s is not None:
            if self._trip_is_bound:
                self._round_trip, self._trip_is_bound = Smoothed(), False
            self._round_trip.add(max(0.0, round_trip_s))

    def opened(self, wire_s: float) -> None:
        """Learn how long the first round of an answer was on its way, s.

        It may have connected first, and the server rendered the prompt, so this is an upper bound of the round trip:
        enough not to draft over a slow network only to find that out, and to notice that it became faster.
        """
        known = self._round_trip.value
        if known is None or wire_s < known:
            if self._trip_is_bound:
                self._round_trip = Smoothed()
            self._round_trip.add(max(0.0, wire_s))

    def written(self, tokens: int, seconds: float) -> None:
        """Learn that the answer's newest tokens came so long after those before them."""
        if tokens > 0:
            self._token.add(seconds / tokens)

    def fill(self, seen: Seen) -> None:
        """Copy the estimates into what a window looks at. What was never measured keeps its value there."""
        seen.acceptance = self.acceptance.value
        if self._draft.value is not None:
            seen.draft_s = self._draft.value
        if self._round_trip.value is not None:
            seen.round_trip_s = self._round_trip.value
        if self._queue.value is not None:
            seen.queue_s = self._queue.value
        if self._waited.value is not None:
            seen.utilisation = min(1.0, self._waited.value)
        if self._token.value is not None:
            seen.token_s = self._token.value
        if (curve := self.verify.curve) is not None:
            seen.verify = curve

    def patience_s(self, tokens: int, read: int) -> float:
        """Return how long a draft may take before it counts as late, s.

        Three times what such a draft usually takes, and one token of the target alone: a shorter wait could not be
        used for anything better. Before the first draft, 8 rounds of the target, and half a second.
        """
        curve = self.verify.curve
        target_s = (self._round_trip.value or 0.0) + (0.0 if curve is None else curve.s(1))
        if self._draft.value is None:
            return 0.5 + 8 * target_s
        return max(0.02, 3 * self._draft.value * (tokens + _READ_SHARE * read) + target_s)
