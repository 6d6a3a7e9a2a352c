"""The rule for a silent endpoint: when another one starts although the silent one may still come back.

A silence is no failure. What ends an attempt is the application's patience (`Timeouts`, by default the SDK's 600 s),
and where nobody may take over, nothing else does. Where another endpoint may, it starts beside the silent one, after

    | the silence of                              | before its first content | behind it              |
    | an endpoint that is known                   | what one in 100 exceeds  | one in 2,000           |
    | one of which nothing is known               | `SOON.first_s`           | `SOON.gap_s`           |
    | one that was doubted too often lately       | `LATE.first_s`, or later | `LATE.gap_s`, or later |
    | any, if only what the preset spares is left | `LATE.first_s`, or later | `LATE.gap_s`, or later |

"Later" is what is learnt, where that is longer. Where a clock would end the attempt or the answer, the other one starts
once half of the time is over that the clock leaves (`in_time_s`). In a cascade another tier starts after `SOON` at the
earliest. Only content ends a silence: comments, empty deltas and role chunks show that a connection lives, and the
reader nothing.

In mid-answer the reader's clock counts as well. With `x` the limit of the table, the last content at `t`, `D` the time
at which the reader has read all that is written (at once where no reader's pace is known), and `h` the time that the
heir needs to its first token, times a margin:

    start the heir at max(t + x, D - h)

Earlier than `t + x` the writer is not in doubt. Later than `D - h` the reader would wait for the heir. In between, each
moment of waiting is one more in which the writer may come back and nothing was spent. After each false alarm within one
answer `x` doubles for it: this answer is being written in an unusual way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from disco.candidate import PATIENT_S, Candidate

__all__ = [
    "AT_ONCE",
    "LATE",
    "MOST_HEIRS",
    "NEVER",
    "SOON",
    "Limits",
    "SilentWriter",
    "doubted_at",
    "in_time_s",
    "slow_first_s",
    "slow_gap_s",
]

MOST_HEIRS = (
    2  # of one answer that start because of what is known; it is then no better known than a stranger
)
_MARGIN = 1.25  # on an expected time to first token


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an endpoint may be silent before another starts, s: before its first content, and behind it."""

    first_s: float
    gap_s: float


SOON = Limits(first_s=3.0, gap_s=3.0)  # the reader is to have the other's first word within 5 s
LATE = Limits(first_s=PATIENT_S, gap_s=15.0)
AT_ONCE, NEVER = Limits(0.0, 0.0), Limits(inf, inf)


def slow_first_s(candidate: Candidate, tokens: int, expected_s: float, fixed: Limits | None) -> float:
    """Return how long the first content may take, s; `inf`: for ever.

    Args:
        candidate: the silent endpoint.
        tokens: of the prompt and what follows it.
        expected_s: the time that it is expected to take.
        fixed: the limits that need no knowledge; None: there are none, as in a replay.
    """
    learnt_s = candidate.slow_first_token_s(tokens)
    fixed_s = inf if fixed is None else fixed.first_s
    if fixed is SOON and candidate.is_measured:  # a model that is known to read for longer is not silent
        fixed_s = max(fixed_s, _MARGIN * expected_s)
    return _limit(None if learnt_s == inf else learnt_s, fixed_s, fixed)


def slow_gap_s(candidate: Candidate, fixed: Limits | None) -> float:
    """Return how long a silence behind the first content may take, s; `inf`: for ever. See `slow_first_s`."""
    return _limit(candidate.silence_s, inf if fixed is None else fixed.gap_s, fixed)


def in_time_s(left_s: float, expected_s: float = 0.0) -> float:
    """Return how long a silence may be, s, where a clock leaves so much: the other endpoint needs some of it.

    Who is expected to need longer is not silent before that.
    """
    return max(0.5 * left_s, SOON.first_s, _MARGIN * expected_s)


def _limit(learnt_s: float | None, fixed_s: float, fixed: Limits | None) -> float:
    if learnt_s is None:
        return fixed_s
    return max(learnt_s, fixed_s) if fixed is LATE else learnt_s


@dataclass(frozen=True, slots=True)
class SilentWriter:
    """The input of the rule at one moment.

    Attributes:
        silent_from: since when the writer has written nothing, s.
        limit_s: how long it may be silent, s; `inf`: for ever.
        dry_at: when the reader has read all that is written, s; `-inf` where the reader waits for every token.
        false_alarms: how often this answer's writer has come back from a doubt.
    """

    silent_from: float
    limit_s: float
    dry_at: float
    false_alarms: int = 0


def doubted_at(writer: SilentWriter, heir: Candidate, unread_tokens: int) -> float:
    """Return when the heir is to start, s; `inf`: never.

    `unread_tokens`: of prompt and answer, as many as the heir has still to read.
    """
    heir_s = _MARGIN * heir.time_to_first_token_s(unread_tokens)
    return max(writer.silent_from + writer.limit_s * (1 << writer.false_alarms), writer.dry_at - heir_s)
