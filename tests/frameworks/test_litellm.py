"""LiteLLM asks through our clients as through the SDK's, and its callbacks are told the same."""

from __future__ import annotations

import os

import anyio
import openai
import pytest
from weather_server import SENTENCE

from disco import AsyncDisco, Disco
from tests.frameworks.asked import ASKED
from tests.frameworks.conftest import made

os.environ.setdefault(
    "LITELLM_LOCAL_MODEL_COST_MAP", "True"
)  # else it asks for prices over the net when imported
litellm = pytest.importorskip("litellm", reason="LiteLLM is not installed: make test-frameworks")
custom_logger = pytest.importorskip("litellm.integrations.custom_logger")

pytestmark = [
    pytest.mark.anyio,
    # Of LiteLLM's own code.
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "UserWarning", "ResourceWarning")
    ),
]

ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": ARGUMENTS}}]
GIVEN = {"model": "openai/m", "messages": [{"role": "user", "content": ASKED}], "num_retries": 0}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
BEHIND = {"local": "smollm2-135m"}  # every answer then goes through a session
CALLS = ({}, {"tools": TOOLS}, STREAMED, {**STREAMED, "tools": TOOLS})


class Told(custom_logger.CustomLogger):
    """What LiteLLM tells its callbacks of each answer, from threads and tasks of its own."""

    def __init__(self):
        super().__init__()
        self.answers = []

    def log_success_event(self, kwargs, response_obj, start_time, end_time):
        payload = kwargs["standard_logging_object"]
        names = ("model", "prompt_tokens", "completion_tokens", "total_tokens", "messages")
        self.answers.append({name: payload[name] for name in names} | {"answer": said(response_obj)})

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.log_success_event(kwargs, response_obj, start_time, end_time)

    async def of(self, answers):
        """What was told of so many answers; the next ones are counted from none."""
        with anyio.fail_after(60):
            while len(self.answers) < answers:  # noqa: ASYNC110 - it is LiteLLM's state
                await anyio.sleep(0.01)
        taken, self.answers = self.answers, []
        return sorted(taken, key=str)


@pytest.fixture(scope="module")
def told():
    litellm.callbacks = [Told()]  # it keeps the first of a kind for good
    return litellm.callbacks[0]


def said(answer):
    """All of an answer or chunk but the second it was made in."""
    return answer.model_dump(exclude={"created"})


async def test_the_asynchronous_client(server, told):
    seen = []
    for make, more in ((openai.AsyncOpenAI, {}), (AsyncDisco, {}), (AsyncDisco, BEHIND)):
        got = []
        async with made(make, server, **more) as client:
            for how in CALLS:
                answer = await litellm.acompletion(**GIVEN, **how, client=client)
                got.append([said(chunk) async for chunk in answer] if "stream" in how else said(answer))
        seen.append((got, await told.of(len(CALLS))))
    same(seen)


def test_the_synchronous_client(server, told):
    seen = []
    for make, more in ((openai.OpenAI, {}), (Disco, {}), (Disco, BEHIND)):
        got = []
        with made(make, server, **more) as client:
            for how in CALLS:
                answer = litellm.completion(**GIVEN, **how, client=client)
                got.append([said(chunk) for chunk in answer] if "stream" in how else said(answer))
        seen.append((got, anyio.run(told.of, len(CALLS))))
    same(seen)


def same(seen):
    """That each of our clients gave the answers, and LiteLLM said of them, what it did with the SDK's."""
    (answers, told), *ours = seen
    assert answers[0]["choices"][0]["message"]["content"] == SENTENCE
    assert {one["total_tokens"] for one in told} == {25}
    for recorded in ours:
        assert recorded == (answers, told)
