"""From the SDK's request options to a routed request: which calls a session answers, and with which clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import httpx2
import openai

from disco.client.request_options import RequestOptions
from disco.request import Timeouts, whole_number

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.chat.http_encoding import Encoder
    from disco.client.routed_client import RoutedClient

__all__ = [
    "CHAT",
    "RESPONSES",
    "Routed",
    "clocks_of",
    "hide",
    "is_answer",
    "is_model_list",
    "model_of",
    "request_as_sent",
    "routed_request",
]

CHAT, RESPONSES = "/chat/completions", "/responses"


def clocks_of(timeout: Any, base: Timeouts) -> Timeouts:
    """Return the clocks of an attempt for the SDK's `timeout`, which limits silence on the line and never the whole.

    Args:
        timeout: seconds, an `httpx2.Timeout`, None for no limit, or one of the SDK's marks for "not given".
        base: the clocks if no timeout is given; its clock for the whole answer applies in any case.
    """
    if isinstance(timeout, (openai.NotGiven, openai.Omit)):
        return base
    if timeout is None or isinstance(timeout, (int, float)):
        connect_s = read_s = timeout
    else:
        connect_s, read_s = timeout.connect, timeout.read
    return Timeouts(_clock(connect_s), _clock(read_s), _clock(read_s), base.total_s)


def _clock(seconds: float | None) -> float | None:
    """Return a time-out that a clock can count with: a number of some hundred digits is none, as infinity is."""
    return None if seconds is not None and seconds > 1e300 else seconds


def hide(error: openai.APIError, client: RoutedClient, options: FinalRequestOptions) -> None:
    """Remove the key, and quotations of the request, from an error of a request that was passed on."""
    from disco.endpoints.openai_api.refused.redacted import redact  # noqa: PLC0415 - rarely needed

    redact(error, (client.api_key,), (options.json_data, options.extra_json))


def model_of(options: FinalRequestOptions, extra: Mapping[str, Any] | None) -> object:
    """Return the model that a request names, wherever the API puts it."""
    asked = {**options.json_data, **(extra or {})} if isinstance(options.json_data, Mapping) else extra or {}
    return asked.get("model")


def is_answer(options: FinalRequestOptions) -> bool:
    """Return whether this is a request for an answer, on one of the APIs that are routed."""
    return options.method.lower() == "post" and options.url in (CHAT, RESPONSES)


def request_as_sent(client: Any, options: FinalRequestOptions) -> httpx2.Request:
    """Return the request that the SDK would have sent: applications look at a response's request."""
    try:
        request: httpx2.Request = client._build_request(options.model_copy())  # noqa: SLF001 - our own client
    except TypeError:  # without a server there are no credentials, which the SDK insists on
        body = {
            **cast("dict[str, Any]", options.json_data or {}),
            **cast("dict[str, Any]", options.extra_json or {}),
        }
        address = client._prepare_url(options.url)  # noqa: SLF001
        headers = {k: str(v) for k, v in given_headers(options).items()}
        return httpx2.Request("POST", address, headers=headers, json=body)
    return request


def given_headers(options: FinalRequestOptions) -> dict[str, Any]:
    """Return the headers that the application, or a helper of the SDK, gave for this request."""
    return {} if isinstance(options.headers, openai.NotGiven) else dict(options.headers)


def is_model_list(options: FinalRequestOptions) -> bool:
    """Return whether this is the request of `client.models.list()`."""
    return options.method.lower() == "get" and options.url == "/models"


@dataclass(frozen=True, slots=True)
class Routed:
    """A request that a session answers.

    Attributes:
        url: the path of the API on which the request came.
        body: the body of the request, without disco's options.
        chat: the body as a chat request.
        own: disco's options.
    """

    url: str
    body: Mapping[str, Any] = field(repr=False)
    chat: Mapping[str, Any] = field(repr=False)
    own: RequestOptions

    @property
    def choices(self) -> int:
        """How many choices are asked for; 0: that is no number."""
        given = self.chat.get("n")
        return 1 if given is None else whole_number(given) or 0

    def encoder(self) -> Encoder:
        """Return the encoder for the API on which the request came."""
        if self.url == RESPONSES:
            from disco.client.responses.responses_reply import ResponsesEncoder  # noqa: PLC0415 - numpy loads with it

            return ResponsesEncoder(self.body, self.chat["model"])
        from disco.client.chat.http_encoding import ChatEncoder  # noqa: PLC0415 - as above

        usage = bool((self.body.get("stream_options") or {}).get("include_usage"))
        return ChatEncoder(self.chat["model"], include_usage=usage)


def routed_request(
    options: FinalRequestOptions, own: RequestOptions, extra: Mapping[str, Any] | None
) -> Routed | None:
    """Return the request that sessions can answer; None for a request to pass on.

    Raises:
        NoEndpointError: a field of a `/responses` body has a wrong type or is out of range.
    """
    if not is_answer(options):
        return None
    from disco.client.chat.http_encoding import more_than_text, plain_copy  # noqa: PLC0415 - numpy loads with it
    from disco.client.responses.responses_request import chat_body  # noqa: PLC0415 - rarely needed
    from disco.request_checks import check_responses  # noqa: PLC0415 - as below

    body = plain_copy({**cast("dict[str, Any]", options.json_data or {}), **(extra or {})})
    if options.url == RESPONSES:
        check_responses(body)  # before the translation, which changes field names
    chat = body if options.url == CHAT else chat_body(body)
    return None if chat is None or more_than_text(chat) else Routed(options.url, body, chat, own)
