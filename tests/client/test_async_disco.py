"""The drop-in client on the real model and the real server: an app changes the constructor and nothing else."""

from __future__ import annotations

import json
import threading

import anyio
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from promptly import promptly

import disco
from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = [pytest.mark.real, pytest.mark.anyio]

# The SDK's helpers leave their own generators open, which trio remarks on; the plain client's do the same.
sdk_leaves_generators = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning",
    "ignore:Async generator 'openai:ResourceWarning",
    "ignore:Async generator 'httpx2:ResourceWarning",
)


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request):
    """A real model does not know which loop it is; the moves below take both in every run."""
    return request.param


SEA = [{"role": "user", "content": "Tell me about the sea."}]
ONE_TOKEN_HERE = {
    "model": "m",
    "messages": SEA,
    "max_tokens": 1,
    "extra_body": {"disco": {"local_only": True}},
}
DEAR_SERVER = {"exchange_rate": 0.0}
DEAR_DEVICE = {"exchange_rate": 1e-6}


@pytest.fixture(scope="module")
def device():
    return LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=2048, threads=1)


@pytest.fixture(scope="module", autouse=True)
def close_device(device):
    yield
    anyio.run(device.aclose)


def preset(policy: str, cost=DEAR_SERVER, pace=5.0, migrate=True, order="make_before_break") -> Preset:
    return Preset(
        dispatch={"policy": policy},
        cost=cost,
        playback={"pace_tps": pace},
        migration={"enabled": migrate, "order": order},
    )


def client(llama_server, device, policy, **more) -> AsyncDisco:
    continuation = Continuation(method="completions", template=str(llama_server.gguf))
    return AsyncDisco(
        local=device,
        policy=policy,
        base_url=llama_server.base_url,
        api_key="test-key",
        continuation=more.pop("continuation", continuation),
        **more,
    )


async def read(stream) -> str:
    text = ""
    async for chunk in stream:
        assert isinstance(chunk, ChatCompletionChunk)
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    return text


