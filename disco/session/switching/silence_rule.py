"""The rule for a silent endpoint: when another one starts although the silent one may still come back.

A pure function of numbers. With `x` the silence that a healthy answer of this endpoint hardly ever exceeds (learnt, see
`profiles.upper_tail`), the last content at `t`, `D` the time at which the reader has read all that is written (at
once where no reader's pace is known), and `h` the time that the heir needs to its first token, times a margin:

    start the heir at max(t + x, D - h)

Earlier than `t + x` the writer is not in doubt. Later than `D - h` the reader would wait for the heir. In between, each
moment of waiting is one more in which the writer may come back and nothing was spent. After each false alarm within one
answer `x` doubles for it: this answer is being written in an unusual way.

The fixed clocks (`Timeouts`) stay: they are the only ones before there is data, and what they end is a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from disco.candidate import Candidate

__all__ = ["MOST_HEIRS", "SilentWriter", "doubted_at", "heir_of"]

MOST_HEIRS = 2  # for one answer; then the fixed clocks decide
_MARGIN = 1.25  # on the heir's time to its first token


@dataclass(frozen=True, slots=True)
class SilentWriter:
    """The input of the rule at one moment.

    Attributes:
        silent_from: since when the writer has written nothing, s.
        silence_s: the writer's `Candidate.silence_s`.
        dry_at: when the reader has read all that is written, s; `-inf` where the reader waits for every token.
        false_alarms: how often this answer's writer has come back from a doubt.
    """

    silent_from: float
    silence_s: float | None
    dry_at: float
    false_alarms: int = 0


def doubted_at(writer: SilentWriter, heir: Candidate, unread_tokens: int) -> float:
    """Return when the heir is to start, s; `inf`: never, because too little is known about the writer.

    `unread_tokens`: of prompt and answer, as many as the heir has still to read.
    """
    if writer.silence_s is None:
        return inf
    heir_s = _MARGIN * heir.time_to_first_token_s(unread_tokens)
    return max(writer.silent_from + writer.silence_s * (1 << writer.false_alarms), writer.dry_at - heir_s)


def heir_of(
    heirs: list[Candidate], prompt_tokens: int, written_tokens: int, *, continues: bool
) -> Candidate | None:
    """Return the first of `heirs`, which are in order of preference, that can go on; None: none can.

    `continues`: it must be known to continue a half-written answer.
    """
    for heir in heirs:
        fits = heir.context_tokens is None or prompt_tokens + written_tokens < heir.context_tokens
        if fits and (heir.continues or not continues):
            return heir
    return None
