"""A model cut in two as one endpoint: its first layers and its head here, the layers between them on a layer server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.layers.layer_files import head_file, read_layer_file
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.rounds_run import Verifier
from disco.endpoints.speculative.speculative_attempt import SpeculativeAttempt
from disco.endpoints.split.engine_verifier import EngineVerifier
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_drafter import SplitDrafter
from disco.endpoints.split.split_facts import SplitFacts, drafter_name
from disco.endpoints.split.split_model import SplitModel
from disco.endpoints.split.split_options import SplitOptions
from disco.events import Traffic
from disco.request import Prefix, Request
from disco.speculate.messages import Opening, VerifierFacts

__all__ = ["SplitEndpoint"]

_UNSERVED_WANTS: Final = frozenset({"logp", "label_scores"})


class SplitEndpoint(Endpoint):
    """A model cut in two (`disco split cut`), in this process: what a host runs. Applications use `HostSplit`.

    The answer is written by the engine of a verify server, which runs here: tools, schemas, stop strings and sampling
    are this machine's. Its model's middle layers are elsewhere. Where the device's file has a trained adapter, drafts
    are verified in rounds, as with a verify server; otherwise, or where drafting does not pay, each token is one pass.

    Args:
        device_file: the device's part; the head's is beside it.
        server: where the middle layers are.
        options: how it reads and drafts.
        name: the endpoint's.
        slots: answers whose caches are kept at the same time.
        context_tokens, threads, batch_tokens, gpu_layers: of the device's part; see `EngineEndpoint`.

    Attributes:
        inner: the device's part, as the endpoint that it would be without drafts.
        engine: writes the answers.

    Raises:
        ConfigurationError: a number is out of range, or a package is missing.
        ModelFileError: the file is not usable, or not the device's part.
    """

    place: Literal["server"] = "server"

    def __init__(
        self,
        device_file: Path,
        server: LayerServer,
        options: SplitOptions = SplitOptions(),  # noqa: B008 - frozen
        *,
        name: str = "split",
        slots: int = 2,
        context_tokens: int | None = None,
        threads: int = 1,
        batch_tokens: int = 512,
        gpu_layers: int = -1,
    ) -> None:
        require_llama_cpp()
        self.name = name
        self._server = server
        file = read_layer_file(device_file, "device")
        head_file(file)  # a missing one is better known now than with the first answer
        self._model: SplitModel | None = None
        self._before = Traffic()  # that of models before it
        self._ended = False
        make = partial(SplitModel, server=server, name=name, chunks=options.chunks, reply=options.reply)

        def opened(path: Path, **options: Any) -> SplitModel:
            self._before, self._model = self._passed(), None
            self._model = make(path, **options)
            if self._ended:
                self._model.link.end()
            return self._model

        self.inner = EngineEndpoint(
            model=file.path,
            name=name,
            slots=slots,
            context_tokens=context_tokens,
            threads=threads,
            batch_tokens=batch_tokens,
            gpu_layers=gpu_layers,
            open_model=opened,
            passed=self._passed,
        )
        self.engine = self.inner.engine
        drafts = file.has_adapter and options.window != 0
        self._drafter = SplitDrafter(
            name=drafter_name(name),
            model=lambda: self.model,
            branches=options.branches,
            steps=options.steps,
        )
        self._pairing = Pairing(self._drafter if drafts else None)
        self._window = options.windows()
        self._always = options.always
        self._attempts: set[SpeculativeAttempt] = set()

    @property
    def model(self) -> SplitModel | None:
        """Return the model; None while it is not loaded, and once it is closed."""
        return None if self._model is None or self._model.closed else self._model

    def capabilities(self, model: str | None = None) -> Capabilities:
        can = self.inner.capabilities(model)
        # What an answer by rounds cannot do is left out.
        return Capabilities(
            continues=True,
            context_tokens=None if self.model is None else can.context_tokens,
            features=can.features,
            vocabulary=can.vocabulary,
            ready=can.ready,
            limits=True,
            waiting=can.waiting,
        )

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        attempt = SpeculativeAttempt(
            name=self.name,
            request=request,
            prefix=prefix,
            pairing=self._pairing,
            ask=self._ask,
            drafter=self._pairing.drafter,
            window=self._window,
            always=self._always,
            parallel=1,
            verifier=self._verifier,
            plain=lambda: self.inner.open(request, prefix, wants=wants),
            may_ask_rounds=wants.isdisjoint(_UNSERVED_WANTS),
            on_close=self._attempts.discard,
            prepare=self._load,
        )
        self._attempts.add(attempt)
        return attempt

    def facts(self) -> SplitFacts | None:
        """Return what is known of the layer server, the link and the device; None while no model is loaded."""
        model = self.model
        if model is None:
            return None
        return SplitFacts(
            server=model.facts,
            path=model.way,
            batch_tokens=model.batch_tokens,
            has_adapter=model.device.file.has_adapter,
            ahead_tokens=self._drafter.ahead_tokens,
            ahead_used=self._drafter.ahead_used,
        )

    @property
    def pulse(self) -> tuple[bool, int]:
        """As `EngineEndpoint.pulse`, but nothing is computed while the network is waited for, which has its limits."""
        computes, passes = self.inner.pulse
        if self._model is None:
            return computes, passes
        link = self._model.link
        return computes and not link.waits, passes + link.frames

    async def _load(self) -> None:
        if self.model is None or self._pairing.facts is None:
            await self.engine.load()
            self._pairing.learn(self.engine.facts())

    async def _ask(self) -> VerifierFacts | None:
        return self._pairing.facts

    def _verifier(self, request: Request, opening: Callable[[], Opening]) -> Verifier:
        del request
        return EngineVerifier(self.engine, opening, self._passed)

    def _passed(self) -> Traffic:
        now = Traffic() if self._model is None else self._model.link.traffic
        return Traffic(self._before.bytes_up + now.bytes_up, self._before.bytes_down + now.bytes_down)

    async def warm_up(self) -> None:
        """Load the device's part, connect, and measure the link.

        Raises:
            DiscoError: a file cannot be loaded.
            EndpointFailure: the layer server cannot be reached, or does not fit.
        """
        await self.inner.warm_up()

    async def aclose(self) -> None:
        """Close every open attempt, then free the model and end its thread. Idempotent."""
        for attempt in list(self._attempts):
            await attempt.aclose()
        await self._pairing.aclose()
        self._ended = True
        if self._model is not None:
            self._model.link.end()
        await self.inner.aclose()
