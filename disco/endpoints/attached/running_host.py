"""The host that another program of this user has started, in the place of one that this program would start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx2

from disco.endpoints.attached.announcement import Announcement
from disco.endpoints.host.host_endpoint import HostEndpoint
from disco.endpoints.host.host_process import Host, HostSettings, Serving
from disco.endpoints.host.socket_transport import SocketTransport
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["AttachedHost", "HostGoneError", "RunningHost"]

PROOF_S: Final = 2.0  # a host that takes longer to say that it lives is not asked for an answer


class HostGoneError(EndpointFailure):
    """The host is gone, or hangs. The next attempt may begin at once: another host, or the own one, is there."""

    def __init__(self, name: str) -> None:
        error = LocalModelError(f"Endpoint {name!r}: the `disco serve` that ran its model has gone.")
        super().__init__(FailureKind.CONNECTION, error, retry_after_s=0.0, may_retry=True)


class RunningHost(Host):
    """An announced host, as `HostEndpoint` uses one. It is neither started nor ended here.

    Args:
        announcement: says where it is.
        name: the endpoint's, for messages.
        on_answer: called when it has written an answer.
    """

    def __init__(
        self, announcement: Announcement, *, name: str, on_answer: Callable[[], object] = lambda: None
    ) -> None:
        self._announcement = announcement
        self._name = name
        self._on_answer = on_answer
        model, socket, port = announcement.model, announcement.socket, announcement.port
        self._serving = Serving(
            f"http://127.0.0.1:{port}/v1" if socket is None else "http://localhost/v1",
            socket,
            announcement.key,
            announcement.pid,
            HostSettings(
                path=model.path,
                alias=model.name,
                context_tokens=model.context_tokens,
                threads=model.threads,
                batch_tokens=model.batch_tokens,
                slots=model.slots,
            ),
            announcement.load_s,
        )

    @property
    def current(self) -> Serving | None:
        """The host; None when its process has ended."""
        return self._serving if self._announcement.is_live else None

    @property
    def loading_since(self) -> float | None:
        """None: it has loaded its model."""
        return None

    @property
    def pid(self) -> int | None:
        """The id of its process."""
        return self._serving.pid

    async def serving(self) -> Serving:
        """Return the host, which has just said that it lives.

        Raises:
            HostGoneError: it is gone, or has said nothing for `PROOF_S`.
        """
        if self.current is None:
            raise self.lost()
        transport = SocketTransport()
        transport.connect_to(self._serving.socket)
        root = self._serving.base_url.removesuffix("/v1")
        try:
            async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=PROOF_S) as client:
                lives = (await client.get(f"{root}/health")).is_success
        except httpx2.HTTPError as error:
            raise self.lost() from error
        if not lives:
            raise self.lost()
        return self._serving

    def answered(self) -> None:
        """See `HostProcess.answered`."""
        self._on_answer()

    def lost(self) -> HostGoneError:
        """See `HostProcess.lost`."""
        return HostGoneError(self._name)

    def hangs(self, serving: Serving) -> None:
        """Do nothing, as in `aclose`: the next attempt finds out, and leaves it alone."""

    async def aclose(self) -> None:
        """Do nothing: it belongs to another program."""


class AttachedHost(HostEndpoint):
    """The endpoint over one announced host.

    Args:
        announcement: says where it is, and what it runs.
        name: the endpoint's.
        on_answer: called when it has written an answer.
    """

    def __init__(self, announcement: Announcement, *, name: str, on_answer: Callable[[], object]) -> None:
        model = announcement.model
        super().__init__(
            model=model.path,
            name=name,
            runtime=announcement.program,
            context_tokens=model.context_tokens,
            threads=model.threads,
            batch_tokens=model.batch_tokens,
            slots=model.slots,
        )
        self.model = model.name  # which is not always the file's name
        self.announcement = announcement
        self._process = RunningHost(announcement, name=name, on_answer=on_answer)
        if self._is_engine:  # until it has told more
            self.facts = {
                name: getattr(model, name) for name in ("context_tokens", "vocabulary", "parameters", "slots")
            }

    def vocabulary(self, model: str | None = None) -> str | None:
        return super().vocabulary(model) if self._is_engine else self.announcement.model.vocabulary

    async def introduce(self) -> None:
        """Look whether the host is there, and what it is.

        Raises:
            HostGoneError: it is not, or something else answers.
        """
        try:
            await super().introduce()
        except HostGoneError:
            raise
        except EndpointFailure as failure:
            raise self._process.lost() from failure
        if self._is_engine and self.facts.get("kind") != "engine":
            self._known = None
            raise self._process.lost()
