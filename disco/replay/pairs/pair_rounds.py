"""One answer of a pair in virtual time: the machine of rounds that runs live, with a modelled drafter and server.

Nothing of another attempt changes the answer's times, so its events can be computed one after the other, each when it
is asked for. What was used until a time is known as long as no event behind that time was asked for.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from random import Random
from typing import Any, Final, NamedTuple

from disco.endpoints.simulation.simulated_script import Fault, Scripted, simulated_failure
from disco.errors import FailureKind
from disco.events import Delta, Ended, SpeculationReport, Usage
from disco.replay.pairs.simulated_pair import Pair, Sequences
from disco.replay.pairs.verify_server import Failed, Reply, VerifyServer
from disco.speculate.accounts import report_of, usage_of
from disco.speculate.effects import Draft, Effect, Finish, Send, StopDraft, StopStream, Write
from disco.speculate.estimates import Estimates
from disco.speculate.rounds import Rounds
from disco.speculate.tally import Tally

__all__ = ["Asked", "PairRounds"]

_WRONG: Final = -1  # no token of the target
_NO_ORDER: Final = -1
_PLAIN_FIELDS: Final = tuple(one.name for one in fields(Tally) if one.default is not MISSING)
_PLAIN: Final = attrgetter(*_PLAIN_FIELDS)
_ROUNDING_S: Final = 1e-9  # the driver's clock did not begin with the attempt


class Asked(NamedTuple):
    """An answer that a pair is to write.

    Attributes:
        endpoint: the pair's name.
        text: the answer's tokens, each a packet of its own; `hidden` of them, which come first, are not delivered.
        hidden: tokens that the reader has already and that are written again.
        drafts: what the drafter would guess.
        first_s: when the first token comes, s since the attempt began.
        alone_s: time per token of the server alone, s.
        reason: how the answer ends.
        limit: most tokens, where the pair is told; None: it is not.
        prompt_tokens, cached_tokens: that the server reads, and of these the ones that it had.
        fault: what fails for certain, with `after_tokens` in delivered tokens; None: nothing.
    """

    endpoint: str
    text: Sequence[list[Delta]]
    hidden: int
    drafts: Sequences
    first_s: float
    alone_s: float
    reason: str
    limit: int | None
    prompt_tokens: int
    cached_tokens: int
    fault: Fault | None


class _Counts(NamedTuple):
    """Tokens that were processed, as the client knows it."""

    written: int = 0
    rejected: int = 0
    read: int = 0  # by the drafter
    drafted: int = 0


class _State(NamedTuple):
    """What was used until a time. `tally`: the values of `_PLAIN_FIELDS`; a copy of the object takes too long."""

    at_s: float
    counts: _Counts
    tally: tuple[Any, ...]
    windows: Mapping[int, int]
    tokens: Mapping[str, int]
    held: int


class PairRounds:
    """The events of one attempt. Mutable: everything below the blank line.

    Args:
        pair: drafter, server and network.
        asked: the answer.
        estimates: of the pair; its answers share them, as live.
        rng: draws jitter and waits.
        drafts: whether the drafter may draft; else the server goes on alone.
    """

    __slots__ = (
        *("_asked", "_drafts", "_pair", "_rng"),
        *("_counts", "_drafter", "_ended", "_heap", "_ignored", "_last_down_s", "_last_up_s"),
        *("_now", "_out", "_past", "_read_from_s", "_rounds", "_server", "_started", "_ties"),
    )

    def __init__(
        self, pair: Pair, asked: Asked, estimates: Estimates, rng: Random, *, drafts: bool = True
    ) -> None:
        self._pair, self._asked, self._rng = pair, asked, rng
        self._drafts = drafts

        self._rounds = Rounds(
            pair.windows()(),
            parallel=pair.parallel,
            estimates=estimates,
            has_drafter=drafts,
            limit=asked.limit,
        )
        self._drafter = _Drafter(pair, asked.drafts, rng)
        fault = asked.fault
        if fault is not None and fault.after_tokens:
            fault = replace(fault, after_tokens=fault.after_tokens + asked.hidden)
        self._server = VerifyServer(
            pair,
            tokens=len(asked.text),
            reason=asked.reason,
            first_s=asked.first_s,
            alone_s=asked.alone_s,
            fault=fault,
            rng=rng,
            schedule=self._schedule,
            send=self._send_down,
        )
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._ties = count()
        self._now = 0.0
        self._out: deque[Scripted] = deque()
        self._started = self._ended = False
        self._ignored: set[int] = set()  # streams that were broken off
        self._last_up_s = self._last_down_s = 0.0
        self._read_from_s = math.inf  # when the drafter began to read the prompt
        self._counts = _Counts()
        self._past: list[_State] = []  # since the last event but one
        self._note()

    def __iter__(self) -> PairRounds:
        return self

    def __next__(self) -> Scripted:
        if len(self._past) > 1:
            del self._past[:-1]
        while not self._out:
            if self._ended:
                raise StopIteration
            self._step()
        return self._out.popleft()

    def usage(self, at_s: float) -> Usage:
        """Return what the pair was used for until a time, not before that of the last event but one."""
        return self._usage(self._at(at_s).counts, at_s)

    def speculation(self, at_s: float) -> SpeculationReport:
        """Return what the rounds came to until then."""
        then = self._at(at_s)
        plain = dict(zip(_PLAIN_FIELDS, then.tally, strict=True))
        timed = [one for one in self._rounds.tally.timed_windows if one[1] <= then.at_s + _ROUNDING_S]
        tally = Tally(**plain, windows=Counter(then.windows), tokens=Counter(then.tokens))
        return report_of(replace(tally, timed_windows=timed), then.counts.rejected)

    @property
    def drafter(self) -> str:
        """Name of who drafts."""
        return self._pair.drafter

    def held(self, at_s: float) -> int | None:
        """Return how many tokens of the attempt's text the drafter has in its cache then; None: not the prompt."""
        then = self._at(at_s)
        return then.held if then.counts.read else None

    def _at(self, at_s: float) -> _State:
        return next((then for then in reversed(self._past) if then.at_s <= at_s + _ROUNDING_S), self._past[0])

    def _usage(self, counts: _Counts, at_s: float) -> Usage:
        read = counts.read
        if not read and at_s > self._read_from_s:  # a part of the prompt
            read = int((at_s - self._read_from_s) * (self._pair.read_tps or 0.0))
        asked = self._asked
        return usage_of(
            asked.endpoint,
            Usage(asked.prompt_tokens, counts.written, asked.cached_tokens),
            counts.rejected,
            self._pair.drafter,
            Usage(read, counts.drafted),
        )

    # Time

    def _schedule(self, at_s: float, what: Callable[[float], None]) -> None:
        heappush(self._heap, (at_s, next(self._ties), what))

    def _step(self) -> None:
        if not self._started:
            self._started = True
            if len(self._asked.text) == 0:
                self._end(self._asked.first_s, self._asked.reason)
            else:
                self._take(self._rounds.start(0.0))
            return
        wake_at = self._rounds.wake_at
        if self._heap and self._heap[0][0] <= wake_at:
            self._now, _, what = heappop(self._heap)
            if self._now == math.inf:
                self._fail(math.inf)
            else:
                what(self._now)
        else:
            assert wake_at < math.inf, "the rounds wait, but no event is left"
            self._now = wake_at
            self._take(self._rounds.woken(wake_at))
            self._note()

    def _one_way_s(self) -> float:
        delay_s = self._pair.round_trip_s / 2
        jitter_s = self._pair.jitter_s
        return max(0.0, self._rng.gauss(delay_s, jitter_s)) if jitter_s else delay_s

    def _note(self) -> None:
        """Remember what was used until now."""
        tally = self._rounds.tally
        state = _State(
            self._now,
            self._counts,
            _PLAIN(tally),
            dict(tally.windows),
            dict(tally.tokens),
            self._drafter.held,
        )
        self._past.append(state)

    # What the machine asks for

    def _take(self, effects: list[Effect]) -> None:
        now = self._now
        for effect in effects:
            if isinstance(effect, Write):
                text, hidden = self._asked.text, self._asked.hidden
                packet = [text[token][0] for token in effect.ids if token >= hidden]
                if packet:
                    self._out.append((now, packet))
            elif isinstance(effect, Send):
                self._send_up(partial(self._server.take, effect))
            elif isinstance(effect, Draft):
                done_s = self._drafter.begin(now, effect)
                self._schedule(done_s, partial(self._drafted, effect.number))
            elif isinstance(effect, StopDraft):
                if self._drafter.number == effect.number:
                    self._drafter.stop(now)
                    self._schedule(now, partial(self._drafted, effect.number))
            elif isinstance(effect, StopStream):
                self._ignored.add(effect.number)
                self._send_up(partial(self._server.stop, effect.number))
            elif isinstance(effect, Finish):
                self._end(now, effect.reason)
            else:
                self._fail(now, FailureKind.INCOMPLETE)

    def _end(self, at_s: float, reason: str) -> None:
        self._ended = True
        self._break_off(at_s)
        self._out.append((at_s, Ended(reason, self._usage(self._counts, at_s))))

    def _fail(self, at_s: float, kind: FailureKind | None = None) -> None:
        self._ended = True
        self._break_off(at_s)
        fault = self._asked.fault
        kind = kind or (fault.kind if fault is not None else None) or FailureKind.STALLED
        retry_after_s = None if fault is None else fault.retry_after_s
        failure = simulated_failure(kind, self._asked.endpoint, retry_after_s=retry_after_s)
        self._out.append((at_s, failure))

    def _break_off(self, at_s: float) -> None:
        """Count what the drafter has of a draft that the end of the answer breaks off."""
        if self._drafter.number != _NO_ORDER and at_s < math.inf:
            self._drafter.stop(at_s)
            self._count(*self._drafter.finish(at_s))

    def _count(self, ids: Sequence[int], read: int, ahead: int) -> None:
        counts = self._counts
        if not self._pair.reads_prompt:
            read = 0
        self._counts = counts._replace(read=counts.read + read, drafted=counts.drafted + len(ids) + ahead)

    # The network, and what comes back

    def _send_up(self, what: Callable[[float], None]) -> None:
        self._last_up_s = max(self._last_up_s, self._now + self._one_way_s())
        self._schedule(self._last_up_s, what)

    def _send_down(self, at_s: float, reply: Reply | Failed) -> None:
        if self._pair.jitter_s and self._last_down_s:  # the time of the first token is given
            at_s += self._one_way_s() - self._pair.round_trip_s / 2
        self._last_down_s = max(self._last_down_s, at_s)
        self._schedule(self._last_down_s, partial(self._heard, reply))

    def _heard(self, reply: Reply | Failed, now: float) -> None:
        if isinstance(reply, Failed):
            self._fail(now)
            return
        verdict = reply.verdict
        if verdict.number in self._ignored:
            return
        if self._drafts and self._read_from_s == math.inf:  # the first verdict has the prompt in tokens
            self._read_from_s = now
            self._schedule(now + self._pair.reads_s(self._asked.prompt_tokens), self._has_read)
        written, rejected = verdict.completion_tokens, verdict.rejected_tokens
        self._counts = self._counts._replace(written=written, rejected=rejected)
        self._take(self._rounds.verified(now, verdict))
        if reply.is_last and not self._ended:
            self._take(self._rounds.ended(now, verdict.number))
        self._note()

    def _has_read(self, now: float) -> None:
        if self._pair.reads_prompt:
            self._counts = self._counts._replace(read=self._asked.prompt_tokens)
        self._take(self._rounds.drafter_ready(now))
        self._note()

    def _drafted(self, number: int, now: float) -> None:
        drafter = self._drafter
        if drafter.number != number:
            return  # it was stopped
        began_s = drafter.began_s
        ids, read, ahead = drafter.finish(now)
        self._count(ids, read, ahead)
        self._take(self._rounds.drafted(now, number, ids, now - began_s))
        self._note()


