"""`client.responses`: the SDK's resource, whose `.stream()` has the route record."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from openai.resources.responses import AsyncResponses, Responses

__all__ = ["DiscoResponses", "DiscoSyncResponses"]


class DiscoResponses(AsyncResponses):
    """The SDK's resource. Its `create` and `parse` call `AsyncDisco.request`, which routes."""

    if not TYPE_CHECKING:  # type checkers see the SDK's own, with all its parameters

        @wraps(AsyncResponses.stream)
        def stream(self, **given: Any) -> Any:
            """As the SDK's `stream`, with `route`."""
            from disco.client.chat.helper_events import ResponseManager  # noqa: PLC0415 - numpy loads with it

            return ResponseManager(super().stream(**given))


class DiscoSyncResponses(Responses):
    """See `DiscoResponses`."""

    if not TYPE_CHECKING:  # as above

        @wraps(Responses.stream)
        def stream(self, **given: Any) -> Any:
            """As the SDK's `stream`, with `route`."""
            from disco.client.chat.helper_events import SyncResponseManager  # noqa: PLC0415 - numpy loads with it

            return SyncResponseManager(super().stream(**given))
