"""What a layer server's scheduler is asked and answers, and what it keeps for each device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from disco.speculate.layer_facts import Code

__all__ = ["Chunk", "Computed", "Outcome", "Refused", "Released", "Reply", "Sequence", "Session"]

States = npt.NDArray[np.floating[Any]]


@dataclass(slots=True, eq=False)
class Chunk:
    """States of consecutive positions of one sequence, to be computed. Mutable: all fields behind `tag`.

    Attributes:
        sequence: the session's number of it.
        at: position of the first row; what the sequence has from there on is forgotten first.
        states: shape (rows, hidden), float16 or float32; at least one row.
        wanted: how many of the last rows come back.
        finite: False: a state is NaN or infinite, so that the chunk is refused.
        tag: whatever the asker needs with the reply.
        asked_s: when it came, s.
        refusal: why it is refused when its turn comes. Until then what was asked before it is computed.
        done: rows that are computed.
        compute_s: how long the passes with them took, s.
        batch_rows: rows of the largest of these passes, those of other devices included.
        out: what came out for the wanted rows, shape (wanted, hidden), float32; None before the first pass.
    """

    sequence: int
    at: int
    states: States = field(repr=False)
    wanted: int
    finite: bool = True
    tag: Any = None
    asked_s: float = 0.0
    refusal: tuple[Code, str] | None = None
    done: int = 0
    compute_s: float = 0.0
    batch_rows: int = 0
    out: npt.NDArray[np.float32] | None = field(default=None, repr=False)

    @property
    def left(self) -> int:
        """Rows that are still to be computed."""
        return len(self.states) - self.done

    @property
    def next_at(self) -> int:
        """The position of the first row that is still to be computed."""
        return self.at + self.done

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.at + len(self.states)


@dataclass(frozen=True, slots=True)
class Computed:
    """A chunk is done.

    Attributes:
        chunk: with its wanted rows in `out`.
        queue_s: how long it waited, between its passes too, s.
    """

    chunk: Chunk
    queue_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A chunk is not computed, or, without a chunk, the session has no connection any more.

    Attributes:
        chunk: which; None: this is the last outcome on this connection.
        code: why.
        have: how many positions of the sequence there are.
        text: why, in words, without content.
    """

    chunk: Chunk | None
    code: Code
    have: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """A sequence that was let go is forgotten."""

    sequence: int


Outcome = Computed | Refused | Released


class Reply(Protocol):
    """Takes the outcomes of one connection; `Mailbox` is one."""

    def put(self, item: Any, /) -> None:
        """Take an outcome."""

    def close(self) -> None:
        """No further one will come."""


@dataclass(slots=True, eq=False)
class Session:
    """One device. Mutable.

    Attributes:
        key: its name, chosen by the device at random.
        reply: its connection; None while it has none.
        left_s: when it lost the last one.
        heard_s: when it last connected, asked for something or was answered.
        sequences: by its own numbers.
        load: its rows in a pass, averaged as the monitor's load, at the pass number `load_at`.
        load_at: see `load`.
    """

    key: str = field(repr=False)
    reply: Reply | None = None
    left_s: float = 0.0
    heard_s: float = 0.0
    sequences: dict[int, Sequence] = field(default_factory=dict)
    load: float = 0.0
    load_at: int = 0

    @property
    def waits(self) -> bool:
        """Whether something that it asked for is not answered yet."""
        return any(one.chunks for one in self.sequences.values())


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer of a device. Mutable.

    Attributes:
        session: whose.
        number: the session's number of it.
        slot: the model's sequence with its cache; None: it has none, and `have` is 0.
        have: positions in the cache.
        heard_s: when something was last asked or done for it.
        turn: who has the lowest is computed next.
        chunks: that wait, in order of arrival.
    """

    session: Session = field(repr=False)
    number: int
    slot: int | None = None
    have: int = 0
    heard_s: float = 0.0
    turn: int = 0
    chunks: deque[Chunk] = field(default_factory=deque, repr=False)

    @property
    def end(self) -> int:
        """Its length once all that waits is computed."""
        return self.chunks[-1].end if self.chunks else self.have
