"""`client.chat.completions.create`, answered by a session instead of a single HTTP request."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, overload

from openai import NotGiven, Omit
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.chat.completions.completions import validate_response_format
from pydantic import BaseModel

from disco.client.chat.answer_stream import DiscoStream, Reading, answer_usage, finish_reason, read
from disco.client.chat.chat_chunks import ChatChunks, RoutedChatCompletion, assemble
from disco.client.chat.helper_events import StreamManager
from disco.client.chat.http_encoding import NOT_ROUTED, RAW_RESPONSE_HEADER, chat_request, is_routed
from disco.client.chat.routed_request import clocks_of
from disco.client.request_options import take_options
from disco.request import Request

if TYPE_CHECKING:
    from disco.client.async_client import AsyncDisco

__all__ = ["DiscoChat", "DiscoCompletions", "is_ordinary"]

_AS_IT_IS = frozenset({str, int, float, bool, type(None)})
_NOT_GIVEN = (Omit, NotGiven)


class DiscoCompletions(AsyncCompletions):
    """The SDK's resource with a routed `create`; the rest is inherited."""

    _client: AsyncDisco

    # The SDK's own overloads list forty parameters each; these give only the types returned.
    @overload  # type: ignore[override]
    async def create(
        self,
        *,
        messages: Iterable[Mapping[str, object]],
        model: str,
        stream: Literal[True],
        **given: Any,
    ) -> DiscoStream: ...

    @overload
    async def create(
        self,
        *,
        messages: Iterable[Mapping[str, object]],
        model: str,
        stream: Literal[False] | Omit | None = ...,
        **given: Any,
    ) -> RoutedChatCompletion: ...

    @overload
    async def create(
        self, *, messages: Iterable[Mapping[str, object]], model: str, stream: bool, **given: Any
    ) -> DiscoStream | RoutedChatCompletion: ...

    async def create(self, **given: Any) -> Any:
        """Create a completion as `AsyncOpenAI.chat.completions.create`: same arguments, same return types.

        Adds `extra_body={"disco": {...}}` (see `disco.client.request_options.RequestOptions`), and `.route` on the
        result: on a stream once it has ended, on a completion at once.

        Raises:
            openai.OpenAIError: the errors of the plain SDK, and disco's own, which derive from it.
                The error's `partial_text` and `route` keep the text written before it.
            TypeError: an argument is unknown to the SDK, or a required one is missing.
        """
        if not is_ordinary(given):
            return await super().create(**given)  # calls `AsyncDisco.request`
        for name in given.keys() - _arguments():
            raise TypeError(f"AsyncCompletions.create() got an unexpected keyword argument {name!r}")
        validate_response_format(given.get("response_format"))  # classes are only for `parse`
        headers: Mapping[str, str] | None = _value(given.get("extra_headers"))
        options, extra_body = take_options(_value(given.get("extra_body")), self._client.default_options)
        stream = bool(_value(given.pop("stream", None)))
        request = self._request(given, headers, extra_body)
        stream_options = _value(given.get("stream_options")) or {}
        live = await self._client.router.open(
            request,
            self._client.server,
            stream=stream,
            options=options,
            max_retries=self._client.max_retries,
        )
        chunks = ChatChunks(request.model)
        if stream:
            wants_usage = bool(stream_options.get("include_usage"))
            return DiscoStream(live, await read(live), chunks, include_usage=wants_usage)
        deltas = await Reading(live, []).rest()
        return assemble(chunks, deltas, finish_reason(live), answer_usage(live), live.written)

    if not TYPE_CHECKING:  # type checkers see the SDK's own, with all its parameters

        @wraps(AsyncCompletions.stream)
        def stream(self, **given: Any) -> Any:
            """As the SDK's `stream`: the same events, at a fraction of the CPU time."""
            return StreamManager(super().stream(**given))

    def _request(
        self, given: dict[str, Any], headers: Mapping[str, str] | None, extra_body: dict[str, Any] | None
    ) -> Request:
        for name in ("extra_body", "extra_headers"):
            given.pop(name, None)
        query = _value(given.pop("extra_query", None))
        timeouts = clocks_of(given.pop("timeout", NotGiven()), self._client.timeouts)
        body = {name: _plain(v) for name, v in given.items() if type(v) not in _NOT_GIVEN}
        return chat_request({**body, **(extra_body or {})}, timeouts=timeouts, headers=headers, query=query)


class DiscoChat(AsyncChat):
    """The SDK's `client.chat` with routed completions."""

    _client: AsyncDisco

    @cached_property
    def completions(self) -> DiscoCompletions:
        """`client.chat.completions`."""
        return DiscoCompletions(self._client)


def is_ordinary(given: Mapping[str, Any]) -> bool:
    """Return whether a call needs a routed answer as typed objects, not an HTTP response or the server's own."""
    headers = _value(given.get("extra_headers")) or {}
    if any(name.lower() == RAW_RESPONSE_HEADER.lower() for name in headers):
        return False
    return is_routed({name: _value(given.get(name)) for name in NOT_ROUTED})


@cache
def _arguments() -> frozenset[str]:
    """Return the names of the arguments of the SDK's own `create`."""
    return frozenset(inspect.signature(AsyncCompletions.create).parameters)


def _plain(value: Any) -> Any:
    """Return a copy of only dicts, lists and JSON values. The SDK's models and iterables become such values.

    A copy, because the answer may be requested again after the application has changed its own lists.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if type(item) not in _NOT_GIVEN}
    if isinstance(value, BaseModel):
        return value.model_dump(
            exclude_unset=True, mode="json", exclude=getattr(value, "__api_exclude__", None)
        )
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [_plain(item) for item in value]
    return value


def _value(given: Any) -> Any:
    """Return the argument, with the SDK's two marks for "not given" replaced by None."""
    return None if isinstance(given, _NOT_GIVEN) else given
