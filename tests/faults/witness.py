"""What was really said: listens between disco and its endpoints, and judges answers by that, not by disco's own record.

The server is heard at the HTTP transport, below the SDK; the device at its attempts. What an endpoint was asked to go
on from, plus what it wrote, must be the reader's text up to the end of that endpoint's piece. So a character that came
twice, was lost, or was asked for in another place, shows.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from disco.endpoints.host import HostEndpoint
from disco.request import Prefix, Request
from disco.session.records.route_record import RouteRecord

ANSWER = "<|im_start|>assistant\n"  # where the answer begins in SmolLM2's chat template


def ignore(event: Any) -> None:
    """Do nothing with an event."""


@dataclass
class Heard:
    """One attempt: what it was asked to go on from, and what it wrote."""

    asked: str
    parts: list[str] = field(default_factory=list)
    raw: bytes = b""
    tokens: int = 0  # of the device's

    @property
    def wrote(self) -> str:
        """All text, from the wire or from the device."""
        texts = list(self.parts)
        for line in self.raw.split(b"\n"):
            with contextlib.suppress(ValueError, LookupError, TypeError):
                choice = json.loads(line.removeprefix(b"data: "))["choices"][0]
                texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        return "".join(texts)


class Witness(httpx2.AsyncHTTPTransport):
    """The HTTP transport of one client; `heard` has its requests for answers in order."""

    def __init__(self) -> None:
        super().__init__(verify=False)
        self.heard: list[Heard] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread() or b"{}")
        heard = Heard(str(body.get("prompt", "")).rpartition(ANSWER)[2])
        if request.method == "POST":
            self.heard.append(heard)
        response = await super().handle_async_request(request)
        response.stream = _Overheard(response.stream, heard)
        return response


class Device(HostEndpoint):
    """The local model; `heard` has its attempts in order. Those that begin tell `on_event` each of their events."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.heard: list[Heard] = []
        self.on_event: Callable[[Any], object] = ignore

    def open(self, request: Request, prefix: Prefix = Prefix(), **more: Any) -> Any:  # noqa: B008 - frozen
        # A word that the reader has and that has to be written again is swallowed inside; what comes begins behind it.
        self.heard.append(Heard(prefix.text))
        return _Overheard(super().open(request, prefix, **more), self.heard[-1], self.on_event)


class _Overheard(httpx2.AsyncByteStream):
    """A response's bytes, or an attempt's events, and their witness."""

    def __init__(self, inner: Any, heard: Heard, on_event: Callable[[Any], object] = ignore) -> None:
        self._inner, self._heard, self._events = inner, heard, aiter(inner)
        self._on_event = on_event

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        event = await anext(self._events)
        if isinstance(event, bytes):
            self._heard.raw += event
        elif isinstance(event, list):
            self._heard.parts += [delta.text for delta in event]
            self._heard.tokens += sum(delta.tokens for delta in event)
        if not isinstance(event, bytes):
            self._on_event(event)
        return event

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def complaint(text: str, route: RouteRecord, server: list[Heard], device: list[Heard]) -> str | None:
    """What is wrong with an answer, by what was heard while it was made; None: it is the sum of its pieces."""
    heard = {"server": iter(server), "device": iter(device)}
    said = [next(heard[t.place], None) for t in route.attempts]
    if not route.seamless:
        return "the record's checksums differ"
    end = 0
    for piece in route.segments:
        attempt = said[piece.attempt]
        if attempt is None:
            return f"{piece.endpoint} was never asked for piece {piece.attempt}"
        if piece.start_char != end:
            return f"a gap or an overlap at character {end}"
        end = piece.end_char
        whole = attempt.asked + attempt.wrote
        if whole[:end] != text[:end]:
            at = next((i for i, (a, b) in enumerate(zip(whole, text, strict=False)) if a != b), len(whole))
            return (
                f"piece {piece.attempt} of {piece.endpoint} ({piece.start_char}…{end}) differs at {at}: "
                f"asked {attempt.asked!r}, wrote {attempt.wrote!r}, read {text!r}"
            )
    return None if end == len(text) else f"{len(text) - end} characters belong to nobody"
