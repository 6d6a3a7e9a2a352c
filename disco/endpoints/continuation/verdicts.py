"""What probes have found out about servers, and which probes run at present."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import anyio.lowlevel

from disco.endpoints.continuation.probe import ProbeVerdict

__all__ = ["RETRY_S", "Key", "Verdicts"]

Key = tuple[str, str]
"""A base_url, and a model or "*" for the server's only model."""

RETRY_S = 60.0
"""How long a server is left alone that could not be probed, seconds."""


class Verdicts(dict[Key, ProbeVerdict]):
    """Verdicts by base_url and model. May be shared by several endpoints: only one of them probes at a time.

    Mutable: what a dict is; `_running`, an event for each probe under way, with its event loop; `_again_at`, by key;
    `on_found`.

    Attributes:
        on_found: called with each new verdict; None: nobody wants to know.
    """

    on_found: Callable[[Key, ProbeVerdict], None] | None = None

    def __init__(self, known: Mapping[Key, ProbeVerdict] | None = None) -> None:
        super().__init__(known or {})
        self._running: dict[Key, tuple[object, anyio.Event]] = {}
        self._again_at: dict[Key, float] = {}

    def __setitem__(self, key: Key, verdict: ProbeVerdict) -> None:
        super().__setitem__(key, verdict)
        if self.on_found is not None:
            self.on_found(key, verdict)

    def running(self, key: Key) -> anyio.Event | None:
        """Return the event that is set when the probe under way ends; None: there is none in this event loop."""
        token, event = self._running.get(key, (None, None))
        return event if token == anyio.lowlevel.current_token() else None

    def begin(self, key: Key) -> None:
        """Record that a probe begins."""
        self._running[key] = (anyio.lowlevel.current_token(), anyio.Event())

    def end(self, key: Key, verdict: ProbeVerdict | None) -> None:
        """Record that the probe under way has ended; `verdict`: None where it was cancelled."""
        _, event = self._running.pop(key)
        if verdict is not None and verdict.conclusive:
            self[key] = verdict
            self._again_at.pop(key, None)
        elif verdict is not None:
            self._again_at[key] = anyio.current_time() + RETRY_S
        event.set()

    def is_left_alone(self, key: Key) -> bool:
        """Whether a probe failed to reach the server a short time ago."""
        return anyio.current_time() < self._again_at.get(key, 0.0)
