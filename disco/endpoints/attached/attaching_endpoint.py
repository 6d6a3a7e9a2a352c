"""A device's model that is used where a `disco serve` of this user runs it, and loaded here where none does."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from disco.candidate import PromptSize
from disco.endpoints.attached.announcement import Announcement, live_announcements
from disco.endpoints.attached.running_host import AttachedHost, HostGoneError
from disco.endpoints.contract import Attempt, Capabilities, Endpoint, Event
from disco.endpoints.drafter import Drafter, Drafting
from disco.endpoints.gguf_header import Header
from disco.events import Ended, Progress, SeamReport, SpeculationReport, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["AttachingEndpoint"]

_log = logging.getLogger("disco")

LOOK_AGAIN_S: Final = 0.5  # how long what was found in the folder is taken to be so
LEFT_ALONE_S: Final = 5.0  # a host that was gone is not tried again before, should it still be announced
# The same after several times; it doubles with each, so that a hung host costs little.
MOST_ALONE_S: Final = 300.0


class AttachingEndpoint(Endpoint):
    """The host of a running `disco serve` of this user, or the own one: an endpoint that is one of two.

    Where a live host is announced whose model fits, it answers, and nothing is loaded here. An attempt that finds the
    host gone before its first event goes on with the own model, which is loaded then. One whose host goes later fails
    as a connection does: the session goes on from the text so far, by which time this endpoint is the own model. A
    host that comes later is used by the next attempt.

    Args:
        own: the model that is loaded here if need be. The endpoint closes it.
        fits: whether an announced host may stand for the own one. May be slow when it is first called.
        folder: of the announcements.
        clock: s.

    Mutable: `_found` (the host that was announced at `_looked_at`), `_hosts` (those that were used, by key), `_left`
    (by key of a host that was gone: until when it is left alone, and for how long).
    """

    def __init__(
        self,
        own: Endpoint,
        *,
        fits: Callable[[Announcement], bool],
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = own.name
        self.place: Literal["device", "server"] = "device"
        self.own = own
        self._fits = fits
        self._folder = folder
        self._clock = clock
        self._found: AttachedHost | None = None
        self._looked_at: float | None = None
        self._hosts: dict[str, AttachedHost] = {}
        self._left: dict[str, tuple[float, float]] = {}
        self._attempts: weakref.WeakSet[_EitherAttempt] = weakref.WeakSet()

    @property
    def served(self) -> Announcement | None:
        """The host that the next attempt will use; None: the own model."""
        host = self._host
        return None if host is None else host.announcement

    @property
    def current(self) -> Endpoint:
        """What answers the next attempt."""
        return self._host or self.own

    @property
    def _host(self) -> AttachedHost | None:
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            live = live_announcements(self._folder)
            self._left = {one.key: self._left[one.key] for one in live if one.key in self._left}
            may = (one for one in live if self._left.get(one.key, (now, 0.0))[0] <= now)
            served = next((one for one in may if self._fits(one)), None)
            if (served is None) != (self._found is None):
                _log.info(
                    "Endpoint %r: %s.",
                    self.name,
                    "the model is loaded here" if served is None else "a running disco serve has the model",
                )
            self._found = None if served is None else self._host_of(served)
        return self._found

    def _host_of(self, served: Announcement) -> AttachedHost:
        host = self._hosts.get(served.key)
        if host is None:
            host = AttachedHost(served, name=self.name, on_answer=lambda: self._left.pop(served.key, None))
            self._hosts[served.key] = host
        return host

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
        """The id of the process that holds the model, where it has one."""
        pid: int | None = getattr(self.current, "process_id", None)
        return pid

    def capabilities(self, model: str | None = None) -> Capabilities:
        return self.current.capabilities(model)

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        host = self._host
        if host is None:
            return self.own.open(request, prefix, wants=wants)
        attempt = _EitherAttempt(
            # What is saved on disk is another program's.
            host.open(replace(request, may_be_saved=False), prefix, wants=wants),
            own=lambda newest: self.own.open(request, newest, wants=wants),
            prefix=prefix,
            host=host,
            on_gone=lambda: self._leave(host),
        )
        self._attempts.add(attempt)
        return attempt

    def drafter(self) -> Drafter | None:
        own = self.own.drafter()
        return None if own is None else _EitherDrafter(self, own)

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        return await self.current.prompt_size(request, within_s)

    async def look(self) -> None:
        """Close what is left of hosts that have ended."""
        used = {attempt.host for attempt in self._attempts if not attempt.over}
        for key, host in list(self._hosts.items()):
            if host.host is None and host not in used:
                del self._hosts[key]
                await host.aclose()
        await self.own.look()

    async def warm_up(self) -> None:
        host = self._host
        if host is not None:
            try:
                await host.introduce()
            except HostGoneError:
                self._leave(host)
            else:
                return
        await self.own.warm_up()

    async def aclose(self) -> None:
        for attempt in tuple(self._attempts):
            await attempt.aclose()
        while self._hosts:
            await self._hosts.popitem()[1].aclose()
        self._found = self._looked_at = None
        await self.own.aclose()

    def _leave(self, host: AttachedHost) -> None:
        """Use the own model from now on, or another host, until this one may be tried again."""
        key = host.announcement.key
        _, before_s = self._left.get(key, (0.0, 0.0))
        left_s = min(MOST_ALONE_S, 2.0 * before_s or LEFT_ALONE_S)
        self._left[key] = self._clock() + left_s, left_s
        self._looked_at = None


class _EitherAttempt(Attempt):
    """An attempt at a host that becomes one of the own model if the host does not begin it.

    What was asked of it by then (to park, to follow a text, to pause) is asked of the own one, too.

    Mutable: `_inner`, `_prefix`, `_mode`, `_is_paused`, `_spoke` (whether it has yielded anything), `_closed`,
    `over`.

    Attributes:
        host: where it began.
        over: it has ended.
    """

    def __init__(
        self,
        attached: Attempt,
        *,
        own: Callable[[Prefix], Attempt],
        prefix: Prefix,
        host: AttachedHost,
        on_gone: Callable[[], object],
    ) -> None:
        self.host = host
        self.over = False
        self._inner = attached
        self._own = own
        self._prefix = prefix
        self._on_gone = on_gone
        self._spoke = False
        self._closed = False
        self._mode: Literal["write", "park", "follow"] = "write"
        self._is_paused = False

    async def __anext__(self) -> Event:
        try:
            event = await self._inner.__anext__()
        except HostGoneError:
            self._on_gone()
            if self._spoke or self._closed:
                self.over = True
                raise
            event = await self._begin_own()
        except BaseException:
            self.over = True
            raise
        self._spoke = True
        self.over = isinstance(event, Ended)
        return event

    async def _begin_own(self) -> Event:
        await self._inner.aclose()
        if self._closed:
            raise StopAsyncIteration
        self._inner = own = self._own(self._prefix)
        if self._mode == "park":
            own.park()
        elif self._mode == "follow":
            own.follow()
        event = await own.__anext__()
        if self._is_paused:
            own.pause()
        return event

    async def aclose(self) -> None:
        self._closed = self.over = True
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
        return self._turn("park", self._inner.park())

    def follow(self) -> bool:
        return self._turn("follow", self._inner.follow())

    def _turn(self, mode: Literal["park", "follow"], done: bool) -> bool:  # noqa: FBT001 - of this class only
        if done:
            self._mode, self._is_paused = mode, False
        return done

    def extend(self, prefix: Prefix) -> bool:
        done = self._inner.extend(prefix)
        if done:
            self._prefix = prefix
        return done

    def pause(self) -> bool:
        done = self._inner.pause()
        self._is_paused = self._is_paused or done
        return done

    def resume(self) -> bool:
        self._is_paused = False
        return self._inner.resume()


class _EitherDrafter(Drafter):
    """Drafts with the model that answers: each drafting with that of its beginning."""

    def __init__(self, endpoint: AttachingEndpoint, own: Drafter) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._own = own

    @property
    def _current(self) -> Drafter:
        return self._endpoint.current.drafter() or self._own

    @property
    def vocabulary(self) -> str | None:
        return self._current.vocabulary

    @property
    def ready(self) -> bool:
        return self._current.ready

    async def warm_up(self) -> None:
        await self._endpoint.warm_up()

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> Drafting:
        return self._current.open(seed=seed, sampling=sampling)
