"""What the clients of a verify server may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take.

    Attributes:
        hold_s: how long an answer that asks for nothing keeps its slot while others wait, s.
        forget_s: how long an answer is kept whose client is not heard of, s.
        answers: how many are kept, those that have ended included. Beyond these, the next one takes the place of one
            that has ended, or that was not heard of for `hold_s`.
        waiting: at how many rounds in work, or waiting for a slot, no new answer is begun.
    """

    hold_s: float = 5.0
    forget_s: float = 600.0
    answers: int = 1024
    waiting: int = 512
