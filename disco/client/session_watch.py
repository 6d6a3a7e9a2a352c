"""Who is told of a request's session as soon as there is one: the live page of `disco serve` shows it while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disco.client.live_driver import LiveSession

__all__ = ["sessions_told", "tell_of"]

_LISTENER: ContextVar[Callable[[LiveSession], None] | None] = ContextVar("disco_sessions_told", default=None)


@contextmanager
def sessions_told(listener: Callable[[LiveSession], None]) -> Iterator[None]:
    """Call `listener` with every session that is opened within, before it starts."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell_of(live: LiveSession) -> None:
    """Tell who listens here of a session."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(live)
