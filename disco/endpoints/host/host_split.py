"""A model cut in two as one endpoint: first layers and head in a host here, the layers between on a layer server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from disco.candidate import Reach
from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.endpoints.host.host_endpoint import HostEndpoint
from disco.endpoints.llamacpp.layers.layer_files import head_file, read_layer_file
from disco.endpoints.runtimes import require
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_facts import SplitFacts, drafter_name
from disco.endpoints.split.split_options import SplitOptions
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.request import Prefix, Request

__all__ = ["HostDrafts", "HostSplit"]


class HostSplit(Endpoint):
    """A model cut in two (`disco split cut`). Its host runs `SplitEndpoint`, and is one as `HostEndpoint` has it.

    The answer is written there: tools, schemas, stop strings and sampling are this machine's. What drafts is part of
    the same process, since it shares the first layers with what verifies.

    The prompt's tokens do not leave this machine, but states do, from which they can be read back: see
    docs/concepts/split.md. So the endpoint's place is "server", and a request that must stay here is never sent to it.

    Args:
        device_file: the device's part; the head's is beside it.
        server: where the middle layers are.
        options: how it reads and drafts.
        name: the endpoint's.
        reach: "own": the layer server is another machine of the user's; "any": another's.
        slots, context_tokens, threads, batch_tokens, gpu_layers: as for `SplitEndpoint`.

    Attributes:
        drafts: who is charged for drafts.

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
        reach: Reach = "own",
        slots: int = 2,
        context_tokens: int | None = None,
        threads: int = 1,
        batch_tokens: int = 512,
        gpu_layers: int = -1,
    ) -> None:
        require("engine")
        self.name = name
        self._reach = reach
        self._base_url = server.base_url
        # What is wrong with the files or the window is better known now than with the first answer.
        file = read_layer_file(device_file, "device")
        head_file(file)
        options.windows()
        self._weights = file.weights
        self._host = HostEndpoint(
            model=file.path,
            name=name,
            runtime="engine",
            context_tokens=context_tokens,
            threads=threads,
            batch_tokens=batch_tokens,
            gpu_layers=gpu_layers,
            slots=slots,
            split={"server": asdict(server), "options": asdict(options)},
        )
        self.drafts = HostDrafts(
            drafter_name(name), lambda: self._host.parameters if self._is_loaded else None
        )

    @property
    def reach(self) -> Reach:
        return self._reach

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of the layer server."""
        parts = urlsplit(self._base_url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def flops_per_token(self) -> float | None:
        """Two FLOPs a weight of the whole model; None where the file does not say how many there are."""
        return None if self._weights is None else 2.0 * self._weights

    @property
    def process_id(self) -> int | None:
        """The id of the host; None while there is none."""
        return self._host.process_id

    @property
    def _is_loaded(self) -> bool:
        """Whether the host runs, and has not lost its model with its link, as far as is known."""
        return self._host.host is not None and bool(self._host.facts.get("ready"))

    def capabilities(self, model: str | None = None) -> Capabilities:
        can = self._host.capabilities(model)
        # What an answer by rounds cannot do is left out.
        return Capabilities(
            continues=True,
            context_tokens=can.context_tokens if self._is_loaded else None,
            features=can.features,
            vocabulary=can.vocabulary if self._is_loaded else None,
            ready=self._is_loaded,
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
        return self._host.open(request, prefix, wants=wants)

    async def measured(self) -> SplitFacts:
        """Start the host unless it runs, and return what it knows of the layer server, the link and the device now.

        Raises:
            EndpointFailure: a file cannot be loaded, or the layer server cannot be reached or does not fit.
        """
        await self._host.introduce()
        if (found := (await self._host.ask("/host"))["split"]) is None:
            error = LocalModelError(f"Endpoint {self.name!r} has lost its layer server; ask again.")
            raise EndpointFailure(FailureKind.CRASHED, error)
        return SplitFacts.from_json(found)

    async def warm_up(self) -> None:
        """Start the host: it loads the device's part, connects, and measures the link.

        Raises:
            DiscoError: a file cannot be loaded.
            OpenAIError: the layer server cannot be reached, or does not fit.
        """
        await self._host.warm_up()

    async def aclose(self) -> None:
        """Close every open attempt, then end the host. Idempotent."""
        await self._host.aclose()


class HostDrafts(Endpoint):
    """The device's part of a split model, as the one that is charged for drafts. It answers nothing by itself.

    Args:
        name: in ledger and records.
        parameters: returns how many weights the device's part has; None while it is not loaded.
    """

    place: Literal["device"] = "device"

    def __init__(self, name: str, parameters: Callable[[], int | None]) -> None:
        self.name = name
        self._parameters = parameters

    @property
    def flops_per_token(self) -> float | None:
        """Two FLOPs a weight of the device's part; None while it is not loaded."""
        parameters = self._parameters()
        return None if parameters is None else 2.0 * parameters

    def capabilities(self, model: str | None = None) -> Capabilities:
        del model
        return Capabilities()

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        raise NotImplementedError("a part of a model answers nothing by itself")
