"""The server endpoint and the probe against the real llama-cpp-python server."""

from __future__ import annotations

import anyio
import openai
import pytest
from loops import mostly

from disco.endpoints.continuation import Continuation, ProbeVerdict
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, Ended
from disco.request import Prefix, Request, Timeouts

pytestmark = pytest.mark.anyio

PATIENT = Timeouts(10, 120, 60, 240)
QUESTION = [{"role": "user", "content": "Write three short sentences about the sea."}]


def ask(server, *, messages=QUESTION, **params) -> Request:
    params = {"temperature": 0, **params}
    return Request(messages=messages, model=server.model, params=params, timeouts=PATIENT)


async def collect(attempt) -> tuple[list[Delta], Ended]:
    deltas: list[Delta] = []
    async with attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                return deltas, event
            deltas += event
    raise AssertionError("no end")


def text_of(deltas) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.fixture
async def client(llama_server):
    async with openai.AsyncOpenAI(base_url=llama_server.base_url, api_key="none") as client:
        yield client


@mostly("asyncio")
async def test_same_text_as_the_sdk(llama_server, client):
    async def sdk():
        return await client.chat.completions.create(
            messages=QUESTION, model=llama_server.model, max_tokens=16, temperature=0
        )

    # A prompt that the server still holds is computed differently from a new one, so greedy answers may
    # differ; the first request makes it the same for the two that are compared.
    await sdk()
    deltas, ended = await collect(OpenAIEndpoint(client=client).open(ask(llama_server, max_tokens=16)))
    answer = await sdk()
    assert text_of(deltas) == answer.choices[0].message.content
    assert ended.finish_reason == answer.choices[0].finish_reason
    assert sum(delta.tokens for delta in deltas) == answer.usage.completion_tokens


@mostly("trio")
async def test_auto_finds_that_only_a_rendered_prompt_continues(llama_server, client):
    endpoint = OpenAIEndpoint(
        client=client, continuation=Continuation("auto", template=str(llama_server.gguf))
    )
    assert not endpoint.capabilities(llama_server.model).continues
    await endpoint.warm_up()
    (verdict,) = {id(v): v for v in endpoint.verdicts.values()}.values()
    assert verdict == ProbeVerdict("completions", {"flags": "restarts", "completions": "continues"})
    assert endpoint.capabilities("another name for it").continues


@mostly("asyncio")
async def test_chat_of_this_server_is_found_not_to_continue(llama_server, client):
    endpoint = OpenAIEndpoint(client=client, continuation=Continuation("auto"))
    verdict = await endpoint.probe(llama_server.model)
    assert verdict.method == "none"
    assert verdict.outcomes == {
        "flags": "restarts",
        "completions": "refuses",
        "prefix": "restarts",
        "trailing": "restarts",
    }
    assert not endpoint.capabilities(llama_server.model).continues


@mostly("trio")
async def test_a_rendered_prompt_continues_where_the_answer_was_cut(llama_server, client):
    continuation = Continuation("completions", template=str(llama_server.gguf))
    endpoint = OpenAIEndpoint(client=client, continuation=continuation)
    messages = [{"role": "user", "content": "Count from 1 to 20 in digits, separated by commas."}]
    sent = "1, 2, 3, 4, 5, 6, 7, 8, 9"
    prefix = Prefix(sent + ", 10,", tokens=20, withheld=", 10,")
    deltas, ended = await collect(endpoint.open(ask(llama_server, messages=messages, max_tokens=40), prefix))
    assert text_of(deltas).startswith(" 11, 12")
    assert ended.finish_reason in ("stop", "length")
    assert "<|im_end|>" not in text_of(deltas)


async def test_prompt_that_is_too_long_is_told_apart(llama_server, client):
    messages = [{"role": "user", "content": "word " * 3000}]
    attempt = OpenAIEndpoint(client=client).open(ask(llama_server, messages=messages))
    with pytest.raises(EndpointFailure) as caught:
        await collect(attempt)
    # The server has answered 200 by the time it counts: the stream then just ends.
    assert caught.value.kind in (FailureKind.CONTEXT_LENGTH, FailureKind.CONNECTION, FailureKind.INCOMPLETE)


async def test_cancelled_answer_frees_the_server(llama_server, client):
    endpoint = OpenAIEndpoint(client=client)
    attempt = endpoint.open(ask(llama_server, max_tokens=1500))
    seen = 0
    with anyio.CancelScope() as scope:
        async for batch in attempt:
            seen += sum(delta.tokens for delta in batch)
            if seen >= 3:
                scope.cancel()
    assert attempt.usage.completion_tokens == seen
    # The server works on one request at a time: this one only starts when the other one has stopped, and
    # 1,500 tokens take many times what two do.
    started_at = anyio.current_time()
    deltas, _ = await collect(endpoint.open(ask(llama_server, max_tokens=2)))
    assert text_of(deltas)
    assert anyio.current_time() - started_at < 5
