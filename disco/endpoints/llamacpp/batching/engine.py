"""A loaded model that verifies drafts for many clients: its thread, and its interface for an event loop."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from anyio import to_thread

from disco.endpoints.llamacpp.batching.answer import Answer, Asked, Order
from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.model_fingerprint import model_fingerprint
from disco.endpoints.llamacpp.batching.model_thread import ModelThread
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.scheduler import Scheduler
from disco.endpoints.llamacpp.batching.verify_curve import measured_curve
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, resolve_model, short_name
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.endpoints.llamacpp.output.generation import Generation
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.prompting.template_messages import plain_messages
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.request_params import Sampling, needs_compiling, read_params
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, LocalModelError
from disco.request import Prefix, Request
from disco.speculate.messages import Opening, Round, VerifierFacts

__all__ = ["Limits", "VerifyEngine"]

_DEPTH: Final = 16  # at which the curve is measured


class VerifyEngine:
    """One model, several slots, and a thread that computes. The model is loaded by the first round or `warm_up`.

    Every token is the model's own choice, by the request's sampling parameters and keyed noise. What is drafted, in
    which windows it comes, and what other answers do, changes when tokens come and not which.

    Mutable: `_model`, `_renderer`, `_facts`, all of the thread.

    Args:
        model: as `LlamaCppEndpoint` takes it.
        name: in messages and facts; the model's name by default.
        slots: answers whose caches are kept at the same time. Each has memory of its own for `context_tokens`.
        context_tokens: prompt and answer together; by default what the model was trained with, at most 4,096.
        threads, batch_tokens, gpu_layers, chat_template: see `LlamaCppEndpoint`.
        limits: of time and number.
        open_model: opens the model's file; takes what `SequenceModel` takes.
        clock: s; where idle times are told from.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        name: str | None = None,
        slots: int = 8,
        context_tokens: int | None = None,
        threads: int = 1,
        batch_tokens: int = 64,
        gpu_layers: int = -1,
        chat_template: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        open_model: Callable[..., BatchModel] = SequenceModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        numbers = {"slots": slots, "context_tokens": context_tokens, "threads": threads}
        for option, value in (numbers | {"batch_tokens": batch_tokens}).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        if slots > 256:  # llama.cpp's own limit
            raise ConfigurationError(f"slots must be at most 256, not {slots}.")
        self.name = name if name is not None else short_name(model)
        self._source = model
        self._template = chat_template
        self._slots = slots
        self._numbers: dict[str, Any] = {
            "context_tokens": context_tokens,
            "threads": threads,
            "batch_tokens": batch_tokens,
            "gpu_layers": gpu_layers,
        }
        self._limits = limits
        self._open = open_model
        self._clock = clock
        self._thread: ModelThread[Scheduler] = ModelThread(
            f"disco-verify-{self.name}", self._load, self._give_up, clock
        )
        self._model: BatchModel | None = None
        self._flag = StopFlag()
        self._renderer: Renderer | None = None
        self._facts = VerifierFacts(self.name, None, context_tokens or 0, slots)

    # In the event loop

    def facts(self) -> VerifierFacts:
        """Return what the server says of itself. Before the model is loaded, it knows little."""
        known, scheduler = self._facts, self._thread.scheduler
        if scheduler is None:
            return known
        return replace(known, waiting=scheduler.waiting, busy=scheduler.slots.held)

    async def warm_up(self) -> None:
        """Load the model and measure it.

        Raises:
            DiscoError: the model cannot be loaded; the message says why.
        """
        try:
            await self.load()
        except EndpointFailure as failure:
            raise failure.error from failure

    async def load(self) -> None:
        """Do the same for an attempt.

        Raises:
            EndpointFailure: the model cannot be loaded.
        """
        mail = Mailbox()
        self._submit(lambda _scheduler: mail.close(), lambda failure: _refuse(mail, failure))
        for item in await mail.take():
            raise item

    async def round(self, asked_round: Round) -> AsyncGenerator[Any]:
        """Yield the verdict on a round; several where the server is to go on alone.

        Whoever stops before the end must close the iterator (`contextlib.aclosing`): the work for the round then ends
        with the pass that is being computed. The answer is kept.

        Raises:
            AnswerLost: the server has no such answer, and the round has no opening.
            ModelChanged: the opening is for another model.
            Superseded: the same round was asked for again.
            EndpointFailure: the request cannot be served, the server is too busy, or the model failed.
        """
        order = None if asked_round.opening is None else await self._order(asked_round.opening)
        mail = Mailbox()
        asked = Asked(asked_round, mail, self._clock())
        self._submit(
            lambda scheduler: scheduler.ask(asked, order, self._clock()),
            lambda failure: _refuse(mail, failure),
        )
        try:
            while items := await mail.take():
                for item in items:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        finally:
            if not mail.closed:
                self._submit(lambda scheduler: scheduler.leave(asked, self._clock()), lambda _failure: None)

    def release(self, key: str) -> None:
        """Forget an answer that nobody will ask for again, so that its slot is free. Idempotent; does not wait."""
        if not self._thread.idle:  # otherwise there is no answer, and perhaps no model
            self._submit(lambda scheduler: scheduler.release(key, self._clock()), lambda _failure: None)

    async def aclose(self) -> None:
        """Stop everything, free the model and end the thread. Idempotent."""
        self._thread.close()
        self._flag.set()
        await to_thread.run_sync(self._thread.join)

    async def _order(self, opening: Opening) -> Order:
        prefix = _prefix(opening)
        request = Request(opening.messages, self.name, opening.params)
        messages = plain_messages(opening.messages, endpoint=self.name)
        read = partial(read_params, request, prefix, endpoint=self.name)
        sampling = await to_thread.run_sync(read) if needs_compiling(request) else read()

        def make(answer: Answer) -> Generation | None:
            if sampling.max_tokens is not None and sampling.max_tokens <= prefix.tokens:
                return None
            return self._generation(answer, messages, prefix, sampling)

        return Order(make, opening.seed, opening.ids, opening.fingerprint)

    def _generation(self, answer: Answer, messages: Any, prefix: Prefix, sampling: Sampling) -> Generation:
        assert self._renderer is not None
        renderer = self._renderer
        return Generation(
            answer,
            messages,
            prefix,
            sampling,
            renderer=lambda: renderer,
            name=self.name,
            keyed=answer.keyed,
        )

    def _submit(self, order: Callable[[Scheduler], None], refuse: Callable[[Exception], None]) -> None:
        self._thread.submit(order, lambda why: refuse(self._failure(why)))

    def _failure(self, why: Exception | None) -> EndpointFailure:
        """Return the failure of the answers and rounds of a model that is lost; None: the engine was closed."""
        if why is None:
            error = LocalModelError(f"The verify server of {self.name!r} is closed.")
            return EndpointFailure(FailureKind.CRASHED, error)
        if isinstance(why, EndpointFailure):  # of a model that needs another machine
            return why
        what = "could not be loaded" if self._model is None else "failed while it computed"
        return failure_of(why, f"The model of the verify server {self.name!r} {what}")

    # In the thread

    def _give_up(self, scheduler: Scheduler | None, why: Exception | None) -> Exception | None:
        """Fail everything and free the model; the next round loads it again."""
        failure = self._failure(why)
        if scheduler is not None:
            scheduler.fail_all(failure)
        self._renderer = None
        model, self._model = self._model, None
        if model is not None:
            model.close()
        return None if why is None else failure

    def _load(self) -> Scheduler:
        require_llama_cpp()
        path = resolve_model(self._source)
        model = self._open(
            path, slots=self._slots, keep_loading=lambda: not self._thread.closing, **self._numbers
        )
        try:
            self._renderer = Renderer(model, self._template)
            model.begin(self._flag)
            model.reserve()
            curve = measured_curve(
                partial(_compute, model), min(model.most_rows, model.context_tokens - _DEPTH)
            )
            model.forget()
        except BaseException:
            model.close()
            raise
        fingerprint = model_fingerprint(path, self._template)
        self._facts = VerifierFacts(
            self.name,
            model.vocabulary,
            model.context_tokens,
            self._slots,
            curve.points,
            fingerprint=fingerprint,
        )
        self._model = model
        return Scheduler(
            model,
            curve,
            self._limits,
            name=self.name,
            timer=time.perf_counter,
            fingerprint=fingerprint,
        )