class _Drafter:
    """The drafter's sequence: the answer's tokens that it has behind the prompt.

    Mutable: all but `pair`, `guesses`, `rng`.

    Attributes:
        number: of the order that is carried out; -1: none.
        began_s: when that began.
    """

    __slots__ = (
        *("_computed", "_count", "_guesses", "_length", "_pair", "_unread", "_wrong_at", "began_s", "number"),
        *("_ahead_from_s", "_ahead_in_vain", "_foreseen", "_newest", "_rng"),
    )

    def __init__(self, pair: Pair, guesses: Sequences, rng: Random) -> None:
        self._pair, self._guesses, self._rng = pair, guesses, rng
        self._newest = 0  # tokens of the newest draft
        self._ahead_from_s = math.inf  # since when it drafts ahead
        self._foreseen = 0  # tokens of the order that were drafted ahead
        self._ahead_in_vain = 0  # tokens drafted ahead that no order has used
        self._length = 0  # of the sequence
        self._computed = 0  # tokens of it that the cache has
        self._wrong_at = math.inf  # place of its first token that is not the target's
        self._unread = self._count = 0
        self.number = _NO_ORDER
        self.began_s = 0.0

    def begin(self, now: float, order: Draft) -> float:
        """Begin a draft; return when it is done if it is not stopped."""
        self._foreseen = self._drafted_ahead(now, order)
        if order.keep <= self._wrong_at:
            self._wrong_at = math.inf
            if _WRONG in order.append:
                self._wrong_at = order.keep + order.append.index(_WRONG)
        self._length = order.keep + len(order.append)
        self._computed = min(self._computed, order.keep)
        self._unread = self._length - self._computed
        self.number, self.began_s = order.number, now
        self._count = self._until_unsure(order.count, order.stop_below)
        used = self._foreseen = min(self._foreseen, self._count)
        self._ahead_in_vain -= used
        return now + self._read_s + self._pair.drafts_s(self._count - used)

    def _drafted_ahead(self, now: float, order: Draft) -> int:
        """Return how many tokens behind the order's were drafted while it waited; see `Ahead`."""
        ahead, each_s = self._pair.ahead, self._pair.drafts_s(1)
        if ahead is None or self._ahead_from_s == math.inf or not each_s:
            return 0
        depth = ahead.depth(self._newest, each_s)
        done = min(int((now - self._ahead_from_s) / each_s + _ROUNDING_S), depth * ahead.branches)
        self._ahead_in_vain += done
        if len(order.append) != 1:
            return 0
        if order.keep == self._length:  # all was right: its own guess of the next token must be, too
            accepts = self._guesses.accepts
            is_right = self._wrong_at == math.inf and self._length < len(accepts) and accepts[self._length]
            return max(0, min(done, depth) - 1) if is_right else 0
        if order.keep == self._length - 1 and ahead.branches > 1 and self._rng.random() < ahead.hits:
            return max(0, min(done - depth, depth))
        return 0

    def stop(self, now: float) -> None:
        """Break the draft off: only the tokens that are complete count."""
        drafting_s = now - self.began_s - self._read_s
        each_s, foreseen = self._pair.drafts_s(1), self._foreseen
        if drafting_s < (self._count - foreseen) * each_s:
            self._count = foreseen + (max(0, int(drafting_s / each_s)) if each_s else 0)

    def finish(self, now: float) -> tuple[tuple[int, ...], int, int]:
        """End the draft; return the guesses, how many tokens were read for them, and drafted ahead in vain before."""
        accepts, length, count = self._guesses.accepts, self._length, self._count
        ids: list[int] = []
        for place in range(length, length + count):
            if self._wrong_at == math.inf and (place >= len(accepts) or not accepts[place]):
                self._wrong_at = place
            ids.append(place if self._wrong_at == math.inf else _WRONG)
        self.number = _NO_ORDER
        self._length = length + count
        in_vain, self._ahead_in_vain = self._ahead_in_vain, 0
        self._newest, self._ahead_from_s = count, now
        if not count:
            return (), 0, in_vain
        self._computed = self._length - 1  # the newest is computed with the next order
        return tuple(ids), max(0, self._unread - 1), in_vain

    @property
    def held(self) -> int:
        """How many of the target's tokens the cache has."""
        return int(min(self._computed, self._wrong_at))

    @property
    def _read_s(self) -> float:
        """Time to read what the sequence has beyond the cache, s; one token of it is part of drafting.

        A few tokens may take less one by one than together.
        """
        tokens = max(0, self._unread - 1)
        return min(self._pair.reads_s(tokens), self._pair.drafts_s(tokens))

    def _until_unsure(self, most: int, stop_below: float) -> int:
        confidence = self._guesses.confidence
        if stop_below and confidence:
            for done in range(most):
                if confidence[(self._length + done) % len(confidence)] < stop_below:
                    return done + 1
        return most
