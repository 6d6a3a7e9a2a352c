"""The server endpoint and the probe against the real llama-cpp-python server."""

from __future__ import annotations

import openai
import pytest
from loops import mostly

from disco.endpoints.continuation import Continuation, ProbeVerdict
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.request import Timeouts
from tests.endpoints.openai_api.asking import ask, collect, text_of

pytestmark = [pytest.mark.real, pytest.mark.anyio]

QUESTION = [{"role": "user", "content": "Write three short sentences about the sea."}]


@pytest.fixture
async def client(llama_server):
    async with openai.AsyncOpenAI(base_url=llama_server.base_url, api_key="none") as client:
        yield client


@mostly("asyncio")
async def test_same_text_as_the_sdk(llama_server, client):
    params = {"model": llama_server.model, "max_tokens": 16, "temperature": 0}

    async def sdk():
        return await client.chat.completions.create(messages=QUESTION, **params)

    # A prompt that the server still holds is computed differently from a new one, so greedy answers may
    # differ; the first request makes it the same for the two that are compared.
    await sdk()
    asked = ask(messages=QUESTION, timeouts=Timeouts(10, 120, 60, 240), **params)
    deltas, ended = await collect(OpenAIEndpoint(client=client).open(asked))
    answer = await sdk()
    assert text_of(deltas) == answer.choices[0].message.content
    assert ended.finish_reason == answer.choices[0].finish_reason
    assert sum(delta.tokens for delta in deltas) == answer.usage.completion_tokens


@mostly("trio")
async def test_auto_finds_that_only_a_rendered_prompt_continues(llama_server, client):
    endpoint = OpenAIEndpoint(client=client, continuation=Continuation("auto"))
    verdict = await endpoint.probe(llama_server.model)
    restarts = dict.fromkeys(("flags", "prefix", "trailing"), "restarts")
    assert (verdict.method, verdict.outcomes) == ("none", {**restarts, "completions": "refuses"})
    assert not endpoint.capabilities(llama_server.model).continues
    with_template = Continuation("auto", template=str(llama_server.gguf))
    endpoint = OpenAIEndpoint(client=client, continuation=with_template)
    await endpoint.warm_up()
    (verdict,) = {id(v): v for v in endpoint.verdicts.values()}.values()
    assert verdict == ProbeVerdict("completions", {"flags": "restarts", "completions": "continues"})
    assert endpoint.capabilities("another name for it").continues
