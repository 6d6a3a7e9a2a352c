"""A finish reason that says failure: another endpoint goes on; where none can, the reader has what the SDK gives."""

from __future__ import annotations

import pytest
from answers.two_servers import GOOD, called, document, good, stub, told, two
from faults.in_memory import Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

_BUSY = Reply([b"{}"], status=500)
_CUT = stub({"content": "The Elbe"})


@both
@pytest.mark.parametrize("reason", ["abort", "network_error", "ERROR", "Cancelled"])
async def test_another_endpoint_goes_on(reason, stream):
    client, _ = two(stub({"content": "The "}, finish=reason), good(), continuation="flags")
    async with client:
        got = await told(client, stream=stream)
        assert (got.finish, got.error) == ("stop", None)
        assert got.tried == [("server", "incomplete"), ("good", None)]


@both
@pytest.mark.parametrize("continuation", ["none", "flags"])
@pytest.mark.parametrize("second", [_BUSY, _CUT], ids=["fails", "is cut"])
async def test_it_is_delivered_where_the_other_fails(second, continuation, stream):
    """The answer of the first, with its own reason: so does the SDK, with one request."""
    first = stub({"content": "The Rhine "}, {"content": "is"}, finish="abort")
    client, _ = two(first, second, continuation=continuation, max_retries=0)
    async with client:
        got = await told(client, stream=stream)
        assert (got.finish, got.error) == ("abort", None)
        assert got.text.startswith("The Rhine ")
        if second is _BUSY:
            assert got.text == "The Rhine is"
        assert [name for name, _ in got.tried].count("server") == 1


@both
async def test_a_call_is_delivered_where_the_other_fails(stream):
    first = stub(called("{}", name="weather"), finish="abort")
    client, _ = two(first, _BUSY, max_retries=0)
    async with client:
        got = await told(client, stream=stream)
        assert (got.calls, got.finish, got.error) == ({0: "{}"}, "abort", None)


async def test_whoever_began_anew_and_failed_leaves_nothing():
    client, _ = two(document({"content": "The Rhine"}, "timeout"), _CUT, max_retries=0)
    async with client:
        got = await told(client, stream=False)
        assert (got.text, got.finish, got.error) == ("The Rhine", "timeout", None)


@both
async def test_a_filter_has_not_failed(stream):
    client, server = two(stub({"content": "The "}, finish="ERROR_TOXIC"), good())
    async with client:
        got = await told(client, stream=stream)
        assert (got.text, got.finish, len(server.requests)) == ("The ", "ERROR_TOXIC", 1)
        assert got.text != GOOD
