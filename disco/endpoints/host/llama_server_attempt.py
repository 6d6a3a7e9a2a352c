"""One answer of a host that is llama-server: a local server's attempt that reports its prefill and can be parked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from disco.endpoints.contract import Event
from disco.endpoints.local_server.local_attempt import LocalServerAttempt
from disco.events import Delta, DeltaKind, Ended, Progress, Usage

__all__ = ["LlamaServerAttempt"]


class LlamaServerAttempt(LocalServerAttempt):
    """See `Attempt`. Made by `HostEndpoint.open`.

    Progress: llama-server is asked to report each batch of the prompt (`return_progress`), in chunks without text. They
    are taken out of the stream.

    Parking: llama-server keeps what it has read of a prompt when its client leaves. So a parked attempt waits for the
    first token, which comes of the prompt alone, and leaves.

    Mutable: `wants_progress` (until it is iterated), `_progress`, `_cached` (tokens that were in the cache), `_left`
    (deltas that came with a report), `_parks` (it was told to), `_wrote` (content was yielded), `_parked` (its usage,
    once it is).

    Attributes:
        wants_progress: whether `Progress` is yielded.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.wants_progress = False
        self._progress: Progress | None = None
        self._cached = 0
        self._left: list[Delta] = []
        self._parks = False
        self._wrote = False
        self._parked: Usage | None = None

    async def __anext__(self) -> Event:
        while True:
            left, self._left = self._left, []
            event = left or await super().__anext__()
            if not isinstance(event, list):
                return event
            reports = [report for delta in event if (report := _report(delta)) is not None]
            if reports:
                self._note(reports[-1])
                self._left = [delta for delta in event if _report(delta) is None]
                if self.wants_progress and self._progress is not None:
                    return self._progress
                continue
            has_content = any(delta.kind is not DeltaKind.ROLE for delta in event)
            if self._parks and (has_content or self._wrote):
                return await self._park()
            self._wrote = self._wrote or has_content
            return event

    def _note(self, report: Mapping[str, Any]) -> None:
        done, total, took_ms = int(report["processed"]), int(report["total"]), float(report["time_ms"])
        self._cached = int(report["cache"])
        tps = (done - self._cached) / (took_ms / 1e3) if took_ms and done > self._cached else 0.0
        self._progress = Progress(max(done, self._cached), total, tps)

    async def _park(self) -> Ended:
        usage = self.usage
        # A token that nobody was given is no part of an answer.
        self._parked = usage if self._wrote else replace(usage, completion_tokens=0)
        await self.aclose()
        return Ended("parked", self._parked)

    def park(self) -> bool:
        if self._over or self._closed:
            return False
        self._parks = True
        return True

    @property
    def progress(self) -> Progress | None:
        return self._progress

    @property
    def usage(self) -> Usage:
        if self._parked is not None:
            return self._parked
        usage, progress = super().usage, self._progress
        if progress is None or self._finished:
            return usage
        # Until the end, the base class estimates the prompt by its characters.
        return replace(usage, prompt_tokens=progress.tokens_total, cached_tokens=self._cached)


def _report(delta: Delta) -> Mapping[str, Any] | None:
    """Return llama-server's report of a prefill, where the delta's chunk is one."""
    if delta.kind is not DeltaKind.ROLE:
        return None
    extra = getattr(delta.raw, "model_extra", None) or {}
    report = extra.get("prompt_progress")
    return report if isinstance(report, Mapping) else None
