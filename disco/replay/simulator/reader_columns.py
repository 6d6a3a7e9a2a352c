"""What the reader got of each answer, as columns.

The definitions are those of `playback.reader_metrics`, which handles one timeline at a time; this module handles many
long ones. With `x_i = t_i − i/r`, a reader at r tokens/s who began at `a_0` reaches token i at
`i/r + max(a_0, x_1, …, x_i)`, so all metrics follow from the running maximum of x. A test compares both modules.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from disco.playback.reader_metrics import TOLERANCE_S
from disco.replay.metrics.outcome import Reading
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.machine import Session
from disco.session.switching.failover_rule import has_replaced

__all__ = ["FLUIDITY_TTFT_S", "Readings"]

Floats = NDArray[np.float64]

FLUIDITY_TTFT_S = 1.0  # deadline of the first token; each further token has 1/r_c

_NONE = np.empty(0)


class Readings:
    """Collect sessions when they close, in any order. Mutable: all."""

    __slots__ = (
        "_beats_s",
        "_failed_over",
        "_fluidity",
        "_handover_late",
        "_late",
        "_moved",
        "_pace_tps",
        "_qoe",
        "_stall",
        "_tbt_s",
    )

    def __init__(self, requests: int, pace_tps: float | None) -> None:
        self._pace_tps = pace_tps
        self._beats_s = _NONE  # i/r
        self._late = np.zeros(requests)
        self._handover_late = np.zeros(requests)
        self._stall, self._qoe, self._fluidity = (np.full(requests, math.nan) for _ in range(3))
        self._moved, self._failed_over = (np.zeros(requests, dtype=np.bool_) for _ in range(2))
        self._tbt_s: list[Floats] = [_NONE] * requests

    def add(self, row: int, session: Session, times_s: Floats) -> None:
        """Add a closed session.

        Args:
            row: number of the request.
            session: closed.
            times_s: times of the released tokens since the request, s; shape (k,).
        """
        self._failed_over[row] = _has_failed_over(session)
        cuts = [h.cut_tokens for h in session.migrations if h.outcome == "switched"]
        self._moved[row] = bool(cuts)
        if not times_s.size:
            return
        self._tbt_s[row] = times_s[1:] - times_s[:-1]
        pace_tps = self._pace_tps
        if pace_tps is None:
            return
        k = times_s.size
        if self._beats_s.size < k:
            self._beats_s = np.arange(2 * k) / pace_tps
        x = times_s - self._beats_s[:k]
        most = np.maximum.accumulate(x)
        waited_s = most[-1] - x[0]
        missed = int(x[0] > FLUIDITY_TTFT_S + TOLERANCE_S)
        if waited_s:  # otherwise no token was late
            late = x > x[0] + TOLERANCE_S
            self._late[row] = np.count_nonzero(late)
            for cut in cuts:
                self._handover_late[row] += np.count_nonzero(late[cut:])
            # A missed deadline restarts the deadlines from that token, so exactly the new maxima miss theirs.
            missed += int(np.count_nonzero(x[1:] > np.maximum(most[:-1], FLUIDITY_TTFT_S) + TOLERANCE_S))
        self._fluidity[row] = 1 - missed / k
        self._stall[row] = waited_s / (waited_s + k / pace_tps)
        due_s = max(session.config.prompt_tokens / 5000, 1.0)
        reached_s = np.maximum(most, due_s).sum()
        self._qoe[row] = 1 - (reached_s - k * due_s) / (reached_s + self._beats_s[:k].sum())

    def reading(self) -> Reading:
        """Return all sessions as columns."""
        moved = [times for times, moved in zip(self._tbt_s, self._moved, strict=True) if moved]
        return Reading(
            late_tokens=self._late,
            handover_late_tokens=self._handover_late,
            stall_ratio=self._stall,
            qoe=self._qoe,
            fluidity=self._fluidity,
            moved=self._moved,
            failed_over=self._failed_over,
            tbt_s=np.concatenate(self._tbt_s),
            moved_tbt_s=np.concatenate([_NONE, *moved]),
        )


def _has_failed_over(session: Session) -> bool:
    """Return whether an attempt failed and another endpoint continued the answer or wrote it instead."""
    failed = [a for a in session.attempts if a.outcome is AttemptOutcome.FAILED]
    if not failed or session.error is not None:
        return False
    return any(_replaced(dead, by) for dead in failed for by in session.attempts)


def _replaced(dead: AttemptState, by: AttemptState) -> bool:
    # If the answer was completed, the last endpoint that took over has finished it.
    return has_replaced(
        same_endpoint=by.candidate.name == dead.candidate.name,
        wrote=by.outcome is AttemptOutcome.FINISHED,
        started=by.started_at,
        dead_wrote=dead.tokens > 0,
        dead_ended=math.inf if dead.ended_at is None else dead.ended_at,
    )
