"""S7, S13: what an application changes on a client, or overrides in a subclass, holds for every request."""

from __future__ import annotations

import pytest
from sdk_parity.side_by_side import CHAT, answering, behind, both, document, is_async, taken

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
async def test_the_next_request_is_sent_by_attributes_set_later(kinds, alone, stream):
    """S7."""
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


async def test_the_number_of_retries_may_be_set_later(kinds):
    """S7."""

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


MARKS = ("x-options", "x-request", "x-default", "x-built", "x-auth", "x-platform", "user-agent")


def hooked(kind):
    """A subclass that leaves a mark at each hook; asynchronous where the SDK's is."""

    class Hooked(kind):
        def _build_request(self, options, **given):
            request = super()._build_request(options, **given)
            request.headers["X-Built"] = "1"
            return request

        def _auth_headers(self, security):
            return {**super()._auth_headers(security), "X-Auth": "1"}

        def platform_headers(self):
            return {**super().platform_headers(), "X-Platform": "1"}

        @property
        def default_headers(self):
            return {**super().default_headers, "X-Default": "1"}

        @property
        def default_query(self):
            return {**super().default_query, "own": "1"}

        @property
        def user_agent(self):
            return "Own/1"

    def options(self, given):
        return given.model_copy(update={"headers": {**(given.headers or {}), "X-Options": "1"}})

    if is_async(kind):

        class WithHooks(Hooked):
            async def _prepare_options(self, given):
                return options(self, await super()._prepare_options(given))

            async def _prepare_request(self, request):
                request.headers["X-Request"] = "1"
                await super()._prepare_request(request)

    else:

        class WithHooks(Hooked):
            def _prepare_options(self, given):
                return options(self, super()._prepare_options(given))

            def _prepare_request(self, request):
                request.headers["X-Request"] = "1"
                super()._prepare_request(request)

    return WithHooks


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_every_hook_of_a_subclass_leaves_its_mark(kinds, alone, stream):
    """S13."""
    of_hooks = [hooked(kind) for kind in kinds]
    more = {} if alone else behind()

    def call(client):
        return client.with_options(max_retries=1).chat.completions.create(**CHAT, stream=stream)

    plain, ours = await both(of_hooks, call, ours=more)
    (expected,), (sent,) = plain.requests, ours.requests
    assert str(sent.url) == str(expected.url) == "http://server.test/v1/chat/completions?own=1"
    marks = {name: expected.headers[name] for name in MARKS}
    assert {name: sent.headers.get(name) for name in MARKS} == marks
    if alone:
        assert ours.sent() == plain.sent()
