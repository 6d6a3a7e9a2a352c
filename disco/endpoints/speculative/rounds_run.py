"""Drives the machine of rounds: a verify server, a drafter and a clock around `disco.speculate.rounds`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import anyio
import anyio.abc

from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.speculative.answer_deltas import deltas_of
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, Traffic, Usage
from disco.speculate.effects import Draft, Effect, Fail, Finish, Send, StopDraft, StopStream, Write
from disco.speculate.messages import Opening, Round, Verdict
from disco.speculate.rounds import Rounds

__all__ = ["RoundsRun", "Verifier", "joined"]

_AGAIN_AFTER_S: Final = (0.03, 0.2)  # before a round whose reply was lost counts as failed
_RELEASE_S: Final = 1.0  # without word of it, the server lets the answer go after a while
_MOST_WAITING: Final = 2048  # deltas that nobody has taken; the server is then read no further
_FRUITLESS: Final = 64  # replies in a row without a token
_CLOSE_S: Final = 5.0


class Verifier(Protocol):
    """What a run needs of a verify server (`VerifierClient`)."""

    async def round(self, round_: Round) -> Verdict:
        """Send a round and return its verdict."""

    def alone(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        """Send a round after whose draft the server goes on alone, and yield its verdicts."""

    async def release(self, key: str) -> None:
        """Tell the server that nobody will ask for an answer again."""

    async def aclose(self) -> None:
        """Let go of the connections."""

    @property
    def traffic(self) -> Traffic:
        """Return the bytes sent and received so far."""


@dataclass(slots=True)
class Work:
    """What the server has done for the answer so far, tokens; see `messages.Verdict`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rejected_tokens: int = 0

    def learn(self, verdict: Verdict) -> None:
        """Take the counts of a verdict. They only grow: a late verdict has older ones."""
        self.prompt_tokens = max(self.prompt_tokens, verdict.prompt_tokens)
        self.cached_tokens = max(self.cached_tokens, verdict.cached_tokens)
        self.completion_tokens = max(self.completion_tokens, verdict.completion_tokens)
        self.rejected_tokens = max(self.rejected_tokens, verdict.rejected_tokens)


