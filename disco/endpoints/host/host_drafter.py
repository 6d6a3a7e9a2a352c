"""The engine in a host process as a drafter."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.event_coding import usage_of
from disco.endpoints.kept_line import KeptLine
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.events import Progress, Usage

if TYPE_CHECKING:
    from disco.endpoints.host.host_endpoint import HostEndpoint

__all__ = ["HostDrafter"]

_CLOSE_S: Final = 10.0


class HostDrafter(Drafter):
    """Drafts with the model of an endpoint; see `Drafter`.

    Args:
        endpoint: has the host.
        tasks: read what the host says of a drafting.
    """

    def __init__(self, endpoint: HostEndpoint, tasks: BackgroundTasks) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._tasks = tasks

    @property
    def vocabulary(self) -> str | None:
        return self._endpoint.vocabulary()

    @property
    def ready(self) -> bool:
        return self._endpoint.capabilities().ready

    async def warm_up(self) -> None:
        await self._endpoint.warm_up()

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> HostDrafting:
        return HostDrafting(self._endpoint, self._tasks, seed, sampling)


class HostDrafting(Drafting):
    """One answer's drafts.

    A request that stays open while the drafting lives brings what the host says of it, and ends it when it is closed.
    Orders go by requests of their own.

    Mutable: `_scope` (of that request; None before it), `_is_read`, `_ended` (why it drafts no more), `_over` (that
    request has ended), `_busy`, `_progress`, `_used`, `_asked` (number of the newest order), `_line` (the
    connection of orders, where it is kept).
    """

    def __init__(
        self, endpoint: HostEndpoint, tasks: BackgroundTasks, seed: int, sampling: Mapping[str, Any]
    ) -> None:
        self._endpoint = endpoint
        self._tasks = tasks
        self._seed = seed
        self._sampling = sampling
        self._key = secrets.token_hex(16)
        self._scope: anyio.CancelScope | None = None
        self._is_read = anyio.Event()
        self._over = anyio.Event()
        self._ended: EndpointFailure | None = None
        self._busy = False
        self._progress: Progress | None = None
        self._used = Usage()
        self._asked = -1
        self._line: KeptLine | None = None

    async def read(self, prompt_ids: Sequence[int]) -> None:
        if self._scope is not None or self._ended is not None:
            raise self._ended or _misused("A drafting reads one prompt.")
        self._scope = anyio.CancelScope()
        try:
            await self._endpoint.introduce()
            body = {
                "id": self._key,
                "seed": self._seed,
                "sampling": dict(self._sampling),
                "prompt_ids": list(prompt_ids),
            }
            json.dumps(body)
            await self._tasks.start(self._listen, body)
            await self._is_read.wait()
            if self._ended is not None:
                raise self._ended
        except BaseException as error:
            self._leave(error)
            raise

    async def _listen(self, body: Mapping[str, Any]) -> None:
        assert self._scope is not None
        try:
            with self._scope:
                async with aclosing(self._endpoint.events("/drafts", body)) as events:
                    async for event in events:
                        self._note(event)
                self._end(_misused("The drafting was closed."))
        except EndpointFailure as failure:
            self._end(failure)
        finally:
            self._end(_misused("The drafting was closed."))
            self._over.set()

    def _note(self, event: Mapping[str, Any]) -> None:
        self._busy = bool(event.get("busy", self._busy))
        if (told := event.get("progress")) is not None:
            self._progress = Progress(*told)
        if (used := event.get("used")) is not None:
            self._used = usage_of(used)
        if event.get("read"):
            if (seen := self._progress) is not None:  # it was looked at now and then
                self._progress = Progress(seen.tokens_total, seen.tokens_total, seen.prefill_tps)
            self._is_read.set()

    def _end(self, why: EndpointFailure) -> None:
        if self._ended is None:
            self._ended = why
        self._is_read.set()

    async def draft(self, order: DraftOrder) -> Drafted:
        if self._ended is not None:
            raise self._ended
        if not self._is_read.is_set():
            raise _misused("A drafting reads the prompt first.")
        if order.number <= self._asked:
            raise _misused("An order must have a higher number than those before it.")
        self._asked = order.number
        asked = {
            "number": order.number,
            "keep": order.keep,
            "append": list(order.append),
            "count": order.count,
            "stop_below": order.stop_below,
        }
        try:
            told = await self._ask(json.dumps(asked).encode("ascii"))
        except EndpointFailure as failure:
            self._leave(failure)
            raise
        self._note(told)
        return Drafted(told["number"], tuple(told["ids"]), told["took_s"], told["read_tokens"])

    async def _ask(self, order: bytes) -> Any:
        """Send an order on the connection of the one before, and return the reply."""
        line, self._line = self._line, None
        if line is not None:
            content = None
            try:
                content = await line.ask(order)
            finally:
                if content is None:
                    await line.aclose()
                else:
                    self._line = line
            if content is not None:
                return json.loads(content)
        told, self._line = await self._endpoint.ask_and_keep(f"/drafts/{self._key}", order)
        return told

    def stop(self) -> None:
        if self._ended is None and self._is_read.is_set() and self._tasks.is_open:
            self._tasks.start_soon(self._break_off)

    async def _break_off(self) -> None:
        with suppress(EndpointFailure):
            await self._endpoint.ask(f"/drafts/{self._key}", {"do": "stop"})

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def progress(self) -> Progress | None:
        return self._progress

    @property
    def usage(self) -> Usage:
        return self._used

    def _leave(self, why: BaseException | None = None) -> None:
        self._end(why if isinstance(why, EndpointFailure) else _misused("The drafting was closed."))
        if self._scope is not None:
            self._scope.cancel()

    async def aclose(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.aclose()
        has_begun = self._scope is not None and self._is_read.is_set()
        self._leave()
        if has_begun and self._tasks.is_open:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._over.wait()


def _misused(message: str) -> EndpointFailure:
    return EndpointFailure(FailureKind.CRASHED, LocalModelError(message))
