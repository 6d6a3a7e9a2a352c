"""A device's model that is used where a `disco serve` of this user runs it, and loaded here where none does."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from disco.candidate import PromptSize
from disco.endpoints.attached.announcement import Announcement, ServedModel, live_announcements
from disco.endpoints.attached.proven_connection import ProvenConnection, ServeGoneError
from disco.endpoints.attached.served_attempt import OrderRefusedError, ServedAttempt
from disco.endpoints.contract import Attempt, Capabilities, Endpoint, Event
from disco.endpoints.drafter import Drafter
from disco.endpoints.gguf_header import Header
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.events import Progress, SeamReport, SpeculationReport, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["AttachingEndpoint"]

_log = logging.getLogger("disco")

LOOK_AGAIN_S: Final = 0.5  # how long what was found in the folder is taken to be so
LEFT_ALONE_S: Final = 5.0  # a server that was gone is not tried again before, should it still be announced
MOST_ALONE_S: Final = (
    300.0  # the same after several times; it doubles with each, so that a hung server costs little
)


class AttachingEndpoint(Endpoint):
    """The model that a `disco serve` of this user runs, or the own one: an endpoint that is one of two.

    Where a live server is announced whose model fits, its model answers, and nothing is loaded here. An attempt that
    finds the server gone before its first event goes on with the own model, which is loaded then; so does one whose
    request that server cannot take. One whose server goes later fails as a connection does: the session goes on from
    the text so far, by which time this endpoint is the own model. A server that comes later is used by the next
    attempt.

    What is lost while attached: parking, following, pausing, counting a prompt's tokens (`prompt_size`).

    Args:
        own: the model that is loaded here if need be. The endpoint closes it.
        fits: whether a served model may stand for the own one. May be slow when it is first called.
        folder: of the announcements.
        clock: s.

    Mutable: `_found` (what was announced at `_looked_at`), `_left` (by key of a server that was gone: until when it is
    left alone, and for how long).
    """

    def __init__(
        self,
        own: Endpoint,
        *,
        fits: Callable[[ServedModel], bool],
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = own.name
        self.place: Literal["device", "server"] = "device"
        self.own = own
        self._fits = fits
        self._folder = folder
        self._clock = clock
        self._found: Announcement | None = None
        self._looked_at: float | None = None
        self._left: dict[str, tuple[float, float]] = {}
        self._attempts: weakref.WeakSet[_EitherAttempt] = weakref.WeakSet()

    @property
    def served(self) -> Announcement | None:
        """The server that the next attempt will use; None: the own model."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            live = live_announcements(self._folder)
            self._left = {one.key: self._left[one.key] for one in live if one.key in self._left}
            may = (one for one in live if self._left.get(one.key, (now, 0.0))[0] <= now)
            found = next((one for one in may if self._fits(one.model)), None)
            if (found is None) != (self._found is None):
                _log.info(
                    "Endpoint %r: %s.",
                    self.name,
                    "the model is loaded here" if found is None else "a running disco serve has the model",
                )
            self._found = found
        return self._found

    @property
    def address(self) -> str | None:
        """Tells statistics and breakers of the served model from those of the own one."""
        return None if self.served is None else "attached"

    @property
    def profile_name(self) -> str:
        """The name under which `disco profile` stores this model's profile."""
        return str(getattr(self.own, "profile_name", self.own.name))

    @property
    def state_name(self) -> str | None:
        """The name of the model in the state file, where the served one is another than the own one."""
        own: str | None = getattr(self.own, "state_name", None)
        return own if own is None or self.served is None else f"{own}, attached"

    @property
    def parameters(self) -> int | None:
        """The number of the model's weights; None where it is not known."""
        served = self.served
        here: int | None = getattr(self.own, "parameters", None)
        return here if served is None or here is not None else served.model.parameters

    @property
    def header(self) -> Header | None:
        """The header of the own model's file, which is the served one's; None where there is no such file here."""
        found: Header | None = getattr(self.own, "header", None)
        return found

    @property
    def flops_per_token(self) -> float | None:
        """Two for each weight of a served model whose file is not here; None otherwise: the header says more."""
        served = self.served
        weights = None if served is None or self.header is not None else served.model.parameters
        return None if weights is None else 2.0 * weights

    @property
    def process_id(self) -> int | None:
        """The id of the process that holds the own model, where it has one."""
        pid: int | None = getattr(self.own, "process_id", None)
        return pid

    def capabilities(self, model: str | None = None) -> Capabilities:
        served = self.served
        if served is None:
            return self.own.capabilities(model)
        its = served.model
        return Capabilities(
            continues=True,
            context_tokens=its.context_tokens,
            features=frozenset(its.features),
            vocabulary=its.vocabulary,
            announces=True,
            logp=its.logp,
            label_scores=its.label_scores,
            progress=its.progress,
        )

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        served = self.served

        def own() -> Attempt:
            return self.own.open(request, prefix, wants=wants)

        if served is None:
            return own()
        attempt = _EitherAttempt(
            ServedAttempt(served, request, prefix, wants, name=self.name),
            own=own,
            name=self.name,
            on_first=lambda: self._left.pop(served.key, None),
            on_gone=lambda: self._leave(served),
        )
        self._attempts.add(attempt)
        return attempt

    def drafter(self) -> Drafter | None:
        return self.own.drafter()

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        return None if self.served is not None else await self.own.prompt_size(request, within_s)

    async def warm_up(self) -> None:
        served = self.served
        if served is not None:
            try:
                connection = await ProvenConnection.to(served)
            except ServeGoneError:
                self._leave(served)
            else:
                await connection.aclose()
                return
        await self.own.warm_up()

    async def aclose(self) -> None:
        for attempt in tuple(self._attempts):
            await attempt.aclose()
        await self.own.aclose()

    def _leave(self, served: Announcement) -> None:
        """Use the own model from now on, or another server, until this one may be tried again."""
        _, before_s = self._left.get(served.key, (0.0, 0.0))
        left_s = min(MOST_ALONE_S, 2.0 * before_s or LEFT_ALONE_S)
        self._left[served.key] = self._clock() + left_s, left_s
        self._looked_at = None


