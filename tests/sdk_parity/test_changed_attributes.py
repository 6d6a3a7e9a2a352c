"""S7: attributes of a client that are set later hold for the next request."""

from __future__ import annotations

import pytest
from sdk_parity.side_by_side import CHAT, answering, behind, both, document, taken

pytestmark = pytest.mark.anyio

HEADERS = ("authorization", "openai-organization", "openai-project", "x-later", "user-agent")


def change(client):
    client.api_key = "second"
    client.base_url = "http://second.test/v2"
    client.organization, client.project = "org-2", "proj-2"
    client.timeout = 12.5
    client._custom_headers = {"X-Later": "1"}  # the SDK has no public way
    client._custom_query = {"later": "1"}


def calls(stream):
    """A request before the change and one after it."""

    def ask(client):
        async def asking():
            await taken(client.chat.completions.create(**CHAT, stream=stream))
            change(client)
            return await taken(client.chat.completions.create(**CHAT, stream=stream))

        return asking()

    return ask


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_the_next_request_is_sent_by_them(kinds, alone, stream):
    plain, ours = await both(kinds, calls(stream), ours={} if alone else behind(), organization="org-1")
    assert (plain.error, ours.error) == (None, None)
    first, second = ours.requests
    assert str(first.url) == "http://server.test/v1/chat/completions"
    assert str(second.url) == str(plain.requests[1].url) == "http://second.test/v2/chat/completions?later=1"
    assert {n: second.headers.get(n) for n in HEADERS} == {
        n: plain.requests[1].headers.get(n) for n in HEADERS
    }
    if alone:
        assert ours.sent() == plain.sent()
        assert second.extensions["timeout"] == plain.requests[1].extensions["timeout"]


async def test_the_number_of_retries_holds(kinds):
    def call(client):
        async def asking():
            client.max_retries = 1
            return await taken(client.chat.completions.create(**CHAT))

        return asking()

    failing = lambda request: document({"error": {"message": "no"}}, 500)  # noqa: E731
    plain, ours = await both(kinds, call, failing, max_retries=0)
    assert len(ours.requests) == len(plain.requests) == 2
    assert ours.failure() == plain.failure()
    plain, ours = await both(kinds, call, failing, answering, max_retries=0)
    assert (plain.error, ours.error) == (None, None)