async def test_a_stream_of_a_race_looks_like_the_sdks_own(llama_server, device):
    async with client(llama_server, device, preset("race")) as c:
        asked = {"max_tokens": 12, "temperature": 0, "stream_options": {"include_usage": True}}
        stream = await c.chat.completions.create(model=llama_server.model, messages=SEA, stream=True, **asked)
        chunks = [chunk async for chunk in stream]
    assert len({(c.id, c.model, c.created) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [*[None] * (len(chunks) - 2), "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens >= 5  # exact on the device; this server does not tell in streams
    assert stream.route.finish_reason == "length"
    assert stream.route.seamless


async def test_both_sides_answer_alike_with_and_without_streaming(llama_server, device):
    """The same file on both sides; only arithmetic (batch sizes, cache) may tell greedy answers apart, late."""
    texts = set()
    async with openai.AsyncOpenAI(base_url=llama_server.base_url, api_key="x") as plain:
        ask = {"model": llama_server.model, "messages": SEA, "max_tokens": 12, "temperature": 0}
        texts.add((await plain.chat.completions.create(**ask)).choices[0].message.content)
        for policy in ("device_only", "server_only"):
            async with client(llama_server, device, preset(policy)) as c:
                answer = await c.chat.completions.create(**ask)
                assert isinstance(answer, ChatCompletion)
                assert answer.choices[0].finish_reason == "length"
                assert answer.route.winner == policy.removesuffix("_only")
                json.dumps(answer.model_dump())
                texts.add(answer.choices[0].message.content)
                texts.add(await read(await c.chat.completions.create(**ask, stream=True)))
    assert len({text[:12] for text in texts}) == 1


@pytest.mark.parametrize(
    ("source", "order", "anyio_backend"),
    [
        ("server", "make_before_break", "asyncio"),
        ("server", "break_before_make", "trio"),
        ("device", "make_before_break", "trio"),
        ("device", "break_before_make", "asyncio"),
    ],
)
async def test_an_answer_moves_between_real_endpoints_without_a_trace(llama_server, device, source, order):
    cost = DEAR_SERVER if source == "server" else DEAR_DEVICE
    policy = preset(f"{source}_only", cost=cost, order=order)
    async with client(llama_server, device, policy) as c:
        await c.warm_up()
        stream = await c.chat.completions.create(
            model=llama_server.model, messages=SEA, stream=True, max_tokens=100, temperature=0
        )
        text = await read(stream)
    route = stream.route
    assert [t.outcome for t in route.migrations][-1] == "switched"
    assert [p.endpoint for p in route.segments] == [source, "device" if source == "server" else "server"]
    assert route.seamless
    assert route.segments[-1].end_char == len(text)
    assert route.answer_tokens <= 100
    # The cut is between words.
    cut = route.segments[0].end_char
    assert text[cut].isspace() or not text[cut].isalnum() or not text[cut - 1].isalnum()


async def test_a_server_that_dies_in_mid_answer_is_replaced(llama_server, device):
    dying = SimulatedEndpoint(
        "server",
        SimulatedProfile(
            answer="The sea is wide and deep and full of fish, " * 4,
            decode_tps=200.0,
            fault=Fault(20, kind=FailureKind.CONNECTION),
        ),
    )
    async with client(llama_server, device, preset("server_only", migrate=False)) as c:
        c.server = dying
        stream = await c.chat.completions.create(model="m", messages=SEA, stream=True, max_tokens=30)
        text = await read(stream)
    assert text.startswith("The sea is wide and deep and full of fish, The sea")
    assert [p.endpoint for p in stream.route.segments] == ["server", "device"]
    assert stream.route.seamless
    assert [t.failure for t in stream.route.attempts] == ["connection", None]


@sdk_leaves_generators
async def test_leaving_the_stream_helper_stops_the_answer(device):
    async with AsyncDisco(local=device, policy="private") as c:
        async with c.chat.completions.stream(model="m", messages=SEA, max_tokens=400) as stream:
            async for _ in stream:
                break
        assert c.router.statistics.seen == 1  # it has been charged and learnt from: nothing of it runs


async def test_a_copy_knows_how_the_server_continues(llama_server, device):
    auto = Continuation(method="auto", template=str(llama_server.gguf))
    async with client(llama_server, device, "balanced", continuation=auto) as c:
        await c.warm_up()
        assert c.server.capabilities("any").continues
        assert c.with_options(timeout=3).server.capabilities("any").continues


async def test_an_unreachable_server_is_a_connection_error_or_a_local_answer(device):
    nobody = "http://127.0.0.1:9/v1"
    async with AsyncDisco(local=None, policy="balanced", base_url=nobody, api_key="x", max_retries=0) as c:
        with pytest.raises(openai.APIConnectionError) as caught:
            await c.chat.completions.create(model="m", messages=SEA)
        assert len(caught.value.route.attempts) == 1
        with pytest.raises(openai.APIConnectionError) as caught:
            await c.with_options(max_retries=1).chat.completions.create(model="m", messages=SEA)
        assert len(caught.value.route.attempts) == 2
    async with AsyncDisco(local=device, policy=preset("server_only"), base_url=nobody, api_key="x") as c:
        answer = await c.chat.completions.create(model="m", messages=SEA, max_tokens=5)
        assert answer.route.winner == "device"
        assert answer.route.attempts[0].failure == "connection"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"local": "smollm2-135m", "policy": "balnced"}, "balanced"),
        ({"local": "smolm2-135m"}, "smollm2-135m"),
        ({"local": "/nowhere/model.gguf"}, "/nowhere/model.gguf"),
        ({"policy": "private", "api_key": "x"}, "local"),
        ({"policy": "balanced", "api_key": "x", "server_profile": "gpt-4o-mni-2024"}, "gpt-4o-mini-2024"),
        ({"policy": "fast", "local": "smollm2-135m"}, "api_key"),
        ({"api_key": "x", "continuation": "flag"}, "flags"),
    ],
)
async def test_a_wrong_configuration_says_what_to_write_instead(arguments, says, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(disco.DiscoError, match=says):
        async with AsyncDisco(**arguments) as c:
            await c.warm_up()


async def test_a_broken_gguf_is_named(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 100)
    async with AsyncDisco(local=broken, policy="private") as c:
        with pytest.raises(openai.OpenAIError, match=r"broken\.gguf"):
            await c.chat.completions.create(model="m", messages=SEA)


@pytest.mark.parametrize("after_chunks", [0, 5])
async def test_a_stream_that_is_closed_leaves_nothing_running(llama_server, device, after_chunks):
    threads = threading.active_count()
    async with client(llama_server, device, preset("race")) as c:
        stream = await c.chat.completions.create(model="m", messages=SEA, stream=True, max_tokens=500)
        for _ in range(after_chunks):
            await anext(aiter(stream))
        await stream.close()
        await stream.close()
        assert stream.route.finish_reason == "cancelled"
        assert all(t.outcome != "running" for t in stream.route.attempts)
        # The model is free again at once.
        with promptly():
            await c.chat.completions.create(**ONE_TOKEN_HERE)
    assert threading.active_count() <= threads + 1  # the model's own thread stays for the next test


@pytest.mark.parametrize("after_s", [0.0, 0.2])
async def test_a_cancelled_call_leaves_nothing_running(llama_server, device, after_s):
    async with client(llama_server, device, preset("race")) as c:
        with anyio.move_on_after(after_s):
            await c.chat.completions.create(model="m", messages=SEA, max_tokens=400)
        with promptly():
            await c.chat.completions.create(**ONE_TOKEN_HERE)


async def test_many_answers_at_once_do_not_mix(llama_server, device):
    answers = {}

    async def ask(c, number):
        stream = await c.chat.completions.create(
            model=llama_server.model,
            messages=[{"role": "user", "content": f"Say the number {number}."}],
            stream=True,
            max_tokens=8,
            temperature=0,
        )
        answers[number] = (await read(stream), stream.route)

    async with client(llama_server, device, preset("race")) as c, anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(ask, c, number)
    assert len(answers) == 4
    assert all(route.seamless and route.finish_reason for _, route in answers.values())


async def test_copies_share_the_model_and_what_was_learnt(llama_server, device):
    routes = []
    async with client(llama_server, device, preset("device_only"), on_route=routes.append) as c:
        copy = c.with_options(timeout=20)
        assert isinstance(copy, AsyncDisco)
        assert copy.timeouts.gap_s == 20
        await copy.chat.completions.create(model="m", messages=SEA, max_tokens=3)
        assert len(routes) == 1


async def test_keys_and_prompts_are_in_no_repr_log_or_record(llama_server, device, caplog):
    caplog.set_level("DEBUG", logger="disco")
    async with client(llama_server, device, preset("race")) as c:
        secret = [{"role": "user", "content": "CANARY-PROMPT says hello"}]
        stream = await c.chat.completions.create(model="m", messages=secret, stream=True, max_tokens=8)
        await read(stream)
        seen = repr(c) + repr(stream) + repr(stream.route) + stream.route.to_json() + caplog.text
    assert "CANARY-PROMPT" not in seen
    assert "test-key" not in seen