class _EitherAttempt(Attempt):
    """An attempt of the served model that becomes one of the own model if the server does not begin it.

    Mutable: `_inner`, `_spoke` (whether it has yielded anything), `_closed`.
    """

    def __init__(
        self,
        served: ServedAttempt,
        *,
        own: Callable[[], Attempt],
        name: str,
        on_first: Callable[[], object],
        on_gone: Callable[[], object],
    ) -> None:
        self._inner: Attempt = served
        self._own = own
        self._name = name
        self._on_first = on_first
        self._on_gone = on_gone
        self._spoke = False
        self._closed = False

    async def __anext__(self) -> Event:
        try:
            event = await self._inner.__anext__()
        except ServeGoneError as gone:
            self._on_gone()
            if self._spoke:
                message = f"Endpoint {self._name!r}: the `disco serve` that ran its model has gone ({gone})."
                raise EndpointFailure(
                    FailureKind.CONNECTION, LocalModelError(message), retry_after_s=0.0, may_retry=True
                ) from gone
            event = await self._begin_own()
        except OrderRefusedError:
            event = await self._begin_own()
        if not self._spoke and isinstance(self._inner, ServedAttempt):
            self._on_first()
        self._spoke = True
        return event

    async def _begin_own(self) -> Event:
        if self._closed:
            raise StopAsyncIteration
        self._inner = self._own()
        return await self._inner.__anext__()

    async def aclose(self) -> None:
        self._closed = True
        await self._inner.aclose()

    @property
    def usage(self) -> Usage:
        return self._inner.usage

    @property
    def traffic(self) -> Traffic:
        return self._inner.traffic

    @property
    def seam(self) -> SeamReport | None:
        return self._inner.seam

    @property
    def progress(self) -> Progress | None:
        return self._inner.progress

    @property
    def speculation(self) -> SpeculationReport | None:
        return self._inner.speculation

    def park(self) -> bool:
        return self._inner.park()

    def follow(self) -> bool:
        return self._inner.follow()

    def extend(self, prefix: Prefix) -> bool:
        return self._inner.extend(prefix)

    def pause(self) -> bool:
        return self._inner.pause()

    def resume(self) -> bool:
        return self._inner.resume()
