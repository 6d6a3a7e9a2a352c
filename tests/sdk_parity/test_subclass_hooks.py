"""S13: what a subclass overrides of the SDK's client reaches every request, routed ones too."""

from __future__ import annotations

import pytest
from sdk_parity.side_by_side import CHAT, behind, both, is_async

pytestmark = pytest.mark.anyio

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
async def test_every_hook_leaves_its_mark(kinds, alone, stream):
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
