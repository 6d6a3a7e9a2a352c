"""The streams that `create(stream=True)` returns: the SDK's, and what disco adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai import AsyncStream, Stream
from openai.types.chat import ChatCompletionChunk

from disco.errors import DiscoError

if TYPE_CHECKING:
    from disco.session.records.answer_progress import AnswerProgress
    from disco.session.records.assist_record import AssistState
    from disco.session.records.route_record import RouteRecord

__all__ = ["DiscoStream", "DiscoSyncStream", "RouteOfStream", "not_complete"]


class RouteOfStream:
    """What disco adds to a stream."""

    @property
    def route(self) -> RouteRecord:
        """The route record: which endpoints started, which won, where the answer migrated, what it cost.

        Raises:
            DiscoError: the answer is not complete yet.
        """
        raise NotImplementedError

    @property
    def writer(self) -> str | None:
        """The name of the endpoint that wrote the last chunk with text."""
        raise NotImplementedError

    @property
    def buffered_tokens(self) -> int:
        """The fill of the playback buffer: tokens that are written but not yet returned to the application.

        Counts the text held back for a steady pace and the text not yet read. A chunk counts as at least one token.
        """
        raise NotImplementedError

    @property
    def progress(self) -> AnswerProgress:
        """The answer as it stands: who writes now, how much is written but not yet shown, what it has cost so far.

        May be read at any time, also while a chunk is awaited.
        """
        raise NotImplementedError

    @property
    def assist(self) -> AssistState | None:
        """How far a divided answer has come (policy "assist"); None where the answer is not divided."""
        raise NotImplementedError


class DiscoStream(AsyncStream[ChatCompletionChunk], RouteOfStream):
    """An `openai.AsyncStream[ChatCompletionChunk]` with a route record.

    As with the SDK's own stream, a caller that leaves the iteration early must call `close()` (or use
    `async with`).
    """


class DiscoSyncStream(Stream[ChatCompletionChunk], RouteOfStream):
    """An `openai.Stream[ChatCompletionChunk]` with a route record."""


def not_complete() -> DiscoError:
    """Return the error of a stream whose route is read too early."""
    return DiscoError(
        "The route record is written when the answer is complete. Read the stream to its end, or close it."
    )
