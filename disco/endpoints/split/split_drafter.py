"""Drafts with the first layers of a split model, its adapter and its head, and goes on while a draft is verified.

The drafter computes in the very sequences of the target (`device_states`): what it has computed, the target need not,
and it has no prompt to read. A draft that was made but not yet judged may go on in several ways. While the device would
only wait, it drafts behind the likeliest of them (the paper's parallel drafting): behind each of the tokens that come
into question in the place of the last drafted one. If the target chooses one of them, or adds to the draft what its own
branch guessed, the next draft is there already. A wrong token before the last one makes all branches useless.

Source: HAT (Xie et al., 2025), section on parallel drafting. The paper does not say what happens when the whole draft
is right: then the branch of its last token counts, if its first token is the one that the target adds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.llamacpp.drafting.draft_sampler import DraftSampler, choosing_params
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.split.split_model import SplitModel
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.events import Usage
from disco.speculate.chunks import branch_depth

__all__ = ["SplitDrafter", "SplitDrafting"]

_STOP_WITHIN_S: Final = 10.0
_Guess = tuple[int, float]  # a token, and how sure the draft was (`DraftSampler.top_probability`)


class SplitDrafter(Drafter):
    """See the module.

    Args:
        name: the endpoint's that is charged.
        model: returns the split model; None while it is not loaded, and once it is closed.
        branches: how many tokens are tried in the place of the last drafted one; 0: nothing is drafted ahead.
        steps: most tokens drafted behind each of them; fewer where a draft is verified sooner, by the paper's (6).

    Attributes:
        ahead_tokens, ahead_used: tokens that were drafted ahead for all answers so far, and those of them that were
            sent.
    """

    def __init__(
        self, *, name: str, model: Callable[[], SplitModel | None], branches: int = 2, steps: int = 8
    ) -> None:
        self.name = name
        self._model = model
        self._branches, self._steps = branches, steps
        self.ahead_tokens = self.ahead_used = 0

    def _ahead(self, tokens: int, used: int) -> None:
        self.ahead_tokens += tokens
        self.ahead_used += used

    @property
    def vocabulary(self) -> str | None:
        model = self._model()
        return None if model is None else model.vocabulary

    @property
    def ready(self) -> bool:
        return self._model() is not None

    def text_of(self, ids: Sequence[int]) -> str:
        """Return what tokens spell, for a display; "" while no model is loaded."""
        model = self._model()
        spelt = None if model is None else model.spell(ids)
        return (spelt or b"").decode("utf-8", "replace")

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> SplitDrafting:
        model = self._model()
        if model is None:
            raise _misused("The model that drafts is not loaded.")
        params = choosing_params(sampling, name=self.name)
        return SplitDrafting(
            model, params, seed=seed, branches=self._branches, steps=self._steps, ahead=self._ahead
        )


class SplitDrafting(Drafting):
    """One answer's drafts, in a thread of its own.

    Mutable, of the event loop: `_mail`, `_thread`, `_ended`. Under `_wake`: `_orders`, `_closing`,
    `_stopped_at` (the highest number of an order that was broken off). Of the thread: `_tokens` (prompt, answer and
    draft), `_sampler`,
    `_guesses` (what was drafted ahead behind the first `_base` tokens of the sequence), `_others` (tokens that came in
    question in the place of the newest one), `_newest_draft` and `_step_s` (tokens of the newest draft, and the time of
    one that was computed). Counters are read by both.
    """

    def __init__(
        self,
        model: SplitModel,
        sampling: Sampling,
        *,
        seed: int,
        branches: int,
        steps: int,
        ahead: Callable[[int, int], object],
    ) -> None:
        self._ahead = ahead
        self._model, self._sampling, self._seed = model, sampling, seed
        self._branches, self._steps = branches, steps
        self._mail: Mailbox | None = None
        self._thread: threading.Thread | None = None
        self._ended: EndpointFailure | None = None
        self._asked = -1
        self._wake = threading.Condition()
        self._orders: deque[DraftOrder] = deque()
        self._stopped_at = -1
        self._closing = False
        self._tokens: list[int] = []
        self._prompt_tokens = 0
        self._sampler: DraftSampler | None = None
        self._base = 0
        self._guesses: list[list[_Guess]] = []
        self._others: list[int] = []
        self._newest_draft, self._step_s = 0, 0.0
        self.drafted_tokens = self.ahead_tokens = self.ahead_used = 0

    async def read(self, prompt_ids: Sequence[int]) -> None:
        """Note the prompt: the target has computed it."""
        self._tokens = list(prompt_ids)
        self._prompt_tokens = len(self._tokens)
        await checkpoint()

    async def draft(self, order: DraftOrder) -> Drafted:
        if self._ended is not None:
            raise self._ended
        if not self._prompt_tokens or order.number <= self._asked:
            raise _misused("A drafting reads its prompt first, and then takes orders with rising numbers.")
        self._asked = order.number
        if self._mail is None:
            self._mail = Mailbox()
            self._thread = threading.Thread(target=self._main, name="disco-split-draft", daemon=True)
            self._thread.start()
        with self._wake:
            self._orders.append(order)
            self._wake.notify()
        try:
            while True:
                items = await self._mail.take()
                if not items:
                    raise self._ended or _misused("The drafting was closed.")
                for item in items:
                    if isinstance(item, EndpointFailure):
                        self._ended = item
                        raise item
                    if item.number == order.number:
                        found: Drafted = item
                        return found
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        with self._wake:
            self._stopped_at = self._asked

    @property
    def usage(self) -> Usage:
        return Usage(0, self.drafted_tokens + self.ahead_tokens - self.ahead_used)

    async def aclose(self) -> None:
        self._ended = self._ended or _misused("The drafting was closed.")
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._mail is not None:
            with anyio.move_on_after(_STOP_WITHIN_S, shield=True):
                await self._mail.wait_closed()

    # In the thread

    def _main(self) -> None:
        assert self._mail is not None
        try:
            with self._in_use() as model:
                self._sampler = DraftSampler(model.device, self._sampling, self._seed)
            while (order := self._next()) is not None:
                self._mail.put(self._carry_out(order))
                self._go_ahead()
        except Aborted:
            self._mail.put(_misused("The model that drafts is closed."))
        except EndpointFailure as failure:
            self._mail.put(failure)
        except Exception as exc:  # noqa: BLE001 - the answer goes on without drafts
            self._mail.put(failure_of(exc, "The model that drafts failed"))
        finally:
            if self._sampler is not None:
                self._sampler.close()
            self._mail.close()

    def _next(self) -> DraftOrder | None:
        with self._wake:
            while not (self._orders or self._closing):
                self._wake.wait()
            return None if self._closing else self._orders.popleft()

    def _carry_out(self, order: DraftOrder) -> Drafted:
        began_at = time.perf_counter()
        tokens = self._agree(order)
        drafted: list[int] = []
        slot = self._slot_of(tokens)
        for token, sureness in self._foreseen():
            if len(drafted) == order.count or self._is_over(order, drafted):
                break
            tokens.append(token)
            drafted.append(token)
            self._others = []  # those known came into question in an earlier place
            self.ahead_used += 1
            self._ahead(0, 1)
            if sureness < order.stop_below or self._ends_answer(token):
                return self._drafted(order, drafted, began_at, 0)
        self._guesses = []
        foreseen = len(drafted)
        while slot is not None and len(drafted) < order.count and not self._is_over(order, drafted):
            token, sureness = self._step(slot, tokens)
            tokens.append(token)
            drafted.append(token)
            if sureness < order.stop_below or self._ends_answer(token):
                break
        return self._drafted(order, drafted, began_at, len(drafted) - foreseen)

    def _drafted(self, order: DraftOrder, drafted: list[int], began_at: float, computed: int) -> Drafted:
        self.drafted_tokens += len(drafted)
        self._newest_draft, took_s = len(drafted), time.perf_counter() - began_at
        if computed:
            self._step_s = took_s / computed
        return Drafted(order.number, tuple(drafted), took_s)

    def _is_over(self, order: DraftOrder, drafted: list[int]) -> bool:
        full = len(self._tokens) >= self._model.context_tokens - 1
        return full or self._closing or (bool(drafted) and order.number <= self._stopped_at)

    def _agree(self, order: DraftOrder) -> list[int]:
        """Make the sequence agree with the answer."""
        length = self._prompt_tokens + order.keep
        if not self._prompt_tokens <= length <= len(self._tokens):
            raise malformed(f"{order.keep} drafted tokens were to be kept, but there are fewer.")
        goes_on = length == len(self._tokens) and not order.append
        if length < self._base:
            self._guesses = []  # a token before the branches was wrong
        del self._tokens[length:]
        self._tokens.extend(order.append)
        assert self._sampler is not None
        if not goes_on:
            self._sampler.settle(self._tokens[self._prompt_tokens :])
        return self._tokens

    def _step(self, slot: int, tokens: list[int], *, keeps_others: bool = True) -> _Guess:
        """Choose the token behind a sequence; remember which others come into question."""
        sampler = self._sampler
        assert sampler is not None
        with self._in_use() as model:
            model.states.stand_behind(slot, tokens)
            token = sampler.draft(len(tokens))
            sureness = sampler.top_probability()
            if keeps_others and self._branches > 1:
                self._others = sampler.likeliest(len(tokens), self._branches)
        return token, sureness

    def _foreseen(self) -> list[_Guess]:
        """Return what was drafted ahead behind the tokens of the sequence, if anything was."""
        newest = self._tokens[self._base :]
        for guesses in self._guesses:
            if len(newest) < len(guesses) and newest == [token for token, _ in guesses[: len(newest)]]:
                return guesses[len(newest) :]
        return []

    def _go_ahead(self) -> None:
        """Draft behind the likeliest tokens in the place of the last one, until the next order comes."""
        assert self._sampler is not None
        tokens = self._tokens
        if not self._branches or len(tokens) == self._prompt_tokens or self._sampler.remembers:
            return
        steps = self._ahead_steps()
        self._base, self._guesses = len(tokens) - 1, []
        last = tokens[-1]
        others = [token for token in self._others if token != last]
        before = tokens[:-1]
        slot = self._slot_of(before)
        for start in [last, *others[: self._branches - 1]]:
            branch: list[_Guess] = [(start, 1.0)]
            self._guesses.append(branch)
            for _ in range(steps):
                so_far = [*before, *(token for token, _ in branch)]
                if slot is None or self._is_wanted() or len(so_far) >= self._model.context_tokens - 1:
                    return
                if self._ends_answer(branch[-1][0]):
                    break
                branch.append(self._step(slot, so_far, keeps_others=False))
                self.ahead_tokens += 1
                self._ahead(1, 0)

    def _ahead_steps(self) -> int:
        with self._in_use() as model:
            return branch_depth(
                model.way, self._newest_draft, self._step_s, branches=self._branches, steps=self._steps
            )

    def _is_wanted(self) -> bool:
        return bool(self._orders) or self._closing

    @contextmanager
    def _in_use(self) -> Iterator[SplitModel]:
        """Have the model for a step; the target comes first where it waits for it.

        Raises:
            EndpointFailure: it is closed; nothing of it is there any more.
        """
        with self._model.states.behind_target():
            if self._model.closed:
                raise _misused("The model that drafts was closed.")
            yield self._model

    def _slot_of(self, tokens: Sequence[int]) -> int | None:
        with self._in_use() as model:
            return model.states.slot_of(tokens, self._prompt_tokens)

    def _ends_answer(self, token: int) -> bool:
        with self._in_use() as model:
            return model.ends_answer(token)


def _misused(message: str) -> EndpointFailure:
    return EndpointFailure(FailureKind.CRASHED, LocalModelError(message))
