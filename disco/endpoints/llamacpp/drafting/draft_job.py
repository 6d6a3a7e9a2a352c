"""The job that drafts an answer which another model verifies, in the thread that holds the model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence

from disco.endpoints.drafter import Drafted, DraftOrder
from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.drafting.draft_sampler import DraftSampler
from disco.endpoints.llamacpp.drafting.short_reads import ShortReads
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.job import Outbox
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready
from disco.errors import ContextLengthError, EndpointFailure, FailureKind
from disco.events import Parked, Progress, Usage

__all__ = ["DraftJob"]


class DraftJob(Stepwise):
    """Read a prompt, then carry out one order after the other, until the job is cancelled.

    It puts `Parked` into the mailbox once the prompt is read, and a `Drafted` for each order. Between two orders it
    rests in its slot, which another answer may take. The cache is left as it is when the job ends, so an answer that
    goes on here finds prompt and answer in it.

    Mutable. Written by the event loop, read by the model's thread: `_orders` (not yet taken), `_broken_off` (the
    highest number of an order that was). That thread's only: `_tokens` (the sequence: prompt and answer), `_sampler`,
    `_reads`; of the order that is carried out: `_rows`, `_waited_s` (for others, of the time it took). Counters are
    written by that thread and read by the event loop: `prompt_tokens`, `cached_tokens`, `drafted_tokens`.

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
        self._tokens = list(prompt_ids)
        self._prompt_tokens = len(self._tokens)
        self._sampling = sampling
        self._seed = seed
        self._name = name
        self._orders: deque[DraftOrder] = deque()
        self._broken_off = -1
        self._sampler: DraftSampler | None = None
        self._reads = ShortReads()
        self._rows = 0
        self._waited_s = 0.0
        self.prompt_tokens = self.cached_tokens = self.drafted_tokens = 0

    @property
    def usage(self) -> Usage:  # type: ignore[override] # computed from the counters
        """The tokens computed so far."""
        return Usage(self.prompt_tokens, self.drafted_tokens, self.cached_tokens)

    def read_again(self, tokens: int) -> None:
        self._rows += tokens

    # From any thread

    def give(self, order: DraftOrder) -> None:
        """Add an order; the worker must then be told."""
        self._orders.append(order)

    def break_off(self, number: int) -> None:
        """Break off all orders up to this number; the worker must then be told. Each is answered all the same."""
        self._broken_off = max(self._broken_off, number)

    @property
    def ready(self) -> bool:
        return bool(self._orders)

    # Where the model is

    def steps(self, model: AnswerModel) -> Generator[None]:
        try:
            yield from self._read(model)
            while True:
                while self._orders:
                    yield from self._carry_out(model, self._orders.popleft())
                yield
        finally:
            if self._sampler is not None:
                self._sampler.close()

    def _read(self, model: AnswerModel) -> Generator[None]:
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
        model.prepare(self._tokens)
        yield from when_ready(model)
        self.cached_tokens = self.prompt_tokens = model.reuse(self._tokens)
        self._progressed(0.0)
        began_at = time.perf_counter()
        while self.prompt_tokens < len(self._tokens):
            self.check()
            self.prompt_tokens += yield from self._compute(model, self._batch(model, self.prompt_tokens))
            computed = self.prompt_tokens - self.cached_tokens
            self._progressed(computed / max(time.perf_counter() - began_at, 1e-9))
        self.mail.put(Parked(self.usage, ()))

    def _progressed(self, tps: float) -> None:
        self.progressed(Progress(self.prompt_tokens, len(self._tokens), tps))

    def _check_ids(self, model: AnswerModel, ids: Sequence[int]) -> None:
        if any(not 0 <= token < model.vocabulary_tokens for token in ids):
            raise malformed(
                f"Endpoint {self._name!r} has no such tokens: the other model's vocabulary differs."
            )

    def _batch(self, model: AnswerModel, done: int) -> Sequence[int]:
        # Batches end where an answer's own prefill ends them, so the numbers are the same to the last bit.
        size = model.batch_tokens
        return self._tokens[done : (done // size + 1) * size]

    def _carry_out(self, model: AnswerModel, order: DraftOrder) -> Generator[None]:
        began_at = time.perf_counter()
        self._agree(model, order)
        drafted: list[int] = []
        self._rows, self._waited_s = 0, 0.0
        if self._is_wanted(order) and len(self._tokens) <= model.context_tokens:
            yield from self._draft(model, order, drafted)
        read_tokens = max(0, self._rows - len(drafted))
        self.prompt_tokens += read_tokens
        self.drafted_tokens += len(drafted)
        took_s = time.perf_counter() - began_at - self._waited_s
        self.mail.put(Drafted(order.number, tuple(drafted), took_s, read_tokens))

    def _is_wanted(self, order: DraftOrder) -> bool:
        """Return False where an order was broken off; looked up between two passes. Raises `Aborted`: see `check`."""
        self.check()
        return order.number > self._broken_off

    def _agree(self, model: AnswerModel, order: DraftOrder) -> None:
        """Make the sequence agree with the answer, and the cache with the sequence, as far as it goes."""
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
        model.keep(min(model.length, length))

    def _draft(self, model: AnswerModel, order: DraftOrder, drafted: list[int]) -> Generator[None]:
        tokens, sampler = self._tokens, self._sampler
        assert sampler is not None
        # Without a token to read, the logits behind the last one are needed.
        done = model.length if model.length < len(tokens) else model.reuse(tokens)
        while done < len(tokens):
            if not self._is_wanted(order):
                return
            together = self._reads.together(len(tokens) - done)
            done += yield from self._compute(
                model, self._batch(model, done) if together else tokens[done : done + 1]
            )
        while len(drafted) < order.count and len(tokens) < model.context_tokens:
            token = sampler.draft(len(tokens))
            tokens.append(token)
            drafted.append(token)
            if len(drafted) == order.count or model.ends_answer(token):
                return
            if order.stop_below > 0 and sampler.top_probability() < order.stop_below:
                return
            if not self._is_wanted(order):
                return
            yield from self._compute(model, (token,))

    def _compute(self, model: AnswerModel, ids: Sequence[int]) -> Generator[None, None, int]:
        """Compute tokens behind those in the cache; return how many."""
        depth, began_at = model.length, time.perf_counter()
        model.decode(ids)
        yield from when_ready(model)
        self._waited_s += time.perf_counter() - began_at - model.took_s
        self._reads.took(len(ids), model.took_s)
        if len(ids) > 1:
            model.batch_costs.took(len(ids), depth, model.took_s)
        self._rows += len(ids)
        return len(ids)