def _compute(model: BatchModel, rows: int) -> None:
    """Compute so many rows behind a few tokens of the first sequence."""
    token = max(model.bos_token, 0)
    if not model.cut(0, _DEPTH):
        model.compute([Rows(0, 0, [token] * _DEPTH, _DEPTH - 1)])
    if not model.cut(0, _DEPTH):
        raise ConfigurationError(
            f"{model.path} cannot drop the last tokens of its cache, so it cannot verify drafts."
        )
    model.compute([Rows(0, _DEPTH, [token] * rows)])
    model.synchronise()


def _prefix(opening: Opening) -> Prefix:
    content = dict(opening.prefix)
    ids = content.pop("ids", None)
    kinds: dict[str, Any] = {"text": str, "tokens": int, "vocabulary": str | None, "withheld": str}
    kinds |= {"ends_in_word": bool, "asked_again": bool}
    proper = all(name in kinds and isinstance(value, kinds[name]) for name, value in content.items())
    if not proper or not (
        ids is None or (isinstance(ids, list | tuple) and all(type(one) is int for one in ids))
    ):
        raise malformed("The prefix of the opening is malformed.", "prefix")
    return Prefix(ids=None if ids is None else tuple(ids), **content)


def _refuse(mail: Mailbox, failure: Exception) -> None:
    mail.put(failure)
    mail.close()
