"""A loaded model that writes several answers at once: its thread, and its interface for an event loop."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from anyio import to_thread

from disco.endpoints.llamacpp.batching.answer import Answer, Asked, Order
from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.model_fingerprint import model_fingerprint
from disco.endpoints.llamacpp.batching.model_thread import ModelThread
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.scheduler import Scheduler
from disco.endpoints.llamacpp.batching.slots import Slots
from disco.endpoints.llamacpp.batching.verify_curve import MEASURED_ROWS, VerifyCurve, measured_times
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, resolve_model, short_name
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.model.stop_flag import Aborted, StopFlag
from disco.endpoints.llamacpp.output.generation import Generation
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.prompting.template_messages import plain_messages
from disco.endpoints.llamacpp.refusals import too_busy
from disco.endpoints.llamacpp.request_params import Sampling, needs_compiling, read_params
from disco.endpoints.llamacpp.runtime.job import Job, failure_of
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.llamacpp.saving.idle_saving import LAST_S, IdleSaving
from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper, keeper_of
from disco.endpoints.llamacpp.saving.slot_cache import SlotCache
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import (
    ConfigurationError,
    EndpointFailure,
    FailureKind,
    LocalModelError,
    NoEndpointError,
)
from disco.notices import warn
from disco.request import Prefix, Request
from disco.request_checks import checked_prefix
from disco.speculate.messages import Opening, Round, VerifierFacts

__all__ = ["Engine", "Limits"]

_DEPTH: Final = 16  # at which the curve is measured
_SLOW_S: Final = 0.05  # of a model that takes so long for a row, fewer batches are measured
_FEW_ROWS: Final = (1, 2, 5)
_EXIT_S: Final = LAST_S + 5.0  # how long the interpreter's exit waits for an engine, its last saving included


class Engine:
    """One model, several slots, and a thread that computes. The model is loaded by whoever first needs it.

    Every token is the model's own choice, by the request's sampling parameters and keyed noise. What is drafted, in
    which windows it comes, and what other answers do, changes when tokens come and not which.

    A load goes on when those who asked for it have left; only `aclose` ends it. Where it fails, all who wait are told,
    and the next one has it tried again. The same holds where the model fails while it computes.

    Mutable: `_unbegun` (jobs that wait for the thread) under `_lock`; `load_s`, `loading_since`, `path`, `renderer`,
    `_model` and `_facts`, all of the thread.

    Args:
        model: as `EngineEndpoint` takes it.
        name: in messages and facts; the model's name by default.
        slots: answers whose caches are kept at the same time, each of up to `context_tokens`. None: as many as
            `context_size` finds room for.
        context_tokens: prompt and answer together; by default what the model was trained with, as far as the free
            memory allows (`context_size`).
        threads, batch_tokens, gpu_layers, chat_template, max_queue, prompt_cache: see `EngineEndpoint`.
        limits: of time and number.
        open_model: opens the model's file; takes what `SequenceModel` takes.
        clock: s; where idle times are told from.

    Raises:
        ConfigurationError: a number is out of range.

    Attributes:
        load_s: how long it took to load the model that is loaded, and to measure it, s; None before.
        loading_since: when the model began to load, by the clock; None: it does not load.
        path: of the model's file, once that was found to be whole.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        name: str | None = None,
        slots: int | None = None,
        context_tokens: int | None = None,
        threads: int = 1,
        batch_tokens: int = 64,
        gpu_layers: int = -1,
        chat_template: str | None = None,
        max_queue: int = 256,
        prompt_cache: PromptCache | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        open_model: Callable[..., BatchModel] = SequenceModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        numbers = {"slots": slots, "context_tokens": context_tokens, "threads": threads}
        for option, value in (numbers | {"batch_tokens": batch_tokens, "max_queue": max_queue}).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        if slots is not None and slots > 256:  # llama.cpp's own limit
            raise ConfigurationError(f"slots must be at most 256, not {slots}.")
        self.name = name if name is not None else short_name(model)
        self.load_s: float | None = None
        self.loading_since: float | None = None
        self.path: Path | None = None
        self._source = model
        self._template = chat_template
        self._slots = slots
        self._numbers: dict[str, Any] = {
            "context_tokens": context_tokens,
            "threads": threads,
            "batch_tokens": batch_tokens,
            "gpu_layers": gpu_layers,
        }
        self._max_queue = max_queue
        self._prompt_cache = prompt_cache
        self._limits = limits
        self._open = open_model
        self._clock = clock
        self._lock = threading.Lock()
        self._unbegun: dict[Job, None] = {}
        self._thread: ModelThread[Scheduler] = ModelThread(
            f"disco-{self.name}", self._load, self._give_up, clock
        )
        self._model: BatchModel | None = None
        self._flag = StopFlag()
        self._renderer: Renderer | None = None
        self._facts = VerifierFacts(self.name, None, context_tokens or 0, slots or 1)
        _close_at_exit(self)

    # In the event loop

    @property
    def model(self) -> BatchModel | None:
        """The loaded model; None while there is none. Other threads may only read plain attributes."""
        return None if self._thread.scheduler is None else self._model

    def renderer(self) -> Renderer:
        """Return the loaded model's chat template."""
        assert self._renderer is not None
        return self._renderer

    @property
    def waiting(self) -> int:
        """How many jobs a new job would wait for."""
        scheduler = self._thread.scheduler
        unbegun = sum(not job.is_brief for job in tuple(self._unbegun))
        return unbegun + (0 if scheduler is None else scheduler.ahead(self._clock()))

    @property
    def pulse(self) -> tuple[bool, int]:
        """Whether a pass is being computed, and how many were: from any thread, to see whether it comes on."""
        scheduler = self._thread.scheduler
        return (False, 0) if scheduler is None else (scheduler.is_computing, scheduler.passes)

    def occupied_beside(self, job: Job | None) -> bool:
        """Return whether others wait for a slot, or the job would have to wait for one."""
        scheduler = self._thread.scheduler
        if scheduler is None:
            return bool(self._unbegun)
        others = scheduler.queued or any(not one.is_brief for one in tuple(self._unbegun) if one is not job)
        return bool(others) or (job is not None and scheduler.lacks_slot(job))

    def submit(self, job: Job) -> None:
        """Have a job done.

        Raises:
            EndpointFailure: RATE_LIMIT when too many wait, CRASHED when the engine is closed.
        """
        scheduler = self._thread.scheduler
        with self._lock:
            if self._thread.closing:
                raise self._failure(None)
            queued = len(self._unbegun) + (0 if scheduler is None else scheduler.queued)
            if queued >= self._max_queue:
                raise too_busy(
                    f"Endpoint {self.name!r} is too busy: {queued} requests wait for its model. "
                    "Ask again later, or send fewer at a time."
                )
            self._unbegun[job] = None
        self._submit(partial(self._begin, job), partial(self._refuse, job))

    def cancel(self, job: Job) -> None:
        """Stop a job; one that has not begun never uses the model. Its mailbox is closed once the job has stopped."""
        job.flag.set()
        with self._lock:
            waits = job in self._unbegun
            self._unbegun.pop(job, None)
        if waits:
            job.mail.close()
            return
        scheduler = self._thread.scheduler
        if scheduler is None:  # then the job has been failed with its model
            return
        if scheduler.computes_only(job):
            self._flag.set()
        self._submit(lambda one: one.cancel(job, self._clock()), lambda _failure: None)

    def park(self, job: Job) -> None:
        """Ask a job to end where it can without losing what it has computed."""
        job.park = True
        self.pause(job, paused=False)

    def pause(self, job: Job, *, paused: bool = True) -> None:
        """Ask a job to give the model up before its next token, or to go on."""
        job.paused = paused
        self.tell(job)

    def tell(self, job: Job) -> None:
        """Let a job see at once what has changed for it: its flags, or its orders."""
        if self._thread.scheduler is not None:
            self._submit(lambda scheduler: scheduler.tell(job), lambda _failure: None)

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
        self._submit(lambda _scheduler: mail.close(), lambda failure: _tell(mail, failure))
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
            lambda failure: _tell(mail, failure),
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
        self._close()
        await to_thread.run_sync(self._thread.join, abandon_on_cancel=True)

    def close_now(self, timeout_s: float) -> None:
        """Do the same as `aclose`, outside any event loop: at the interpreter's exit."""
        self._close()
        self._thread.join(timeout_s)

    def _close(self) -> None:
        self._thread.close()
        self._flag.set()
        if (scheduler := self._thread.scheduler) is not None:
            scheduler.stop()

    async def _order(self, opening: Opening) -> Order:
        try:
            prefix = checked_prefix(opening.prefix, "opening.prefix")
        except NoEndpointError as error:
            raise EndpointFailure(FailureKind.BAD_REQUEST, error) from None
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
        return Generation(
            answer, messages, prefix, sampling, renderer=self.renderer, name=self.name, keyed=answer.keyed
        )

    def _submit(self, order: Callable[[Scheduler], None], refuse: Callable[[Exception], None]) -> None:
        self._thread.submit(order, lambda why: refuse(self._failure(why)))

    def _failure(self, why: Exception | None) -> EndpointFailure:
        """Return the failure of the answers and rounds of a model that is lost; None: the engine was closed."""
        if why is None:
            error = LocalModelError(f"Endpoint {self.name!r} is closed; make a new one.")
            return EndpointFailure(FailureKind.CRASHED, error)
        if isinstance(why, EndpointFailure):  # of a model that needs another machine
            return why
        what = "could not be loaded" if self._model is None else "failed while it worked"
        return failure_of(why, f"The model of endpoint {self.name!r} {what}")

    def _refuse(self, job: Job, failure: Exception) -> None:
        with self._lock:
            if job not in self._unbegun:
                return
            del self._unbegun[job]
        job.mail.put(failure)
        job.mail.close()

    # In the thread

    def _begin(self, job: Job, scheduler: Scheduler) -> None:
        with self._lock:
            if job not in self._unbegun:
                return
            del self._unbegun[job]
        scheduler.begin(job, self._clock())

    def _give_up(self, scheduler: Scheduler | None, why: Exception | None) -> Exception | None:
        """Fail everything and free the model; the next one who needs it has it loaded again."""
        failure = self._failure(why)
        if scheduler is not None:
            scheduler.fail_all(failure)
            if why is None and scheduler.saving is not None:
                scheduler.saving.last()
        self._renderer = None
        model, self._model = self._model, None
        if model is not None:
            model.close()
        return None if why is None else failure

    def _load(self) -> Scheduler:
        self.loading_since = self._clock()
        try:
            scheduler = self._loaded()
            self.load_s = self._clock() - self.loading_since
        finally:
            self.loading_since = None
        return scheduler

    def _loaded(self) -> Scheduler:
        require_llama_cpp()
        path = self.path = resolve_model(self._source)
        model = self._open(
            path, slots=self._slots, keep_loading=lambda: not self._thread.closing, **self._numbers
        )

        def check() -> None:
            if self._thread.closing:
                raise Aborted

        try:
            self._renderer = Renderer(model, self._template, check)
            model.begin(self._flag)
            curve = _measured(model)
            model.forget()
            model.keeper = keeper = keeper_of(model, self._prompt_cache, warn)
        except BaseException:
            model.close()
            raise
        fingerprint = model_fingerprint(path, self._template, model.loras)
        self._facts = VerifierFacts(
            self.name,
            model.vocabulary,
            model.context_tokens,
            model.slots,
            curve.points if model.cuts else (),
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
            saving=None if keeper is None else partial(self._saving, model, keeper),
            stopped=self._is_stopped,
        )

    def _saving(self, model: BatchModel, keeper: PromptKeeper, slots: Slots) -> IdleSaving:
        caches = [SlotCache(model, slot) for slot in slots.all]
        return IdleSaving(keeper, lambda: caches, lambda: self._thread.has_orders or self._thread.closing)

    def _is_stopped(self) -> bool:
        """Return whether the engine is being closed; otherwise let the model compute again."""
        if self._thread.closing:
            return True
        self._flag.clear()
        return False


