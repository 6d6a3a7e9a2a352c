"""Several choices of one request (`n`), each an answer of its own: planned, written and recorded as if asked alone.

So a model that writes one text at a time serves `n`, and each choice may fail over, migrate and be paced. Their chunks
are read as one stream, with the index of their choice. A request that a single server may serve goes there as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from openai.types.chat import ChatCompletionChunk

from disco.client.chat.answer_ending import finish_reason, last_chunk
from disco.client.chat.chat_chunks import ChatChunks, like
from disco.client.live_driver import LiveSession
from disco.errors import NoEndpointError
from disco.request import Request
from disco.session.machine import Session
from disco.session.records.route_record import RouteRecord

__all__ = ["MOST_CHOICES", "LiveChoices", "request_of_choice"]

MOST_CHOICES: Final = 128
"""The API's own limit."""
_AT_ONCE: Final = 4  # more would fill the queue of a model that writes one answer at a time


def request_of_choice(request: Request, index: int) -> Request:
    """Return the request for one of the choices: with a seed of its own, where the application gave one."""
    params = {name: value for name, value in request.params.items() if name != "n"}
    seed = params.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        params["seed"] = seed + index
    return replace(request, params=params)


@dataclass(slots=True)
class _Choice:
    """One choice. Mutable: `is_over`, all of its chunks were read."""

    index: int
    live: LiveSession
    chunks: ChatChunks
    is_over: bool = False

    def take(self) -> list[ChatCompletionChunk]:
        """Return the chunks that wait to be read, the one with the finish reason included."""
        live, chunks = self.live, self.chunks
        out = [chunks.of(delta) for delta in live.take()]
        if live.done and not out:
            self.is_over = True
            if not live.was_cancelled:
                out.append(chunks.last(finish_reason(live), last_chunk(live)))
        return out


class LiveChoices:
    """The choices of one request in progress, with what `LiveSession` has for its reader.

    The session and the record are those of the first choice; every choice is reported on its own.

    Mutable: `_choices`, `_changed`, `_identity`, `_is_cancelled`.

    Args:
        model: the model in the chunks where no server names one.
        number: how many choices.
        open_one: starts the session of a choice, given its index.

    Raises:
        NoEndpointError: more choices than the API allows.
    """

    def __init__(self, model: str, number: int, open_one: Callable[[int], Awaitable[LiveSession]]) -> None:
        if number > MOST_CHOICES:
            raise NoEndpointError(
                f"Invalid 'n': integer above maximum value. Expected a value <= {MOST_CHOICES}, but got {number} "
                "instead.",
                code="integer_above_max_value",
                param="n",
            )
        self._model = model
        self._number = number
        self._open_one = open_one
        self._choices: list[_Choice] = []
        self._changed = anyio.Event()
        self._identity: tuple[str, str, int] | None = None  # id, model and time of all chunks
        self._is_cancelled = False

    async def start(self) -> None:
        """Start the first choices, and later those for which there is room by then.

        Raises:
            Exception: what stands against the request; the choices that run are then cancelled.
        """
        try:
            while (
                len(self._choices) < self._number
                and not self._is_cancelled
                and sum(not choice.is_over for choice in self._choices) < _AT_ONCE
            ):
                index = len(self._choices)
                live = await self._open_one(index)
                live.on_change = self._wake
                self._choices.append(_Choice(index, live, ChatChunks(self._model)))
        except BaseException:
            self.cancel()
            raise

    async def read(self) -> list[ChatCompletionChunk]:
        """Return the chunks released since the last call: at least one; empty at the end of all choices.

        Raises:
            Exception: the error that ended a choice, and with it the answer, once the chunks before it have been read.
        """
        while True:
            self._changed = anyio.Event()
            await self.start()
            out: list[ChatCompletionChunk] = []
            for choice in self._choices:
                try:
                    out += [self._of_choice(chunk, choice.index) for chunk in self._taken(choice)]
                except Exception:
                    if out:
                        break  # it is raised again by the next call
                    self.cancel()
                    raise
            if out or all(choice.is_over for choice in self._choices):
                return out
            await self._changed.wait()

    def _taken(self, choice: _Choice) -> list[ChatCompletionChunk]:
        return [] if choice.is_over else choice.take()

    def _of_choice(self, chunk: ChatCompletionChunk, index: int) -> ChatCompletionChunk:
        self._identity = self._identity or (chunk.id, chunk.model, chunk.created)
        chunk.id, chunk.model, chunk.created = self._identity
        chunk.choices = [like(choice, index=index) for choice in chunk.choices]
        if not chunk.choices and (chunk.model_extra or {}).get("disco"):
            more: Any = chunk
            more.disco = {**more.disco, "choice": index}  # whose text is taken back
        return chunk

    def _wake(self) -> None:
        self._changed.set()

    def cancel(self) -> None:
        """Cancel all choices. Idempotent; does not wait."""
        self._is_cancelled = True
        for choice in self._choices:
            choice.live.cancel()
        self._wake()

    def abandon(self) -> None:
        """See `LiveSession.abandon`."""
        self._is_cancelled = True
        for choice in self._choices:
            choice.live.abandon()

    async def wait_done(self) -> None:
        """Return once no task of any choice runs any more."""
        for choice in self._choices:
            await choice.live.wait_done()

    @property
    def lives(self) -> list[LiveSession]:
        """The sessions of the choices, in order."""
        return [choice.live for choice in self._choices]

    @property
    def session(self) -> Session:
        """The first choice's."""
        return self._choices[0].live.session

    @property
    def written(self) -> Callable[[], RouteRecord] | None:
        """See `LiveSession`; the first choice's."""
        return self._choices[0].live.written

    @property
    def record(self) -> RouteRecord | None:
        """The first choice's route record, once all choices are complete."""
        is_done = all(live.done for live in self.lives) and len(self._choices) == self._number
        return self._choices[0].live.record if is_done or self._is_cancelled else None

    @property
    def buffered_tokens(self) -> float:
        """See `LiveSession`."""
        return sum(live.buffered_tokens for live in self.lives)

    @property
    def was_cancelled(self) -> bool:
        """Whether any choice was stopped."""
        return self._is_cancelled or any(live.was_cancelled for live in self.lives)
