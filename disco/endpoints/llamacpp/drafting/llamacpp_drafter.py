"""The model on this machine as a drafter, in the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio

from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.llamacpp.batching.engine import Engine
from disco.endpoints.llamacpp.drafting.draft_job import DraftJob
from disco.endpoints.llamacpp.drafting.draft_sampler import choosing_params
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from disco.events import Parked, Progress, Usage

__all__ = ["LlamaCppDrafter", "LlamaCppDrafting"]

_STOP_WITHIN_S: Final = 10.0  # limit of shielded waits; stopping takes milliseconds


class LlamaCppDrafter(Drafter):
    """Drafts with the model of an endpoint, while the endpoint writes no answers of its own.

    Each draft chooses as the endpoint itself would choose with the same keyed noise.

    Args:
        engine: of the endpoint.
        name: the endpoint's.
        warm_up: loads the model.
    """

    def __init__(self, engine: Engine, *, name: str, warm_up: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._engine = engine
        self._warm_up = warm_up

    @property
    def vocabulary(self) -> str | None:
        model = self._engine.model
        return None if model is None else model.vocabulary

    @property
    def ready(self) -> bool:
        return self._engine.model is not None

    async def warm_up(self) -> None:
        await self._warm_up()

    def text_of(self, ids: Sequence[int]) -> str:
        """Return what tokens spell, for a display; "" while no model is loaded."""
        model = self._engine.model
        spelt = None if model is None else model.spell(ids)
        return (spelt or b"").decode("utf-8", "replace")

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> LlamaCppDrafting:
        params = choosing_params(sampling, name=self.name)
        return LlamaCppDrafting(self._engine, params, seed=seed, name=self.name)


class LlamaCppDrafting(Drafting):
    """One answer's drafts, made by a `DraftJob`.

    Mutable: `_job` (None before it reads), `_mail`, `_ended` (why it drafts no more), `_asked` (number of the newest
    order).
    """

    def __init__(self, engine: Engine, sampling: Sampling, *, seed: int, name: str) -> None:
        self._engine = engine
        self._sampling = sampling
        self._seed = seed
        self._name = name
        self._job: DraftJob | None = None
        self._mail: Mailbox | None = None
        self._ended: EndpointFailure | None = None
        self._asked = -1

    async def read(self, prompt_ids: Sequence[int]) -> None:
        if self._job is not None or self._ended is not None:
            raise self._ended or _misused("A drafting reads one prompt.")
        mail = Mailbox()
        job = DraftJob(mail, prompt_ids, self._sampling, seed=self._seed, name=self._name)
        try:
            self._engine.submit(job)
            self._job, self._mail = job, mail
            await self._result(lambda item: isinstance(item, Parked))
        except BaseException as exc:
            self._leave(exc)
            raise

    async def draft(self, order: DraftOrder) -> Drafted:
        if self._ended is not None:
            raise self._ended
        if self._job is None or self._mail is None:
            raise _misused("A drafting reads the prompt first.")
        if order.number <= self._asked:
            raise _misused("An order must have a higher number than those before it.")
        self._asked = order.number
        self._job.give(order)
        self._engine.tell(self._job)
        try:
            found = await self._result(lambda item: isinstance(item, Drafted) and item.number == order.number)
        except BaseException:
            self.stop()
            raise
        assert isinstance(found, Drafted)
        return found

    async def _result(self, fits: Callable[[object], bool]) -> object:
        """Return the item that is waited for; drop those for which nobody waits any more."""
        assert self._mail is not None
        found: object = None
        while found is None:
            items = await self._mail.take()
            for item in items:
                if isinstance(item, EndpointFailure):
                    self._leave(item)
                    raise item
                if fits(item):
                    found = item
            if not items:
                raise self._ended or _misused("The drafting was closed.")
        return found

    def stop(self) -> None:
        if self._job is not None:
            self._job.break_off(self._asked)
            self._engine.tell(self._job)

    @property
    def busy(self) -> bool:
        return self._engine.occupied_beside(self._job)

    @property
    def progress(self) -> Progress | None:
        return None if self._job is None else self._job.progress

    @property
    def usage(self) -> Usage:
        return Usage() if self._job is None else self._job.usage

    def _leave(self, why: BaseException | None = None) -> None:
        if self._ended is None:
            self._ended = why if isinstance(why, EndpointFailure) else _misused("The drafting was closed.")
        if self._job is not None:
            self._engine.cancel(self._job)

    async def aclose(self) -> None:
        self._leave()
        if self._mail is not None:
            with anyio.move_on_after(_STOP_WITHIN_S, shield=True):
                await self._mail.wait_closed()


def _misused(message: str) -> EndpointFailure:
    return EndpointFailure(FailureKind.CRASHED, LocalModelError(message))