def _measured(model: BatchModel) -> VerifyCurve:
    """Return what batches cost; note whether the model can drop the end of a cache."""
    most = min(model.most_rows, model.context_tokens - _DEPTH)
    began_at = time.perf_counter()
    _compute(model, 1)
    model.cuts = model.cut(0, _DEPTH)
    if not model.cuts:
        return VerifyCurve([(1, 1.0), (2, 2.0)], most)  # no rows share a pass
    sizes = MEASURED_ROWS if time.perf_counter() - began_at < _SLOW_S * _DEPTH else _FEW_ROWS
    # A curve that was measured on a busy machine would keep answers apart for as long as the model is loaded.
    return VerifyCurve(measured_times(partial(_compute, model), most, sizes=sizes, repeats=4), most)


def _compute(model: BatchModel, rows: int) -> None:
    """Compute so many rows behind a few tokens of the first sequence."""
    token = max(model.bos_token, 0)
    if not model.cut(0, _DEPTH):
        model.compute([Rows(0, 0, [token] * _DEPTH, _DEPTH - 1)])
    model.compute([Rows(0, _DEPTH, [token] * rows)])
    model.synchronise()


def _tell(mail: Mailbox, failure: Exception) -> None:
    mail.put(failure)
    mail.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_at_exit(engine: Engine) -> None:
    # A thread inside llama.cpp while the interpreter is taken down can crash the process.
    if not _engines:
        atexit.register(_close_all)
    _engines.add(engine)


def _close_all() -> None:
    for engine in list(_engines):
        with suppress(Exception):
            engine.close_now(_EXIT_S)
