"""An endpoint on a scripted server, what to ask it, and all that it answers."""

from __future__ import annotations

import contextlib
from typing import Any

from scripted_server import scripted_server

from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import EndpointFailure
from disco.events import Delta, Ended
from disco.request import Request, Timeouts

KEY = "sk-test-0123456789abcdef"
QUESTION = [{"role": "user", "content": "Grüß Gott. " * 20}]


@contextlib.asynccontextmanager
async def served(*scripts: Any, kind: Any = PlainClient, **settings: Any) -> Any:
    """A scripted server and an endpoint on it."""
    async with scripted_server(*scripts) as server, kind(base_url=server.base_url, api_key=KEY) as client:
        endpoint = OpenAIEndpoint(client=client, **settings)
        try:
            yield server, endpoint
        finally:
            await endpoint.aclose()


def ask(*, timeouts: Any = Timeouts(connect_s=20.0), **params: Any) -> Request:  # noqa: B008 - frozen
    return Request(messages=QUESTION, model="m", params=params, timeouts=timeouts)


async def collect(attempt: Any) -> tuple[list[Delta], Ended]:
    """All deltas of an answer, and its end, which comes once and last."""
    async with attempt:
        events = [event async for event in attempt]
    *batches, ended = events
    assert isinstance(ended, Ended)
    assert all(batches)
    return [delta for batch in batches for delta in batch], ended


async def failing(attempt: Any) -> tuple[str, EndpointFailure]:
    """The text that came before the failure, and the failure."""
    said = ""
    async with attempt:
        try:
            async for event in attempt:
                said += text_of(event)
        except EndpointFailure as failure:
            return said, failure
    raise AssertionError("did not fail")


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)
