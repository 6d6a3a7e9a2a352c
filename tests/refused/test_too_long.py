"""A prompt that is too long for one server is answered by another, in whatever words and shape the server says so."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from defects.asking import MODEL, ask, client, preset, tried
from faults.in_memory import MemoryServer, Reply, spoken
from refused.worded import NOT_TOO_LONG, TOO_LONG, Worded

from disco import Backup

pytestmark = pytest.mark.anyio

ANSWER = spoken(["The sea ", "is wide."])


def asking(reply: Reply):
    """A client of a server that replies so, with another server behind it."""
    server = MemoryServer(reply)
    http = httpx2.AsyncClient(transport=server)
    at = {"base_url": server.also(ANSWER), "api_key": "another-secret-5678", "model": "longer"}
    backups = [Backup(**at, price=(1.0, 1.0), http_client=http, continuation="none")]
    return client(server, preset=preset("server_only"), backups=backups), server


def in_stream(worded: Worded) -> Reply:
    """The same error as an object in a stream that had begun well."""
    body = worded.body
    error = body.get("error", body) if isinstance(body, dict) else body
    return Reply([b"data: " + json.dumps({"error": error}).encode() + b"\n\n"])


@pytest.mark.parametrize("worded", TOO_LONG, ids=str)
async def test_the_endpoint_with_the_longer_context_answers(worded):
    replies = [(worded.reply, stream) for stream in (False, True)]
    if worded.status != 413 and not worded.who.startswith("a proxy"):  # what says so stands beside the error
        replies.append((in_stream(worded), True))
    for reply, stream in replies:
        one, server = asking(reply)
        async with one:
            answer = await ask(one, stream=stream)
        assert answer.text == "The sea is wide."
        assert tried(answer) == [("server", "context_length"), ("backup-1", None)]
        assert [body["model"] for body in server.requests] == [MODEL, "longer"], "asked once"


@pytest.mark.parametrize("worded", NOT_TOO_LONG, ids=str)
async def test_what_is_worded_alike_keeps_its_kind(worded):
    one, server = asking(worded.reply)
    async with one:
        if worded.kind == "bad_request":
            with pytest.raises(openai.APIStatusError) as caught:
                await ask(one, stream=False)
            assert caught.value.status_code == worded.status
            assert tried(caught.value) == [("server", worded.kind)]
            assert len(server.requests) == 1
        else:
            answer = await ask(one, stream=False)
            assert tried(answer)[0] == ("server", worded.kind)


# In a stream, or beside the general status of a refusal, a number for a code is the status.
CODES = [
    *((code, "bad_request") for code in (400, "400", 422)),
    *((code, "account") for code in (401, 402, "403", 451)),
    *((code, "rate_limit") for code in (429, "429", 498)),
    *((code, "server") for code in (408, 424, 499, 500, "502", 502.0, 529)),
    *((code, "garbage") for code in (404, 405)),
    *((code, "context_length") for code in (413, "413")),
    *((code, "server") for code in (0, 1261, "20015", -400, True, None, float("nan"))),
]


@pytest.mark.parametrize(("code", "kind"), CODES)
async def test_a_number_for_a_code_is_the_status_in_a_stream_too(code, kind):
    error = json.dumps({"error": {"message": "upstream provider disconnected", "code": code}}).encode()
    for steps in ([b"data: " + error + b"\n\n"], [*ANSWER.steps[:2], b"data: " + error + b"\n\n"]):
        one, server = asking(Reply(steps))
        async with one:
            if kind == "bad_request":
                with pytest.raises(openai.APIError) as caught:
                    await ask(one, stream=False)
                assert tried(caught.value) == [("server", kind)]
                assert len(server.requests) == 1
            else:
                assert tried(await ask(one, stream=False)) == [("server", kind), ("backup-1", None)]


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (498, {"message": "Flex tier capacity exceeded."}, "rate_limit"),
        (499, {"message": "The operation was cancelled.", "status": "CANCELLED"}, "server"),
        (529, {"message": "Overloaded", "type": "overloaded_error"}, "server"),
        (424, {"message": "Request failed during generation", "type": "generation"}, "server"),
        (400, {"message": "User location is not supported for the API use.", "code": 400}, "account"),
        (400, {"message": "The provided model identifier is invalid."}, "model"),
        (
            400,
            {"message": "Invocation of model ID x with on-demand throughput isn’t supported."},
            "model",
        ),
        (403, {"message": "Your organization must be verified to use the model `x`."}, "model"),
        (
            400,
            {"message": "Your organization must be verified to stream this model.", "param": "stream"},
            "unserved",
        ),
        (400, {"message": "Provider returned error", "code": 502}, "server"),
        (400, {"message": "Provider returned error", "code": "402"}, "account"),
        (400, {"error": True, "message": "Insufficient Balance"}, "account"),
        (422, {"detail": [{"loc": ["header"], "msg": "invalid api key"}]}, "bad_request"),
    ],
)
async def test_a_refusal_by_one_endpoint_is_the_callers_only_where_every_endpoint_would_refuse(
    status, error, kind
):
    for stream in (False, True):
        one, _ = asking(Reply([json.dumps(error).encode()], status, {"content-type": "application/json"}))
        async with one:
            if kind == "bad_request":
                with pytest.raises(openai.APIStatusError):
                    await ask(one, stream=stream)
            else:
                assert tried(await ask(one, stream=stream)) == [("server", kind), ("backup-1", None)]