@dataclass(slots=True, eq=False)
class RoundsRun:
    """One answer's rounds. `run` runs in a background task, `next` gives what has come of it.

    Mutable: everything below `name`.

    Attributes:
        rounds: the machine, not started.
        verifier: of this answer.
        key: the answer's.
        opening: what the answer is made from.
        drafter: None where nothing can be drafted.
        vocabulary: the server's.
        drafts: see `Request.drafts`.
        name: the endpoint's, for messages.
        work: what the server has done so far.
        finish_reason: how the answer ended; None while it goes on.
    """

    rounds: Rounds
    verifier: Verifier
    key: str
    opening: Opening
    drafter: Drafter | None
    vocabulary: str | None
    drafts: int | None
    name: str
    work: Work = field(default_factory=Work)
    finish_reason: str | None = None
    _out: list[Delta] = field(default_factory=list)
    _error: EndpointFailure | None = None
    _over: bool = False  # `run` has ended
    _cancelled: bool = False
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _taken: anyio.Event = field(default_factory=anyio.Event)
    _stopped: anyio.Event = field(default_factory=anyio.Event)
    _group: anyio.abc.TaskGroup | None = None
    _poke: anyio.Event = field(default_factory=anyio.Event)  # the timer must read `wake_at` again
    _timer_at: float = 0.0
    _sends: deque[Send] = field(default_factory=deque)
    _idle: list[anyio.Event] = field(default_factory=list)  # of lanes without a round
    _streams: dict[int, anyio.CancelScope] = field(default_factory=dict)
    _opened: bool = False  # the server has answered
    _broken: EndpointFailure | None = None  # the last lost reply
    _lost: int = 0  # replies in a row
    _fruitless: int = 0
    _prompt: tuple[int, ...] | None = None
    _prompt_came: anyio.Event = field(default_factory=anyio.Event)
    _verdict_came: anyio.Event = field(default_factory=anyio.Event)
    _drafting: Drafting | None = None
    _read_usage: Usage = field(default_factory=Usage)  # of the drafter, once it had read the prompt
    _order: Draft | None = None  # not begun
    _ordered: anyio.Event = field(default_factory=anyio.Event)

    @property
    def drafter_usage(self) -> Usage:
        """Return what the drafter has computed so far."""
        return Usage() if self._drafting is None else self._drafting.usage

    async def next(self) -> list[Delta] | None:
        """Return the next deltas, all that have come; None at the end.

        Raises:
            EndpointFailure: the answer cannot go on here.
        """
        while not self._out:
            if self._error is not None:
                raise self._error
            if self.finish_reason is not None or self._over or self._cancelled:
                return None
            self._changed = anyio.Event()
            await self._changed.wait()
        batch, self._out = self._out, []
        self._taken.set()
        return batch

    def cancel(self) -> None:
        """Stop everything. Does not wait; idempotent."""
        self._cancelled = True
        self._changed.set()
        if self._group is not None:
            self._group.cancel_scope.cancel()

    def never_ran(self) -> None:
        """Note that `run` will not be called."""
        self._over = self._cancelled = True
        self._stopped.set()

    async def stopped(self) -> None:
        """Return once nothing runs any more."""
        await self._stopped.wait()

    @property
    def has_answered(self) -> bool:
        """Whether the server has answered a round."""
        return self._opened

    @property
    def is_left(self) -> bool:
        """Whether the server was asked, is likely to be there, and does not know that the answer is over."""
        unreachable = self._error is not None and self._error.kind is FailureKind.CONNECTION
        return self._group is not None and self.finish_reason is None and not unreachable

    async def release(self) -> None:
        """Tell the server that the answer is over. Never raises, and ends soon even where it is cancelled."""
        with anyio.move_on_after(_RELEASE_S, shield=True), suppress(Exception):
            await self.verifier.release(self.key)

    async def run(self) -> None:
        """Run the answer to its end. Never raises, except for cancellation."""
        try:
            if self._cancelled:
                return
            async with anyio.create_task_group() as group:
                self._group = group
                self._do(self.rounds.start(anyio.current_time()))
                if self.drafter is not None:
                    group.start_soon(self._draft, self.drafter)
                await self._keep_time()
        except Exception as error:  # noqa: BLE001 - a defect must end this attempt only
            self._fail(EndpointFailure(FailureKind.CRASHED, error))
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                with suppress(Exception):
                    await self.verifier.aclose()
                if self._drafting is not None:
                    with suppress(Exception):
                        await self._drafting.aclose()
            self._over = True
            self._changed.set()
            self._stopped.set()

    async def _keep_time(self) -> None:
        while True:
            self._timer_at = self.rounds.wake_at
            with anyio.move_on_at(self._timer_at):
                await self._poke.wait()
            self._poke = anyio.Event()
            now = anyio.current_time()
            if now >= self.rounds.wake_at:
                self._do(self.rounds.woken(now))

    # ------------------------------------------------------------------ effects

    def _do(self, effects: list[Effect]) -> None:
        over_budget = False
        for effect in effects:
            if type(effect) is Write:
                self._fruitless = self._lost = 0
                if effect.deltas:
                    self._out += deltas_of(effect.deltas)
                    self._changed.set()
            elif type(effect) is Draft:
                if self._is_affordable(effect):
                    self._order = effect
                    self._ordered.set()
                else:
                    over_budget = True
            elif type(effect) is Send:
                self._sends.append(effect)
                if self._idle:
                    self._idle.pop().set()
                else:
                    assert self._group is not None
                    self._group.start_soon(self._lane)
            elif type(effect) is StopDraft:
                if self._order is not None:  # not begun: what the drafter is to read still counts
                    self._order = replace(self._order, count=0)
                elif self._drafting is not None:
                    self._drafting.stop()
            elif type(effect) is StopStream:
                if (scope := self._streams.get(effect.number)) is not None:
                    scope.cancel()
            elif type(effect) is Finish:
                self.finish_reason = effect.reason
                self._end()
            elif type(effect) is Fail:
                self._fail(self._broken or self._incomplete(effect.why))
        if self.rounds.wake_at < self._timer_at:
            self._poke.set()
        if over_budget:
            self._do(self.rounds.failed(anyio.current_time(), "drafter"))

    def _is_affordable(self, draft: Draft) -> bool:
        if self.drafts is None:
            return True
        used, at_first = self.drafter_usage, self._read_usage
        spent = (
            used.prompt_tokens + used.completion_tokens - at_first.prompt_tokens - at_first.completion_tokens
        )
        return spent + len(draft.append) + draft.count <= self.drafts

    def _end(self) -> None:
        self._changed.set()
        if self._group is not None:
            self._group.cancel_scope.cancel()

    def _fail(self, failure: EndpointFailure) -> None:
        if self._error is None and self.finish_reason is None:
            self._error = failure
            self._end()

    def _incomplete(self, why: str) -> EndpointFailure:
        return EndpointFailure(
            FailureKind.INCOMPLETE, IncompleteAnswerError(f"Endpoint {self.name!r} cannot go on: {why}.")
        )

    # ------------------------------------------------------------------ the server

    async def _lane(self) -> None:
        """Carry rounds, one at a time."""
        try:
            while True:
                while self._sends:
                    await self._carry(self._sends.popleft())
                ready = anyio.Event()
                self._idle.append(ready)
                await ready.wait()
        except EndpointFailure as failure:
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - a defect must end this attempt only
            self._fail(EndpointFailure(FailureKind.CRASHED, error))

    async def _carry(self, send: Send) -> None:
        is_first = send.number == 0 and not self._opened
        round_ = Round(
            key=self.key,
            number=send.number,
            at=send.at,
            draft=send.draft,
            alone=send.alone,
            opening=self.opening if is_first else None,
            wants_prompt=is_first and self.drafter is not None,
        )
        try:
            if send.alone:
                await self._stream(round_)
            else:
                self._take(await self.verifier.round(round_))
        except EndpointFailure as failure:
            # Before its first answer the server has nothing that would be lost, and another one may be quicker.
            if failure.kind is not FailureKind.CONNECTION or not self._opened:
                raise
            self._broken = failure
            await anyio.sleep(_AGAIN_AFTER_S[min(self._lost, len(_AGAIN_AFTER_S) - 1)])
            self._lost += 1
            self._do(self.rounds.failed(anyio.current_time(), "verifier", send.number))
            return
        self._fruitless += 1
        if self._fruitless > _FRUITLESS:
            raise self._incomplete("its replies bring no tokens")
        self._do(self.rounds.ended(anyio.current_time(), send.number))

    async def _stream(self, round_: Round) -> None:
        with anyio.CancelScope() as scope:
            self._streams[round_.number] = scope
            try:
                async with aclosing(self.verifier.alone(round_)) as verdicts:
                    async for verdict in verdicts:
                        self._take(verdict)
                        while len(self._out) > _MOST_WAITING:
                            self._taken = anyio.Event()
                            await self._taken.wait()
            finally:
                del self._streams[round_.number]

    def _take(self, verdict: Verdict) -> None:
        self._opened = True
        self.work.learn(verdict)
        self._verdict_came.set()
        if verdict.prompt_ids is not None and self._prompt is None:
            self._prompt = verdict.prompt_ids
            self._prompt_came.set()
        self._do(self.rounds.verified(anyio.current_time(), verdict))

    # ------------------------------------------------------------------ the drafter

    async def _draft(self, drafter: Drafter) -> None:
        """Let the drafter read the prompt, then draft; where it fails, the server goes on alone."""
        with suppress(Exception):  # whatever a drafter raises: no answer depends on it
            if not drafter.ready:
                await drafter.warm_up()
            if drafter.vocabulary in (None, self.vocabulary):
                sampling: Mapping[str, Any] = self.opening.params
                drafting = self._drafting = drafter.open(seed=self.opening.seed, sampling=sampling)
                await self._prompt_came.wait()
                assert self._prompt is not None
                while (
                    drafting.busy
                ):  # reading a prompt would delay other requests, which are more than a help
                    self._verdict_came = anyio.Event()
                    await self._verdict_came.wait()
                await drafting.read(self._prompt)
                self._read_usage = drafting.usage
                self._do(self.rounds.drafter_ready(anyio.current_time()))
                await self._draft_on(drafting)
        self._do(self.rounds.failed(anyio.current_time(), "drafter"))

    async def _draft_on(self, drafting: Drafting) -> None:
        behind: tuple[int, tuple[int, ...]] | None = None  # what the drafter has yet to drop and read
        while True:
            while (order := self._order) is None:
                self._ordered = anyio.Event()
                await self._ordered.wait()
            self._order = None
            keep, append = order.keep, order.append
            if behind is not None:
                keep, append = joined(behind, keep, append)
            if drafting.busy:  # with other requests: no token would come in time, and theirs would come later
                behind = keep, append
                drafted = Drafted(order.number, (), 0.0)
            else:
                behind = None
                drafted = await drafting.draft(
                    DraftOrder(order.number, keep, append, order.count, order.stop_below)
                )
            self._do(self.rounds.drafted(anyio.current_time(), order.number, drafted.ids, drafted.took_s))


def joined(
    before: tuple[int, tuple[int, ...]], keep: int, append: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Return what to keep and to append in the place of two such steps, one behind the other."""
    kept_before, appended_before = before
    if keep <= kept_before:
        return keep, append
    return kept_before, (*appended_before[: keep - kept_before], *append)
