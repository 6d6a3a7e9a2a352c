"""What watches openai's classes records the same of our clients' answers as of the SDK's."""

from __future__ import annotations

import json
import re

import openai
import pytest
from weather_server import SENTENCE

from disco import AsyncDisco, Disco
from tests.frameworks.asked import ASKED, PARIS, Place
from tests.frameworks.conftest import made
from tests.frameworks.instruments import INSTRUMENTS

pytestmark = [
    pytest.mark.anyio,
    # Traceloop's own code, when it is imported.
    pytest.mark.filterwarnings("ignore:Support for class-based `config`:DeprecationWarning"),
]

GIVEN = {"model": "m", "messages": [{"role": "user", "content": ASKED}]}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
# With a model on this machine behind the server, every answer goes through a session.
BEHIND = {"local": "smollm2-135m"}

CALLS = {
    "whole": {},
    "with its tools": {"tools": TOOLS, "temperature": 0.5, "max_tokens": 50},
    "streamed": {"stream": True},
    "streamed with usage": STREAMED,
    "streamed with tools": {**STREAMED, "tools": TOOLS},
}


def ask(client, how):
    answer = client.chat.completions.create(**GIVEN, **how)
    return "".join(map(_text, answer)) if how.get("stream") else answer.choices[0].message.content or ""


async def ask_async(client, how):
    answer = await client.chat.completions.create(**GIVEN, **how)
    if how.get("stream"):
        return "".join([_text(chunk) async for chunk in answer])
    return answer.choices[0].message.content or ""


def _text(chunk):
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


@pytest.fixture(params=INSTRUMENTS)
def spans(request):
    with INSTRUMENTS[request.param]() as taken:
        yield taken


def same(seen):
    """That something was recorded of the SDK's client, and the same of each of ours."""
    plain, *ours = seen
    assert plain
    assert all(span["attributes"] for span in plain)
    for recorded in ours:
        assert recorded == plain


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_of_each_client_is_recorded_alike(spans, server, call):
    text = "" if "tools" in CALLS[call] else SENTENCE
    seen = []
    for make, more in ((openai.OpenAI, {}), (Disco, {}), (Disco, BEHIND)):
        with made(make, server, **more) as client:
            assert ask(client, CALLS[call]) == text
        seen.append(spans())
    same(seen)
    seen = []
    for make, more in ((openai.AsyncOpenAI, {}), (AsyncDisco, {}), (AsyncDisco, BEHIND)):
        async with made(make, server, **more) as client:
            assert await ask_async(client, CALLS[call]) == text
        seen.append(spans())
    same(seen)


async def test_the_helpers_are_recorded_alike(spans, server):
    seen = []
    for make, more in ((openai.AsyncOpenAI, {}), (AsyncDisco, {}), (AsyncDisco, BEHIND)):
        async with made(make, server, **more) as client:
            parsed = await client.chat.completions.parse(**GIVEN, response_format=Place)
            assert parsed.choices[0].message.parsed == PARIS
            old = await client.beta.chat.completions.parse(**GIVEN, response_format=Place)
            assert old.choices[0].message.parsed == PARIS
            raw = await client.chat.completions.with_raw_response.create(**GIVEN)
            assert raw.parse().choices[0].message.content == SENTENCE
            async with client.chat.completions.stream(**GIVEN) as stream:
                kinds = {event.type async for event in stream}
            assert "content.done" in kinds
            assert (await stream.get_final_completion()).choices[0].message.content == SENTENCE
        seen.append(spans())
    same(seen)


async def test_the_responses_api_is_recorded_alike(spans, server):
    seen = []
    for make, more in ((openai.AsyncOpenAI, {}), (AsyncDisco, {})):
        async with made(make, server, **more) as client:
            answer = await client.responses.create(model="m", input=ASKED)
            assert answer.output_text == SENTENCE
            stream = await client.responses.create(model="m", input=ASKED, stream=True)
            assert [event.type async for event in stream][-1] == "response.completed"
        seen.append(json.loads(re.sub(r"resp_\d+", "resp_n", json.dumps(spans()))))
    if any(seen):  # OpenTelemetry's own instrument does not know this API
        same(seen)


async def test_an_error_is_recorded_alike(spans, server):
    server.base_url = "http://127.0.0.1:1/v1"  # where nothing listens
    seen = []
    for make in (openai.AsyncOpenAI, AsyncDisco):
        async with made(make, server, max_retries=0) as client:
            with pytest.raises(openai.APIConnectionError):
                await client.chat.completions.create(**GIVEN)
        seen.append(spans())
    same(seen)


def test_an_answer_of_the_model_on_this_machine_is_recorded(spans, server):
    with made(Disco, server, **BEHIND, default_options={"local_only": True}) as client:
        answer = client.chat.completions.create(**GIVEN, max_tokens=6)
        assert answer.usage.completion_tokens == 6
        (whole,) = spans()
        assert "".join(map(_text, client.chat.completions.create(**GIVEN, **STREAMED, max_tokens=6)))
        (streamed,) = spans()
    for span in (whole, streamed):
        assert answer.model in str(span["attributes"])
        usage = str([value for name, value in span["attributes"].items() if "usage" in name])
        assert {str(answer.usage.prompt_tokens), "6"} <= set(re.findall(r"\d+", usage))
