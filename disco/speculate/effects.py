"""What the machine of rounds asks its driver to do. The driver does it and reports back as events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Draft", "Effect", "Fail", "Finish", "Send", "StopDraft", "StopStream", "Write"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Let the drafter draft, and report `drafted`. There is never more than one such order under way.

    Attributes:
        number: of the order.
        keep: so many tokens of the answer stay in the drafter's sequence, behind the prompt; the others are dropped.
        append: tokens that the drafter then reads.
        count: tokens to draft, at least 1; fewer may come.
        stop_below: drafting stops, that token included, once the drafter's top probability is below this.
    """

    number: int
    keep: int
    append: tuple[int, ...] = field(repr=False)
    count: int
    stop_below: float = 0.0


@dataclass(frozen=True, slots=True)
class StopDraft:
    """The draft is of no use any more: break it off, and report `drafted` with what there is of it."""

    number: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a round; see `messages.Round`. Report each verdict as `verified`, and the reply's end as `ended`."""

    number: int
    at: int
    draft: tuple[int, ...] = field(default=(), repr=False)
    alone: int = 0


@dataclass(frozen=True, slots=True)
class StopStream:
    """Break off the reply to a round that was sent with `alone`. Verdicts of it may still be reported."""

    number: int


@dataclass(frozen=True, slots=True)
class Write:
    """The answer goes on.

    Attributes:
        at: position of `ids[0]`: how many tokens the answer had.
        ids: the new tokens.
        deltas: what of their text may be shown now, each as fields of `events.Delta`.
        mode: how they came about: "distributed" or "alone".
    """

    at: int
    ids: tuple[int, ...] = field(repr=False)
    deltas: tuple[Mapping[str, Any], ...] = field(repr=False)
    mode: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete; nothing is asked for any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The target cannot go on; nothing is asked for any more. `why` contains nothing of the answer."""

    why: str


Effect = Draft | StopDraft | Send | StopStream | Write | Finish | Fail
