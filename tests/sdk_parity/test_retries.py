"""S10: a server that says when to try again, or not to, is obeyed as by the SDK."""

from __future__ import annotations

import pytest
from sdk_parity.side_by_side import CHAT, SAID, answering, behind, both, document

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def failing(status, **headers):
    """A refusal, to be tried again at once unless `headers` say otherwise."""
    fields = {"retry_after_ms": "1"} if "retry_after" not in headers else {}
    return lambda request: document({"error": {"message": "no", "code": "c"}}, status, **fields, **headers)


SERVERS = {
    "try again in more than two minutes": [failing(429, retry_after="121")],
    "try again in a moment": [failing(429, retry_after="0.01"), answering],
    "try again, though it is your mistake": [failing(400, x_should_retry="true"), answering],
    "do not try again, though it is mine": [failing(500, x_should_retry="false")],
    "three failures": [failing(503)],
    "two failures": [failing(500), failing(503), answering],
    "a conflict": [failing(409), answering],
    "your mistake": [failing(400)],
}


@pytest.mark.parametrize("name", SERVERS)
async def test_with_the_server_alone_the_requests_are_the_sdks(kinds, name):
    for stream in (False, True):
        plain, ours = await both(
            kinds, lambda c, s=stream: c.chat.completions.create(**CHAT, stream=s), *SERVERS[name]
        )
        assert counts(ours) == counts(plain)
        assert ours.failure() == plain.failure()
        assert ours.sent() == plain.sent()


NOT_SERVED = [name for name in SERVERS if "moment" not in name and "conflict" not in name]


@pytest.mark.parametrize("name", NOT_SERVED)
async def test_likewise_where_the_local_model_cannot_serve_the_request(kinds, name):
    """A session owns the retries then: as many requests, each with its number, and the same error."""

    def call(client):
        return client.chat.completions.create(**CHAT, tools=[TOOL])

    plain, ours = await both(kinds, call, *SERVERS[name], ours=behind(features=frozenset()))
    # A server's first 500 may be of what disco adds: then it is asked at once without, which counts as no try.
    at_once = ["0"] if name == "two failures" else []
    assert counts(ours) == [*at_once, *counts(plain)][: len(plain.requests)]
    assert type(ours.error) is type(plain.error)
    if plain.error is None:
        assert ours.value.choices[0].message.content == SAID


def counts(outcome):
    """What each request says of the requests before it."""
    return [request.headers["x-stainless-retry-count"] for request in outcome.requests]
