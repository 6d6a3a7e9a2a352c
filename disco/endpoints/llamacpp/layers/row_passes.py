"""Computes passes of several devices' rows, and measures them.

Short chunks share a pass where that is faster. Long ones gain nothing by it, and it would change their numbers: for
larger passes llama.cpp takes other kernels.

Each row looks at all rows before it. So the last row of a pass, which is always asked for, shows whether any row of it
came out as NaN: then no other sequence must ever look at that cache (`row_slots`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.grouping import Group, grouped
from disco.endpoints.llamacpp.batching.verify_curve import VerifyCurve
from disco.endpoints.llamacpp.layers.chunk import Chunk, Computed, Refused, Sequence, Session
from disco.endpoints.llamacpp.layers.row_slots import Caches, RowSlots
from disco.endpoints.llamacpp.layers.state_model import StateRows
from disco.speculate.chunks import CloudMonitor, even_pass
from disco.speculate.layer_facts import Code

__all__ = ["RowComputer", "RowPasses"]

_WINDOW: Final = 32  # rows of a chunk that may share a pass
_SHARED: Final = 64  # rows of a shared pass
_OLD: Final = 0.8  # weight of the load's old average: alpha in the paper
_TOLD_S: Final = 0.5  # how often what was seen is told anew


class RowComputer(Caches, Protocol):
    """What is needed of the model; see `StateModel`."""

    hidden: int
    most_rows: int

    def compute(self, parts: Several[StateRows], /) -> list[npt.NDArray[np.float32]]:
        """Compute one pass, and return what came out for the wanted rows of each part."""


class RowPasses:
    """The passes of one model. Mutable.

    Args:
        model: computes.
        slots: whose rows are where.
        curve: seconds of a pass by its rows.
        timer: s.

    Attributes:
        count, rows: passes and rows so far; rows that nobody sent are not counted.
        took_s: how long the last pass took, s.
        seen: (rows, seconds) of the passes of late. Replaced and never changed, so that any thread may read it.
    """

    def __init__(
        self, model: RowComputer, slots: RowSlots, curve: VerifyCurve, timer: Callable[[], float]
    ) -> None:
        self._model = model
        self._slots = slots
        self._curve = curve
        self._timer = timer
        self._monitor = CloudMonitor(old_share=_OLD)
        self._told_s = float("-inf")
        self.count = self.rows = 0
        self.took_s = 0.0
        self.seen: tuple[tuple[int, float], ...] = ()

    def load(self, session: Session | None = None) -> float:
        """Return the averaged rows of a pass, without those of a session. From any thread."""
        own = 0.0 if session is None else self._own(session)
        return max(0.0, self._monitor.load - own)

    def compute(self, ready: list[Sequence], now: float) -> list[tuple[Sequence, Computed | Refused | None]]:
        """Compute one pass.

        Args:
            ready: the sequences whose first chunks can be computed, each with a slot, the one whose turn it is first.
            now: s.

        Returns:
            The sequences of the pass, and what became of their chunks; None: there are rows left.
        """
        group, chunks = self._chosen(ready)
        parts, fillers = self._parts(group, chunks)
        began_at = self._timer()
        outs = self._model.compute(parts)
        self.took_s = self._timer() - began_at
        for slot, length in fillers:
            self._model.cut(slot, length)
        members = [one for one in ready if one.slot in chunks]
        counts = [min(one.chunks[0].left, group.rows) for one in members]
        total = group.rows * len(parts)
        self._learn(members, counts, total, now)
        done = []
        for sequence, count in zip(members, counts, strict=True):
            assert sequence.slot is not None
            place = sequence.slot - group.first
            out = outs[place][: count - parts[place].wanted_from]
            done.append((sequence, self._outcome(sequence, count, out, total, now + self.took_s)))
        return done

    def _chosen(self, ready: list[Sequence]) -> tuple[Group, dict[int, Chunk]]:
        """Return a pass with the chunk whose turn it is, and its chunks by slot."""
        first = ready[0]
        assert first.slot is not None
        most = min(_WINDOW, self._model.most_rows)
        short = {
            one.slot: one.chunks[0] for one in ready if one.slot is not None and one.chunks[0].left <= most
        }
        if first.slot not in short or len(short) == 1:
            rows = even_pass(first.chunks[0].left, self._model.most_rows)
            return Group(first.slot, first.slot, rows), {first.slot: first.chunks[0]}
        groups = grouped(
            {slot: chunk.left for slot, chunk in short.items()},
            self._curve.s,
            most=min(_SHARED, self._model.most_rows),
            room=self._slots.room(),
        )
        group = next(one for one in groups if one.first <= first.slot <= one.last)
        return group, {slot: chunk for slot, chunk in short.items() if group.first <= slot <= group.last}

    def _parts(self, group: Group, chunks: dict[int, Chunk]) -> tuple[list[StateRows], list[tuple[int, int]]]:
        """Return the rows of a pass, and to what caches are cut behind it.

        Every slot between the first and the last has equally many: rows of zeros where nobody sent any.
        """
        parts, fillers = [], []
        for slot in range(group.first, group.last + 1):
            holder, chunk = self._slots.all[slot], chunks.get(slot)
            if holder is None or chunk is None:
                at = 0 if holder is None else holder.have
                parts.append(StateRows(slot, at, self._zeros(group.rows), group.rows))
                fillers.append((slot, at))
                continue
            at, count = chunk.next_at, min(chunk.left, group.rows)
            self._slots.shorten(holder, at)
            states = chunk.states[chunk.done : chunk.done + count]
            if count < group.rows:
                states = np.concatenate([states.astype(np.float32), self._zeros(group.rows - count)])
                fillers.append((slot, at + count))
            wanted_from = max(0, min(len(chunk.states) - chunk.wanted - chunk.done, count - 1))
            parts.append(StateRows(slot, at, states, wanted_from))
        return parts, fillers

    def _outcome(
        self, sequence: Sequence, count: int, out: npt.NDArray[np.float32], total: int, now: float
    ) -> Computed | Refused | None:
        """Take what came out for the last of `count` rows of a sequence."""
        chunk = sequence.chunks[0]
        if not np.isfinite(out).all():
            self._slots.free(sequence, spoiled=True)
            return Refused(chunk, Code.NOT_FINITE, 0, "what came out is NaN or infinite")
        chunk.done += count
        chunk.compute_s += self.took_s
        chunk.batch_rows = max(chunk.batch_rows, total)
        sequence.have = chunk.next_at
        if chunk.out is None:
            chunk.out = np.empty((chunk.wanted, self._model.hidden), np.float32)
        before = len(chunk.states) - chunk.wanted  # rows that nobody wants
        fresh = max(0, min(chunk.done - before, len(out)))
        chunk.out[chunk.done - before - fresh : max(0, chunk.done - before)] = out[len(out) - fresh :]
        if chunk.left:
            return None
        return Computed(chunk, max(0.0, now - chunk.asked_s - chunk.compute_s))

    def _learn(self, members: list[Sequence], counts: list[int], total: int, now: float) -> None:
        own: dict[str, int] = {}
        for sequence, count in zip(members, counts, strict=True):
            own[sequence.session.key] = own.get(sequence.session.key, 0) + count
        sessions = {one.session.key: one.session for one in members}
        before = {key: self._own(session) for key, session in sessions.items()}
        self._monitor.batch(total, self.took_s, load=sum(counts))
        first = self._monitor.batches == 1
        for key, session in sessions.items():
            session.load = own[key] if first else _OLD * before[key] + (1 - _OLD) * own[key]
            session.load_at = self._monitor.batches
        self.count += 1
        self.rows += sum(counts)
        if now >= self._told_s + _TOLD_S and (curve := self._monitor.curve()) is not None:
            self.seen, self._told_s = curve.points, now

    def _own(self, session: Session) -> float:
        """Return a session's share of the load."""
        return session.load * float(_OLD ** (self._monitor.batches - session.load_at))

    def _zeros(self, rows: int) -> npt.NDArray[np.float32]:
        return np.zeros((rows, self._model.hidden), np.float32)
