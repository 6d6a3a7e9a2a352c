"""What the clients of a verify server may take."""

from __future__ import annotations

from dataclasses import dataclass

from disco.endpoints.contract import PAUSE_HOLD_S

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take.

    Attributes:
        hold_s: how long an answer that asks for nothing keeps its slot while others wait, s: one between two rounds,
            and one that is paused. A follower or a drafter is only a help to another answer: it keeps none.
        forget_s: how long an answer is kept whose client is not heard of, s.
        answers: how many are kept, those that have ended included. Beyond these, the next one takes the place of one
            that has ended, or that was not heard of for `hold_s`.
        waiting: at how many rounds in work, or waiting for a slot, no new answer is begun.
    """

    hold_s: float = PAUSE_HOLD_S
    forget_s: float = 600.0
    answers: int = 1024
    waiting: int = 512
