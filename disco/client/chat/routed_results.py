"""The SDK's results with the route record of their answer: of parsed and raw responses, and of streams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from openai import AsyncStream, NotGiven, Stream
from openai._legacy_response import LegacyAPIResponse
from openai._response import APIResponse, AsyncAPIResponse
from openai.lib._parsing import ResponseFormatT
from openai.lib._parsing._responses import TextFormatT
from openai.types.chat import ChatCompletion, ParsedChatCompletion
from openai.types.responses import ParsedResponse, Response
from pydantic_core import PydanticSerializationError

from disco.client.chat.chat_chunks import RoutedChatCompletion, RouteOfAnswer, with_route
from disco.client.chat.stream_types import not_complete
from disco.errors import AnswerShapeError, attach_evidence

if TYPE_CHECKING:
    from disco.client.chat.answer_stream import Answer
    from disco.session.records.route_record import RouteRecord

__all__ = [
    "AnswerSource",
    "LiveSource",
    "RouteOfSource",
    "RoutedParsedChatCompletion",
    "RoutedParsedResponse",
    "RoutedResponse",
    "become",
    "parsed_by",
    "read_by_the_sdk",
    "readable",
    "routed",
    "text_of_whole",
]


class AnswerSource(Protocol):
    """What knows an answer while it is read in a form of the SDK's."""

    def record(self) -> RouteRecord | None:
        """Return the route record; None while the answer is not complete."""
        ...

    def fail(self, error: Exception, text: str = "") -> None:
        """Put the evidence on an error that the reader of the answer raises; a second time, what was not known then.

        `text`: the text of a whole answer.
        """
        ...


class LiveSource:
    """An answer of a session; see `AnswerSource`."""

    __slots__ = ("_live",)

    def __init__(self, live: Answer) -> None:
        self._live = live

    def record(self) -> RouteRecord | None:
        """See `AnswerSource`."""
        return self._live.record

    def fail(self, error: Exception, text: str = "") -> None:
        """See `AnswerSource`."""
        known = vars(error)
        if known.get("route") is None:  # it may be written since
            text = known.get("partial_text") or text or self._live.session.transcript.partial_text
            attach_evidence(error, partial_text=text, route=self._live.record)


class RoutedResponse(RouteOfAnswer, Response):
    """A `Response` with its route record; equal to the plain one and serialised like it."""


if TYPE_CHECKING:

    class RoutedParsedChatCompletion(RouteOfAnswer, ParsedChatCompletion[ResponseFormatT]):
        """A `ParsedChatCompletion` with its route record; equal to the plain one and serialised like it."""

    class RoutedParsedResponse(RouteOfAnswer, ParsedResponse[TextFormatT]):
        """A `ParsedResponse` with its route record; equal to the plain one and serialised like it."""

else:  # without a parameter, which pydantic would make a class of, with the SDK's models in it as strangers

    class RoutedParsedChatCompletion(RouteOfAnswer, ParsedChatCompletion):
        """See above."""

    class RoutedParsedResponse(RouteOfAnswer, ParsedResponse):
        """See above."""


class RouteOfSource:
    """The route record of an object of the SDK's that stands for one answer."""

    _answer_source: AnswerSource

    @property
    def route(self) -> RouteRecord:
        """The route record.

        Raises:
            DiscoError: the answer is not complete yet.
        """
        record = self._answer_source.record()
        if record is None:
            raise not_complete()
        return record


# What Python raises where a value is of another kind than expected.
_OF_SHAPES = (
    *(AttributeError, LookupError, RuntimeError, TypeError, AssertionError, UnicodeError, OverflowError),
    PydanticSerializationError,
)
_OF_HELPERS = ("disco.client.chat.helper_events", "disco.endpoints.openai_api.call_pieces")


def readable(error: Exception) -> Exception:
    """Return an `AnswerShapeError` for an error that the SDK makes of an answer of another shape than the API's.

    Any other error is returned as it is: those of the SDK's own types, and those of the application's own code.
    """
    frame = error.__traceback__
    if frame is None or not isinstance(error, _OF_SHAPES):
        return error
    while frame.tb_next is not None:
        frame = frame.tb_next
    module = frame.tb_frame.f_globals.get("__name__", "")
    if module not in _OF_HELPERS and module.partition(".")[0] not in ("openai", "pydantic"):
        return error
    what = error if isinstance(error, RuntimeError) else type(error).__name__  # the SDK's own words
    return AnswerShapeError(
        f"The openai package cannot read this answer ({what}): the server has sent a field of another kind than the "
        "API's. Where one of its helpers failed, read it by create(), or by create(stream=True)."
    )


