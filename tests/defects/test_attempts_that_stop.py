"""An attempt whose iterator stops without saying that it ended has failed."""

from __future__ import annotations

import anyio
import openai
import pytest
from defects.asking import MemoryServer, ask, client, continuing, preset
from defects.parts import ScriptedDevice
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture

from disco.events import Delta

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("stream", [True, False]),
    pytest.mark.parametrize("words", [[], ["The", " sea"]], ids=["before any text", "in mid-answer"]),
]


def quitting(words):
    return ScriptedDevice(lambda _: [0.1, *([Delta(word)] for word in words), 0.1])


async def test_the_other_endpoint_takes_over(words, stream):
    server = MemoryServer(continuing("The sea is wide."))
    async with client(server, local=quitting(words), policy=preset("device_only")) as one:
        with anyio.fail_after(5):
            answer = await ask(one, stream=stream)
    assert answer.text == "The sea is wide."
    assert [t.endpoint for t in answer.route.attempts] == ["device", "server"]
    assert answer.route.attempts[0].failure is not None


async def test_with_no_other_endpoint_it_is_an_error_and_soon(words, stream):
    async with client(local=quitting(words), policy=preset("device_only")) as one:
        with anyio.fail_after(5), pytest.raises(openai.OpenAIError) as caught:
            await ask(one, stream=stream)
    assert caught.value.partial_text == "".join(words)
    assert caught.value.route.finish_reason is None
