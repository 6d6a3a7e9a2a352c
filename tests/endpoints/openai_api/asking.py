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


def ask(*, messages: Any = QUESTION, model: str = "m", timeouts: Any = None, **params: Any) -> Request:
    timeouts = Timeouts(connect_s=20.0) if timeouts is None else timeouts
    return Request(messages=messages, model=model, params=params, timeouts=timeouts)


async def collect(attempt: Any) -> tuple[list[Delta], Ended]:
    """All deltas of an answer, and its end, which comes once and last."""
    deltas: list[Delta] = []
    ended = None
    async with attempt:
        async for event in attempt:
            assert event
            assert ended is None
            if isinstance(event, Ended):
                ended = event
            else:
                deltas += event
    assert ended is not None
    return deltas, ended


async def answer_of(*script: Any, asked: Request | None = None, **settings: Any) -> tuple[list[Delta], Ended]:
    """What is read of one script."""
    async with served(*script, **settings) as (_, endpoint):
        return await collect(endpoint.open(ask() if asked is None else asked))


async def failing(attempt: Any) -> tuple[str, EndpointFailure]:
    """The text that came before the failure, and the failure."""
    said = ""
    async with attempt:
        try:
            async for event in attempt:
                assert not isinstance(event, Ended)
                said += text_of(event)
        except EndpointFailure as failure:
            return said, failure
    raise AssertionError("did not fail")


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)
