"""The job that drafts an answer which another model verifies, in the thread that holds the model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from disco.endpoints.drafter import Drafted, DraftOrder
from disco.endpoints.llamacpp.drafting.draft_sampler import DraftSampler
from disco.endpoints.llamacpp.drafting.short_reads import ShortReads
from disco.endpoints.llamacpp.model.native import Aborted, NativeModel
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.job import Job, Outbox
from disco.errors import ContextLengthError, EndpointFailure, FailureKind
from disco.events import Parked, Progress, Usage

__all__ = ["DraftJob"]


class DraftJob(Job):
    """Read a prompt, then carry out one order after the other, until the job is cancelled.

    It puts `Parked` into the mailbox once the prompt is read, and a `Drafted` for each order. Between two orders it
    gives the model back. What other jobs displaced in the KV cache is read again with the next order. The cache is left
    as it is when the job ends, so an answer that goes on here finds prompt and answer in it.

    Mutable. Written by the event loop, read by the worker: `_orders` (not yet taken), `_broken_off` (the highest
    number of an order that was). Worker's only: `_tokens` (the sequence: prompt and answer), `_sampler`, `_interrupt`,
    `_reads`, `_has_read`. Counters are written by the worker and read by the event loop: `prompt_tokens`,
    `cached_tokens`, `drafted_tokens`.

    Args:
        mail: see `Job`.
        prompt_ids: the rendered prompt.
        sampling: the request's parameters; those beside the choice of tokens have no effect.
        seed: of the keyed noise.
        name: the endpoint's, for messages.
    """

    resident = True

    def __init__(
        self, mail: Outbox, prompt_ids: Sequence[int], sampling: Sampling, *, seed: int, name: str
    ) -> None:
        super().__init__(mail)
        self._interrupt = StopFlag()
        self.flag = _Leave(self)
        self._tokens = list(prompt_ids)
        self._prompt_tokens = len(self._tokens)
        self._sampling = sampling
        self._seed = seed
        self._name = name
        self._orders: deque[DraftOrder] = deque()
        self._broken_off = -1
        self._has_read = False
        self._sampler: DraftSampler | None = None
        self._reads = ShortReads()
        self._rows = 0
        self.prompt_tokens = self.cached_tokens = self.drafted_tokens = 0

    @property
    def usage(self) -> Usage:  # type: ignore[override] # computed from the counters
        """The tokens computed so far."""
        return Usage(self.prompt_tokens, self.drafted_tokens, self.cached_tokens)

    def used(self, usage: Usage) -> None:
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.drafted_tokens = usage.completion_tokens

    # From any thread

    def give(self, order: DraftOrder) -> None:
        """Add an order; the worker must then be told."""
        self._orders.append(order)

    def break_off(self, number: int) -> None:
        """Break off all orders up to this number; the worker must then be told. Each is answered all the same."""
        self._broken_off = max(self._broken_off, number)
        self._interrupt.set()

    def interrupt(self) -> None:
        """Stop the computation of the order that is being carried out."""
        self._interrupt.set()

    @property
    def ready(self) -> bool:
        return bool(self._orders)

    # To and from a model in another process

    def order(self) -> tuple[str, Mapping[str, Any]]:
        content = {"prompt_ids": self._tokens, "sampling": self._sampling, "seed": self._seed}
        return "draft", {**content, "name": self._name, "park": False}

    def more(self) -> dict[str, Any]:
        orders = [self._orders.popleft() for _ in range(len(self._orders))]
        return {"orders": orders, "broken_off": self._broken_off}

    def take_more(self, content: Mapping[str, Any]) -> None:
        self._broken_off = max(self._broken_off, content["broken_off"])
        for one in content["orders"]:
            self.give(DraftOrder(**{**one, "append": tuple(one["append"])}))

    def flags(self) -> dict[str, Any]:
        return {**super().flags(), "broken_off": self._broken_off}

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        super().take_flags(flags)
        if flags["broken_off"] > self._broken_off:
            self.break_off(flags["broken_off"])

    # Where the model is

    def run(self, model: NativeModel) -> bool:
        try:
            if not self._has_read:
                self._read(model)
            while self._orders:
                self._carry_out(model, self._orders.popleft())
        except BaseException:
            self.close()
            raise
        return False

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = None

    def _read(self, model: NativeModel) -> None:
        if not self._tokens:
            raise malformed(f"Endpoint {self._name!r} cannot draft an answer to an empty prompt.")
        self._check_ids(model, self._tokens)
        if len(self._tokens) >= model.context_tokens:
            raise EndpointFailure(
                FailureKind.CONTEXT_LENGTH,
                ContextLengthError(
                    f"The prompt is {len(self._tokens):,} tokens; endpoint {self._name!r} has a context of "
                    f"{model.context_tokens:,}, and cannot draft an answer to it."
                ),
            )
        self._sampler = DraftSampler(model, self._sampling, self._seed)
        self.cached_tokens = self.prompt_tokens = model.reuse(self._tokens)
        self._progressed(0.0)
        began_at = time.perf_counter()
        while self.prompt_tokens < len(self._tokens):
            self.check()
            self.prompt_tokens += self._compute(model, self._batch(model, self.prompt_tokens))
            computed = self.prompt_tokens - self.cached_tokens
            self._progressed(computed / max(time.perf_counter() - began_at, 1e-9))
        self._has_read = True
        self.mail.put(Parked(self.usage, ()))

    def _progressed(self, tps: float) -> None:
        self.progressed(Progress(self.prompt_tokens, len(self._tokens), tps))

    def _check_ids(self, model: NativeModel, ids: Sequence[int]) -> None:
        if any(not 0 <= token < model.vocabulary_tokens for token in ids):
            raise malformed(
                f"Endpoint {self._name!r} has no such tokens: the other model's vocabulary differs."
            )

    def _batch(self, model: NativeModel, done: int) -> Sequence[int]:
        # Batches end where an answer's own prefill ends them, so the numbers are the same to the last bit.
        size = model.batch_tokens
        return self._tokens[done : (done // size + 1) * size]

    def _carry_out(self, model: NativeModel, order: DraftOrder) -> None:
        began_at = time.perf_counter()
        kept = self._agree(model, order)
        drafted: list[int] = []
        self._rows = 0
        # A flag of its own for each order: one that comes late for an earlier order stops nothing. The number is
        # compared behind the flag's birth, so that none is missed.
        self._interrupt = StopFlag()
        if order.number > self._broken_off and len(self._tokens) <= model.context_tokens:
            self.check()
            model.begin(self._interrupt)
            try:
                self._catch_up(model, kept)
                self._draft(model, order, drafted)
            except Aborted:
                self.check()  # passes on the end of the whole job
            finally:
                model.begin(self.flag)
        read_tokens = max(0, self._rows - len(drafted))
        self.prompt_tokens += read_tokens
        self.drafted_tokens += len(drafted)
        took_s = time.perf_counter() - began_at
        self.mail.put(Drafted(order.number, tuple(drafted), took_s, read_tokens))

    def _agree(self, model: NativeModel, order: DraftOrder) -> int:
        """Make the sequence agree with the answer; return how many of its tokens it had before."""
        length = self._prompt_tokens + order.keep
        if not self._prompt_tokens <= length <= len(self._tokens):
            raise malformed(
                f"Endpoint {self._name!r} was to keep {order.keep} drafted tokens, but has fewer."
            )
        self._check_ids(model, order.append)
        goes_on = length == len(self._tokens) and not order.append
        del self._tokens[length:]
        self._tokens += order.append
        if not goes_on:
            assert self._sampler is not None
            self._sampler.settle(self._tokens[self._prompt_tokens :])
        return length

    def _draft(self, model: NativeModel, order: DraftOrder, drafted: list[int]) -> None:
        tokens, sampler = self._tokens, self._sampler
        assert sampler is not None
        while len(drafted) < order.count and len(tokens) < model.context_tokens:
            token = sampler.draft(len(tokens))
            tokens.append(token)
            drafted.append(token)
            if len(drafted) == order.count or model.ends_answer(token):
                return
            if order.stop_below > 0 and sampler.top_probability() < order.stop_below:
                return
            self._look_up()
            self._compute(model, (token,))

    def _catch_up(self, model: NativeModel, kept: int) -> None:
        """Read what the cache does not hold: tokens that were appended, and those that other jobs displaced."""
        tokens, cached = self._tokens, model.cached
        shared = min(len(cached), kept)
        if shared < len(tokens) and cached[:shared] == tokens[:shared]:
            done = model.keep(shared)  # quicker than `reuse`, which compares one by one
        else:
            done = model.reuse(tokens)
        while done < len(tokens):
            self._look_up()
            together = self._reads.together(len(tokens) - done)
            done += self._compute(model, self._batch(model, done) if together else tokens[done : done + 1])

    def _compute(self, model: NativeModel, ids: Sequence[int]) -> int:
        """Compute tokens behind those in the cache; return how many."""
        depth, began_at = model.length, time.perf_counter()
        model.decode(ids)
        took_s = time.perf_counter() - began_at
        self._reads.took(len(ids), took_s)
        if len(ids) > 1:
            model.batch_costs.took(len(ids), depth, took_s)
        self._rows += len(ids)
        return len(ids)

    def _look_up(self) -> None:
        """Raise `Aborted` where the order was broken off or the job cancelled."""
        if self._interrupt.is_set() or self.mail.abandoned:
            raise Aborted


class _Leave(StopFlag):
    """The flag of the whole job: it interrupts the order that is being carried out, too."""

    def __init__(self, job: DraftJob) -> None:
        super().__init__()
        self._job = job

    def set(self) -> None:
        super().set()
        self._job.interrupt()