@contextmanager
def read_by_the_sdk(source: AnswerSource) -> Iterator[None]:
    """Put the evidence on an error that is raised within about what `source` has; see `readable`."""
    try:
        yield
    except Exception as error:
        told = readable(error)
        source.fail(told)
        if told is not error:
            raise told from error
        raise


class _Guarded:
    """The iterator of one of the SDK's streams, whose errors have `partial_text` and `route`.

    Args:
        of: the iterator; it is over once it has raised.
        source: the answer.
        close: closes the stream that a helper reads. An error of the helper's own would leave its answer running, and
            so without a record.
    """

    __slots__ = ("_close", "_of", "_source")

    def __init__(self, of: Any, source: AnswerSource, close: Callable[[], Any] | None) -> None:
        self._of, self._source, self._close = of, source, close

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._of)
        except StopIteration:
            raise
        except Exception as error:
            told = readable(error)
            self._source.fail(told)
            if self._close is not None:
                self._close()
                self._source.fail(told)
            if told is not error:
                raise told from error
            raise

    def close(self) -> None:
        self._of.close()


class _GuardedAsync(_Guarded):
    __slots__ = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._of)
        except StopAsyncIteration:
            raise
        except Exception as error:
            told = readable(error)
            self._source.fail(told)
            if self._close is not None:
                await self._close()
                self._source.fail(told)
            if told is not error:
                raise told from error
            raise

    async def aclose(self) -> None:
        await self._of.aclose()


_RAW = (LegacyAPIResponse, APIResponse, AsyncAPIResponse, Stream, AsyncStream)


@functools.cache
def _with_route(kind: type[Any]) -> type[Any]:
    """Return the class with `route`, under the same name: the SDK's `repr` shows it."""
    return type(kind.__name__, (kind, RouteOfSource), {"__module__": kind.__module__})


def become(result: Any, kind: type, source: AnswerSource) -> None:
    """Make an object of the SDK's one of `kind`, a subclass of its class and of `RouteOfSource`.

    The errors of a stream then have `partial_text` and `route`.
    """
    result.__class__, result._answer_source = kind, source  # noqa: SLF001 - our own class now
    if hasattr(result, "_iterator"):
        guard = _GuardedAsync if hasattr(result, "__anext__") else _Guarded
        read: Any = getattr(result, "_raw_stream", None)
        close = None if read is None else read.close
        result._iterator = guard(result._iterator, source, close)  # noqa: SLF001 - the SDK reads its streams from it


def routed(result: Any, source: AnswerSource) -> Any:
    """Give the route record to what the SDK has made of an answer; return the same object.

    The object keeps its place in the application's `isinstance`: its class becomes a subclass of what it was.
    """
    if isinstance(result, RouteOfAnswer | RouteOfSource):
        return result
    kind = type(result)
    if kind in _RAW:
        become(result, _with_route(kind), source)  # type: ignore[arg-type] # a class can be hashed
    elif isinstance(result, ChatCompletion):
        is_parsed = isinstance(result, ParsedChatCompletion)
        _become_model(result, RoutedParsedChatCompletion if is_parsed else RoutedChatCompletion, source)
    elif isinstance(result, Response):
        is_parsed = isinstance(result, ParsedResponse)
        _become_model(result, RoutedParsedResponse if is_parsed else RoutedResponse, source)
    return result


def _become_model(model: Any, kind: type, source: AnswerSource) -> None:
    if type(model).__module__.partition(".")[0] == "openai":  # not a class of the application's
        object.__setattr__(model, "__class__", kind)
        with_route(model, source.record)


def parsed_by(parser: Any, source: AnswerSource) -> Callable[[Any], Any]:
    """Return the SDK's `post_parser` of a request, which also gives the route record to its result and its errors.

    Args:
        parser: the one that the SDK's helper has set; `NotGiven` where there is none.
        source: the answer.
    """

    def parse(made: Any) -> Any:
        if isinstance(parser, NotGiven):
            return routed(made, source)
        try:
            return routed(parser(made), source)
        except Exception as error:
            told = readable(error)
            source.fail(told, text_of_whole(made))
            if told is not error:
                raise told from error
            raise

    return parse


def text_of_whole(answer: object) -> str:
    """Return the text of a whole answer; "" where it has none, or is of another shape."""
    try:
        if isinstance(answer, Response):
            return answer.output_text
        if isinstance(answer, ChatCompletion):
            return answer.choices[0].message.content or ""
    except (AttributeError, LookupError, TypeError):
        pass
    return ""
