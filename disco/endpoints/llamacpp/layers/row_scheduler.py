"""Decides which devices' rows the cloud's layers compute next, and keeps each device's rows in its own sequences.

Nothing here reads a clock or waits: the engine's thread calls `step` with the time, and tests do so with any time.

Chunks are computed in order of arrival. One that is longer than a pass takes its next turn behind those of the other
sequences, so that no chunk waits for more than one pass of another's. Short ones share a pass where that is faster;
long ones gain nothing by it and would change their numbers, because llama.cpp takes other kernels for larger passes.

Which slot a sequence has is in `row_slots`, how a pass is made in `row_passes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disco.endpoints.llamacpp.batching.verify_curve import VerifyCurve
from disco.endpoints.llamacpp.layers.chunk import Chunk, Computed, Refused, Released, Reply, Sequence, Session
from disco.endpoints.llamacpp.layers.row_passes import RowComputer, RowPasses
from disco.endpoints.llamacpp.layers.row_slots import RowSlots
from disco.speculate.layer_facts import Code

__all__ = ["LayerLimits", "RowScheduler"]


@dataclass(frozen=True, slots=True)
class LayerLimits:
    """What devices may take.

    Attributes:
        sessions: devices at the same time. For a new one, room is made by the one that left first of those that are
            kept without a connection; else by the one that has been silent longest of those that have no sequence;
            else of those that are silent for `idle_s`. Who is sent away may come again.
        sequences: of one session; None: a quarter of the slots, at least 1.
        positions: of one session, in all its sequences; None: as many as they can hold.
        idle_s: for how long a sequence for which nothing is asked keeps its slot while others wait, s.
        wait_s: how long a chunk waits for a slot, s.
        hold_s: how long a session is kept without a connection, s. Its slots are given away if others need them.
    """

    sessions: int = 256
    sequences: int | None = None
    positions: int | None = None
    idle_s: float = 5.0
    wait_s: float = 10.0
    hold_s: float = 30.0

    def sequences_of(self, slots: int) -> int:
        """Return how many sequences a session may have, of so many slots."""
        return self.sequences or max(1, slots // 4)


class RowScheduler:
    """All sequences of all devices. Used by one thread. Mutable.

    Args:
        model: computes.
        curve: seconds of a pass by its rows.
        limits: of time and number.
        timer: s, for the time that passes take.

    Attributes:
        slots: the model's sequences.
        passes: computes them, and knows the load.
    """

    def __init__(
        self, model: RowComputer, curve: VerifyCurve, limits: LayerLimits, *, timer: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._hidden, self._context_tokens = model.hidden, model.context_tokens
        self.slots = RowSlots(model, limits.idle_s)
        self.passes = RowPasses(model, self.slots, curve, timer)
        self.most_sequences = limits.sequences_of(model.slots)
        self._most_positions = limits.positions or self.most_sequences * model.context_tokens
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[Sequence, None] = {}  # sequences with chunks
        self._unfinished: list[Sequence] = []  # the last pass was not the last of their chunks
        self._turns = 0

    # What devices ask for

    def connect(self, key: str, reply: Reply, now: float) -> None:
        """Begin a session, or take it up again; what an older connection of it asked for is forgotten."""
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= self._limits.sessions and not self._make_room(now):
                _end(reply, Code.BUSY, f"{self._limits.sessions} devices use this server, which is the limit")
                return
            session = self._sessions[key] = Session(key)
        elif session.reply is not None:
            _end(session.reply, Code.BUSY, "the session has another connection now")
            self._drop_chunks(session)
        session.reply, session.heard_s = reply, now

    def leave(self, key: str, reply: Reply, now: float) -> None:
        """Note that a connection is gone: nobody waits for its chunks. The sequences stay for a while."""
        session = self._sessions.get(key)
        if session is not None and session.reply is reply:
            session.reply, session.left_s = None, now
            self._drop_chunks(session)
            if not session.sequences:
                del self._sessions[key]

    def ask(self, key: str, reply: Reply, chunk: Chunk, now: float) -> None:
        """Take a chunk. Its outcome is put into the reply in any case but that of a newer connection."""
        session = self._session(key, reply)
        if session is None:
            return
        sequence = session.sequences.get(chunk.sequence)
        chunk.refusal = self._refusal(session, sequence, chunk, now)
        if sequence is None and chunk.refusal is not None:
            reply.put(Refused(chunk, chunk.refusal[0], 0, chunk.refusal[1]))
            return
        if sequence is None:
            sequence = session.sequences[chunk.sequence] = Sequence(session, chunk.sequence)
        chunk.asked_s = sequence.heard_s = session.heard_s = now
        sequence.chunks.append(chunk)
        if sequence not in self._waiting:
            self._waiting[sequence] = None
            self._rests(sequence)

    def release(self, key: str, reply: Reply, number: int) -> None:
        """Forget a sequence that nobody will ask for again. Idempotent."""
        session = self._session(key, reply)
        if session is None:
            return
        sequence = session.sequences.get(number)
        if sequence is not None:
            for chunk in sequence.chunks:
                reply.put(Refused(chunk, Code.LOST, 0, "the sequence was let go"))
            self._forget(sequence)
        reply.put(Released(number))

    # What the engine asks

    def step(self, now: float) -> bool:
        """Compute one pass. Return whether there was one, so that there may be another."""
        for sequence in self._unfinished:  # now, so that what came during the pass has its turn first
            self._rests(sequence)
        self._unfinished.clear()
        self._expire(now)
        ready = self._ready(now)
        if not ready:
            return False
        done = self.passes.compute(ready, now)
        for sequence, outcome in done:
            if outcome is None:
                self._unfinished.append(sequence)
            else:
                self._answer(sequence, outcome, now + self.passes.took_s)
        return True

    @property
    def wake_at(self) -> float:
        """When something is to be done even if nobody asks; infinite where nothing is."""
        at = min(
            (one.left_s + self._limits.hold_s for one in self._sessions.values() if one.reply is None),
            default=float("inf"),
        )
        for sequence in self._waiting:  # whoever waits here waits for a slot
            at = min(at, sequence.chunks[0].asked_s + self._limits.wait_s, self.slots.next_idle)
        return at

    @property
    def waiting(self) -> int:
        """How many chunks wait."""
        return sum(len(one.chunks) for one in tuple(self._waiting))

    def load(self, key: str | None = None) -> float:
        """Return the averaged rows of a pass; with a session's key, without its own rows. From any thread."""
        return self.passes.load(None if key is None else self._sessions.get(key))

    def fail_all(self, text: str) -> None:
        """Refuse all chunks and forget all sequences: the model is lost, and its caches with it."""
        for session in self._sessions.values():
            for sequence in tuple(session.sequences.values()):
                for chunk in sequence.chunks:
                    if session.reply is not None:
                        session.reply.put(Refused(chunk, Code.FAILED, 0, text))
                self._forget(sequence)

    def close(self, text: str) -> None:
        """End all connections."""
        self.fail_all(text)
        for session in self._sessions.values():
            if session.reply is not None:
                _end(session.reply, Code.FAILED, text)
        self._sessions.clear()

    def _make_room(self, now: float) -> bool:
        """Forget the session that nobody misses most (`LayerLimits.sessions`); return whether there is one."""
        left = [one for one in self._sessions.values() if one.reply is None]
        if left:
            self._end_session(min(left, key=lambda one: one.left_s))
            return True
        silent = [
            one
            for one in self._sessions.values()
            if not one.sequences or (one.heard_s + self._limits.idle_s <= now and not one.waits)
        ]
        if not silent:
            return False
        session = min(silent, key=lambda one: (bool(one.sequences), one.heard_s))
        assert session.reply is not None
        _end(session.reply, Code.BUSY, "another device needs the place, and this one asked for nothing")
        self._end_session(session)
        return True

    def _end_session(self, session: Session) -> None:
        for sequence in tuple(session.sequences.values()):
            self._forget(sequence)
        del self._sessions[session.key]

    # Checks

    def _session(self, key: str, reply: Reply) -> Session | None:
        """Return the session whose connection this is; None where it has a newer one."""
        session = self._sessions.get(key)
        return session if session is not None and session.reply is reply else None

    def _refusal(
        self, session: Session, sequence: Sequence | None, chunk: Chunk, now: float
    ) -> tuple[Code, str] | None:
        if chunk.states.ndim != 2 or chunk.states.shape[1] != self._hidden or not chunk.left:
            return Code.BAD_FRAME, f"states have {self._hidden} numbers here"
        if not chunk.finite:
            return Code.NOT_FINITE, "a state is NaN or infinite"
        if chunk.end > self._context_tokens:
            return Code.TOO_LONG, f"a sequence has at most {self._context_tokens} positions here"
        others = sum(one.end for one in session.sequences.values() if one is not sequence)
        if others + chunk.end > self._most_positions:
            return Code.BUSY, f"a session has at most {self._most_positions} positions here"
        if sequence is None and len(session.sequences) >= self.most_sequences:
            idle = [one for one in session.sequences.values() if self.slots.idle_at(one) <= now]
            if not idle:
                return Code.BUSY, f"a session has at most {self.most_sequences} sequences here"
            self._forget(min(idle, key=lambda one: one.heard_s))
        return None

    # Turns and slots

    def _expire(self, now: float) -> None:
        for session in tuple(self._sessions.values()):
            if session.reply is None and session.left_s + self._limits.hold_s <= now:
                self._end_session(session)

    def _ready(self, now: float) -> list[Sequence]:
        """Return the sequences whose first chunk can be computed, the one whose turn it is first."""
        ready = []
        for sequence in sorted(self._waiting, key=lambda one: one.turn):
            while sequence.chunks and (why := self._why_not(sequence, sequence.chunks[0])) is not None:
                self._refuse(sequence, why, now)
            if not sequence.chunks:
                continue
            if sequence.slot is None and not self._seated(sequence, now):
                if sequence.chunks[0].asked_s + self._limits.wait_s <= now:
                    self._refuse(sequence, (Code.BUSY, "all slots of this server are in use"), now)
                continue
            ready.append(sequence)
        # Cleaning takes the slots of all.
        return [one for one in ready if one.slot is not None and one.chunks[0].next_at <= one.have]

    def _seated(self, sequence: Sequence, now: float) -> bool:
        """Give a sequence a slot, in place of an idle one's where none is free; return whether it has one."""
        if not self.slots.seat(sequence):
            oldest = self.slots.oldest(now)
            if oldest is not None:
                self._forget(oldest)
            elif not self.slots.clean():
                return False
            return self.slots.seat(sequence)
        return True

    def _rests(self, sequence: Sequence) -> None:
        """Note when a sequence came to wait: who has waited longest has the next turn."""
        self._turns += 1
        sequence.turn = self._turns

    def _answer(self, sequence: Sequence, outcome: Computed | Refused, now: float) -> None:
        """Say what became of a sequence's first chunk."""
        sequence.chunks.popleft()
        sequence.heard_s = sequence.session.heard_s = now
        self._rests(sequence)
        if sequence.session.reply is not None:
            sequence.session.reply.put(outcome)
        if not sequence.chunks:
            self._waiting.pop(sequence, None)
            if sequence.slot is None:
                self._forget(sequence)

    @staticmethod
    def _why_not(sequence: Sequence, chunk: Chunk) -> tuple[Code, str] | None:
        if chunk.refusal is None and chunk.next_at > sequence.have:
            return Code.LOST, "the server does not have what comes before these rows"
        return chunk.refusal

    def _refuse(self, sequence: Sequence, why: tuple[Code, str], now: float) -> None:
        """Refuse a sequence's first chunk. What it would have replaced is forgotten even so."""
        chunk = sequence.chunks[0]
        self.slots.shorten(sequence, chunk.at)
        self._answer(sequence, Refused(chunk, why[0], sequence.have, why[1]), now)

    def _drop_chunks(self, session: Session) -> None:
        """Forget what waits, and what it would have replaced: behind that the device has other rows by now."""
        for sequence in tuple(session.sequences.values()):
            self.slots.shorten(sequence, min((chunk.at for chunk in sequence.chunks), default=sequence.have))
            sequence.chunks.clear()
            self._waiting.pop(sequence, None)
            if sequence.slot is None:
                self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        sequence.session.sequences.pop(sequence.number, None)
        sequence.chunks.clear()
        self._waiting.pop(sequence, None)
        self.slots.free(sequence)


def _end(reply: Reply, code: Code, text: str) -> None:
    reply.put(Refused(None, code, 0, text))
    reply.close()
