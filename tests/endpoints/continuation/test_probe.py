"""Whether a server continues: what it is asked, and what its reply proves."""

from __future__ import annotations

import contextlib
import json

import openai
import pytest
from loops import by_turns, mostly
from scripted_server import answer, chunk, scripted_server, sse, stream

from disco.endpoints.continuation import Continuation, ProbeVerdict, probe
from disco.endpoints.continuation.probe import judge

pytestmark = pytest.mark.real

SENT = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
AUTO = Continuation("auto")


@contextlib.asynccontextmanager
async def probed(*scripts):
    """The verdict on a server, and the server."""
    async with (
        scripted_server(*scripts) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client,
    ):
        yield await probe(client, "m"), server


def said(text: str):
    return stream(sse(chunk(text), chunk(finish="length")))


def test_judgement():
    replies = {"continues": (", 12, 13", ",12,13"), "echoes": (SENT + ", 12",)}
    replies["restarts"] = ("1, 2, 3, 4", "12, 13", "Tally sheet: 1, 2", SENT + "\n\nSure!", "Sure!", "")
    for outcome, texts in replies.items():
        assert [judge(text) for text in texts] == [outcome] * len(texts)


def test_a_verdict_is_kept_as_json_and_applied():
    verdict = ProbeVerdict("prefix", {"flags": "refuses", "prefix": "continues"})
    assert ProbeVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict
    assert verdict.applied_to(AUTO) == Continuation("prefix", echoes=False)
    assert ProbeVerdict("prefix", {"prefix": "echoes"}).applied_to(AUTO).known_to_echo
    assert ProbeVerdict().applied_to(AUTO) == Continuation()


@pytest.mark.anyio
@mostly("trio")
async def test_first_rung_that_works_is_taken_and_no_further_one_asked(anyio_backend):
    refused = answer(b'{"error": {"message": "continue_final_message?"}}', status="400 X")
    async with probed(refused, answer(b"{}", status="404 X"), said(", 12, 13")) as (verdict, server):
        refuses = {"flags": "refuses", "completions": "refuses"}
        assert verdict == ProbeVerdict("prefix", {**refuses, "prefix": "continues"})
        chat = "/v1/chat/completions"
        assert [line.split()[1] for line, _, _ in server.requests] == [chat, "/apply-template", chat]
        assert all(body.get("max_tokens", 8) == 8 for _, _, body in server.requests)


@pytest.mark.anyio
@mostly("asyncio")
async def test_server_that_renders(anyio_backend):
    rendered = answer(b'{"prompt": "<user>Count<assistant>"}')
    continues = stream(sse({"choices": [{"index": 0, "text": ", 12", "finish_reason": None}]}))
    async with probed(said("Sure!"), rendered, continues) as (verdict, server):
        assert (verdict.method, verdict.applied_to(AUTO).server_renders) == ("completions", True)
        assert server.requests[2][2]["prompt"] == "<user>Count<assistant>" + SENT


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "anyio_backend"), by_turns(["401 X", "429 X", "503 X"]))
async def test_server_that_cannot_be_asked_now_gets_no_verdict(status, anyio_backend):
    async with probed(answer(b"{}", status=status)) as (verdict, server):
        assert (verdict.method, verdict.conclusive, len(server.requests)) == ("none", False, 1)
