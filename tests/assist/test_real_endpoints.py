"""Divided answers with a real model in this process and in its own, and llama.cpp's own server behind a proxy."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

from disco import AsyncDisco
from disco.endpoints.continuation import Continuation
from disco.profiles import DeviceProfile, QuantileTable, ServerProfile
from disco.session.records.route_record import RouteRecord
from disco.testing import shape

pytestmark = [pytest.mark.real, pytest.mark.anyio]

# Claims, so that the plan does not depend on the machine: the device takes seconds for such a prompt on any machine.
DEVICE = DeviceProfile(name="claimed", source="test", prefill_tps=300.0, decode_tps=25.0)
SERVER = ServerProfile(
    name="claimed",
    source="test",
    licence="none",
    rows=1,
    ttft_s=QuantileTable(levels=(0.0, 1.0), values=(0.1, 0.2), mean=0.15),
    tpot_s=QuantileTable(levels=(0.0, 1.0), values=(0.02, 0.02), mean=0.02),
)
RIVER = (
    "Tell me about the river. " + "It runs by the old mill, past the weir and the willows, to the sea. " * 15
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["thread", pytest.param("process", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_model")


async def ask(client: AsyncDisco, server: Any, messages: Any, max_tokens: int) -> tuple[str, RouteRecord]:
    """One answer, after the server has read the prompt: on few cores no server reads faster than the device."""
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as direct:
        await direct.chat.completions.create(model="smollm2-135m", messages=messages, max_tokens=1)
    with anyio.fail_after(120):
        stream = await client.chat.completions.create(
            model="smollm2-135m", messages=messages, max_tokens=max_tokens, temperature=0.0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    return text, stream.route


@pytest.mark.slow
async def test_an_answer_is_handed_over_and_its_prompt_read_once_also_by_later_turns(model, native_server):
    """The server's own count of its tokens is within its limit, and no token of the conversation is read again."""
    port = int(native_server.base_url.split(":")[2].split("/")[0])
    how = Continuation(method="completions", template=str(native_server.gguf))
    messages: list[dict[str, str]] = [{"role": "user", "content": RIVER}]
    async with shape(port, 0.05) as proxy:
        client = AsyncDisco(
            local=model,
            base_url=proxy.base_url,
            api_key="none",
            policy="assist",
            price=(0.15, 0.60),
            device_profile=DEVICE,
            server_profile=SERVER,
            continuation=how,
        )
        async with client:
            text, route = await ask(client, native_server, messages, 48)
            assert route.assist.outcome == "handed_over"
            assert route.seamless
            assert route.segments[-1].end_char == len(text)
            server, follower, target = route.attempts
            assert 0 < server.completion_tokens <= route.assist.tokens
            assert (server.endpoint, follower.outcome, target.outcome) == ("server", "parked", "finished")
            assert follower.cached_tokens < 40  # what its template begins every conversation with
            assert target.cached_tokens >= target.prompt_tokens - 8  # from a word boundary on
            read_by = follower.prompt_tokens
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "What lives there?"},
            ]
            text, route = await ask(client, native_server, messages, 2)
    first = next(a for a in route.attempts if a.endpoint == "device")
    assert first.cached_tokens >= read_by - 8
