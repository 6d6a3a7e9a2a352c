"""A half-written answer that travels as token ids: only to a server that has proved the same vocabulary."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from faults.lab import get
from local_servers.desks import collected, endpoint_at
from scripted_server import answer, scripted_server

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.continuation.prefix_token_ids import proved_vocabulary
from disco.endpoints.continuation.probe import ProbeVerdict
from disco.endpoints.gguf_header import read_header, read_tokens
from disco.profiles import QuantileTable, ServerProfile
from disco.request import Prefix, Request, Timeouts

pytestmark = [pytest.mark.real, pytest.mark.anyio]

COUNT = [{"role": "user", "content": "Count from 1 to 30."}]
BEGUN = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
NEAR = {"levels": (0.0, 0.5, 1.0), "values": (0.05, 0.2, 0.5), "mean": 0.25}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def watched(bodies):
    async def note(request):
        if request.method == "POST":
            bodies.append((request.url.path, json.loads(request.content)))

    return httpx2.AsyncClient(event_hooks={"request": [note]})


async def test_the_vocabulary_is_proved_by_asking(native_server):
    async with openai.AsyncOpenAI(base_url=native_server.base_url, api_key="none") as client:
        fingerprint = await proved_vocabulary(client, native_server.gguf)
    assert fingerprint == read_header(native_server.gguf).vocabulary is not None
    assert len(read_tokens(native_server.gguf)) == 49152


async def test_another_vocabulary_or_none_is_found_out(native_server, tmp_path):
    size = len(read_tokens(native_server.gguf))
    for tokens, spelled in ((size, {"content": "other words"}), (size + 1, {}), (size, {})):
        models = {"data": [{"id": "m", "meta": {"n_vocab": tokens}}]}
        scripts = [answer(json.dumps(body).encode()) for body in (models, spelled)]
        async with (
            scripted_server(*scripts) as server,
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
        ):
            assert await proved_vocabulary(client, native_server.gguf) is None
    async with openai.AsyncOpenAI(base_url=native_server.base_url, api_key="none") as client:
        assert await proved_vocabulary(client, tmp_path / "no.gguf") is None


def test_a_verdict_keeps_it():
    verdict = ProbeVerdict("flags", {"flags": "continues"}, vocabulary="gguf:1")
    assert ProbeVerdict.from_dict(verdict.to_dict()) == verdict
    assert ProbeVerdict.from_dict({"method": "none", "outcomes": {}}).vocabulary is None


async def test_ids_continue_as_the_text_would(native_server):
    async with endpoint_at(native_server.base_url) as local:
        await local.warm_up()
        vocabulary = local.capabilities().vocabulary
        assert vocabulary == read_header(native_server.gguf).vocabulary
        root = native_server.base_url.removesuffix("/v1")
        ids = tuple(httpx2.post(f"{root}/tokenize", json={"content": BEGUN}).json()["tokens"])
        request = Request(COUNT, model="m", params={"max_tokens": 5, "temperature": 0})
        texts = []
        for given in (
            Prefix(BEGUN, 0),
            Prefix(BEGUN, 0, ids, vocabulary),
            Prefix(BEGUN, 0, ids, "gguf:another"),
        ):
            _, text, _ = await collected(local.open(request, given))
            texts.append(text)
    assert texts[0].startswith(", 12")
    assert texts == [texts[0]] * 3


async def test_an_answer_of_the_device_moves_as_ids(native_server, thread_model):
    """From llama.cpp in this process to a llama-server that has proved the file's vocabulary."""
    preset = Preset(
        name="lab",
        dispatch={"policy": "device_only"},
        cost={"exchange_rate": 1e-7},
        playback={"pace_tps": 6.0},
        migration={"order": "break_before_make"},
    )
    bodies: list[tuple[str, dict]] = []
    client = AsyncDisco(
        local=thread_model,
        policy=preset,
        continuation=Continuation("auto", template=str(native_server.gguf)),
        timeouts=Timeouts(connect_s=20.0, first_content_s=60.0, gap_s=60.0, total_s=120.0),
        price=(0.15, 0.6),
        server_profile=ServerProfile(
            name="near", source="loopback", licence="-", rows=1, ttft_s=QuantileTable(**NEAR)
        ),
        base_url=native_server.base_url,
        api_key="none",
        http_client=watched(bodies),
    )
    async with client:
        await client.warm_up(model=native_server.model)
        for _ in range(4):
            bodies.clear()
            found = await get(client, messages=COUNT, max_tokens=40, temperature=0, model="smollm2-135m")
            if len(found.route.segments) == 2:
                break
    assert [p.endpoint for p in found.route.segments] == ["device", "server"]
    assert found.route.seamless
    path, body = bodies[-1]
    assert path == "/v1/completions"
    head, *ids = body["prompt"]
    assert head.endswith("<|im_start|>assistant\n")
    tokens = read_tokens(native_server.gguf)
    spelled = "".join(tokens[number].decode() for number in ids)
    spelled = spelled.replace("\u0120", " ").replace("\u010a", "\n")
    assert spelled
    assert found.text.startswith(spelled)
