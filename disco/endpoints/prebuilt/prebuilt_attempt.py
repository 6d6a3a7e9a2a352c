"""One answer of the prebuilt llama-server: an attempt of a local server that can also be parked."""

from __future__ import annotations

from typing import Any

from disco.endpoints.contract import Event
from disco.endpoints.local_server.local_attempt import LocalServerAttempt
from disco.events import DeltaKind, Ended, Usage

__all__ = ["PrebuiltAttempt"]


class PrebuiltAttempt(LocalServerAttempt):
    """See `Attempt`. Made by `PrebuiltEndpoint.open`.

    Parking: llama-server keeps what it has read of a prompt when its client leaves. So a parked attempt waits for the
    first token, which comes of the prompt alone, and leaves.

    Mutable: `_parks` (it was told to), `_wrote` (content was yielded), `_parked` (its usage, once it is).
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._parks = False
        self._wrote = False
        self._parked: Usage | None = None

    async def __anext__(self) -> Event:
        event = await super().__anext__()
        if not isinstance(event, list):
            return event
        has_content = any(delta.kind is not DeltaKind.ROLE for delta in event)
        if self._parks and (has_content or self._wrote):
            return await self._park()
        self._wrote = self._wrote or has_content
        return event

    async def _park(self) -> Ended:
        usage = self.usage
        # A token that nobody was given is no part of an answer.
        self._parked = usage if self._wrote else Usage(usage.prompt_tokens, 0, usage.cached_tokens)
        await self.aclose()
        return Ended("parked", self._parked)

    def park(self) -> bool:
        if self._over or self._closed:
            return False
        self._parks = True
        return True

    @property
    def usage(self) -> Usage:
        return super().usage if self._parked is None else self._parked
