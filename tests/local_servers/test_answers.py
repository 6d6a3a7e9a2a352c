"""Each server as the local side of a whole client: moves both ways, and what stays here.

All of it with real SmolLM2. Greedy answers of one model in two servers may differ in a word, so the text is held to
the route record: each piece of it is what its writer wrote, without a gap and without an overlap.
"""

from __future__ import annotations

import json
import zlib

import httpx2
import openai
import pytest
from faults.lab import get, preset
from local_servers.desks import collected, endpoint_at
from quirks.ollama import Ollama
from quirks.server import KnownText, running
from scripted_server import answer as answering
from scripted_server import scripted_server

from disco import AsyncDisco, LocalServer
from disco.endpoints.continuation import Continuation
from disco.endpoints.continuation.prefix_token_ids import proved_vocabulary
from disco.endpoints.continuation.probe import ProbeVerdict
from disco.endpoints.gguf_header import read_header, read_tokens
from disco.profiles import QuantileTable, ServerProfile
from disco.request import Prefix, Request, Timeouts

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = [{"role": "user", "content": "Write a few short sentences about the sea, please."}]
COUNT = [{"role": "user", "content": "Count from 1 to 30."}]
BEGUN = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
ASKED = {"messages": SEA, "max_tokens": 16, "temperature": 0}
LONGER = {"max_tokens": 40, "temperature": 0}  # for what takes its time to move
PATIENT = Timeouts(connect_s=20.0, first_content_s=60.0, gap_s=60.0, total_s=120.0)
TABLE = QuantileTable(levels=(0.0, 0.5, 1.0), values=(0.05, 0.2, 0.5), mean=0.25)
NEAR = ServerProfile(name="near", source="loopback", licence="-", rows=1, ttft_s=TABLE)


@pytest.fixture
def anyio_backend():
    return "asyncio"  # `test_local_endpoint` runs on trio


def side(desk, base_url=None, *, probed=False):
    """The desk's server as the local side; how it continues is found out where it is `probed`."""
    way = {} if probed else {"continuation": "flags"}
    if desk.kind == "llama-cpp-python":
        way = {"continuation": Continuation("completions", template=desk.gguf)}
    return LocalServer(base_url=base_url or desk.base_url, model=desk.model, **way)


def asking(local, base_url, policy, **more):
    settings = {"continuation": "flags", "timeouts": PATIENT, "price": (0.15, 0.60), **more}
    return AsyncDisco(local=local, base_url=base_url, policy=policy, api_key="secret-key-1234", **settings)


def whole(answer, attempts=None):
    """It is a seamless answer, of these attempts where they are given."""
    route, at = answer.route, 0
    assert answer.error is None
    assert answer.text.strip()
    assert route.seamless
    assert route.finish_reason in ("stop", "length")
    for piece in route.segments:
        assert piece.start_char == at
        at = piece.end_char
        text = answer.text[piece.start_char : piece.end_char].encode()
        assert piece.written_crc32 == piece.delivered_crc32 == zlib.crc32(text)
    assert at == len(answer.text)
    assert attempts in (None, [t.endpoint for t in route.attempts])


async def moved(client, server, policy, **asked):
    """An answer that moved away from where `policy` has it begin."""
    await client.warm_up(model=server.model)
    way = ["server", "device"] if policy == "server_only" else ["device", "server"]
    for _ in range(4):  # on a busy machine an answer may be over before a move would be in time
        answer = await get(client, **LONGER, **asked)
        whole(answer)
        if answer.writers == way:
            break
    assert answer.writers == way, answer.route.migrations
    assert [transfer.outcome for transfer in answer.route.migrations] == ["switched"]
    return answer


def moving(policy):
    # Where the source writes on, a busy machine may be too late with the target's first token.
    how = {"playback": {"pace_tps": 6.0}, "migration": {"enabled": True, "order": "break_before_make"}}
    return preset(policy, cost={"exchange_rate": 0.0 if policy == "server_only" else 1e-7}, **how)


MOVES = [("llama-cpp-python", "server_only"), ("ollama", "server_only"), ("lmstudio", "device_only")]


@pytest.mark.parametrize(("desk", "policy"), MOVES, indirect=["desk"])
async def test_it_takes_over_and_hands_over_in_mid_sentence(desk, native_server, policy):
    local = side(desk, probed=policy == "server_only")
    async with asking(local, native_server.base_url, moving(policy), server_profile=NEAR) as client:
        await moved(client, native_server, policy, messages=SEA)


LOCAL_ONLY = {"extra_body": {"disco": {"local_only": True}}}
STAYING = [("ollama", "private", {}), ("llama-server", preset("race"), LOCAL_ONLY)]


@pytest.mark.parametrize(("desk", "policy", "more"), STAYING, indirect=["desk"])
async def test_what_must_stay_here_stays(desk, monkeypatch, policy, more):
    """Not so much as a connection to the other server, nor to a proxy."""
    async with scripted_server(answering(b"{}")) as elsewhere:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, elsewhere.base_url.removesuffix("/v1"))
        async with asking(side(desk, probed=True), elsewhere.base_url, policy) as client:
            if policy == "private":
                await client.warm_up()
            for stream in (True, False):
                whole(await get(client, stream=stream, **ASKED, **more), ["device"])
        assert elsewhere.connections == 0


def as_seen(client):
    (member,) = client.router.endpoints.members(None)
    able = member.endpoint.capabilities("m")
    return client.router.catalog.candidate(member, "m", client.router.preset, able)


async def test_it_answers_where_there_is_no_other_and_is_got_to_know(desk, caplog):
    """How fast it is; its energy, which is what the server tells of its model, or assumed aloud."""
    async with AsyncDisco(local=desk.address, policy="server-first", timeouts=PATIENT) as client:
        before = as_seen(client)
        long = [{"role": "user", "content": "Tell me about the sea. " * 10}]
        for messages in (long, SEA):
            whole(await get(client, **{**ASKED, "messages": messages}), ["device"])
        after = as_seen(client)
        assert [m.id for m in (await client.models.list()).data] == [client.router.local_model]
        exchange_rate = client.router.preset.cost.exchange_rate
    assert before.prefill_tps != float("inf")
    assert after.prefill_tps != before.prefill_tps
    assert after.decode_tps != before.decode_tps
    assert (after.reach, after.announces, after.parks) == ("device", True, False)
    warned = [r for r in caplog.records if "energy" in r.message]
    if desk.kind in ("ollama", "llama-server"):
        assert after.rates.cost_out == pytest.approx(2 * 134515008 * exchange_rate / 1e6)
        assert not warned
    else:
        assert len(warned) == 1


async def test_a_prompt_that_is_cached_is_no_fast_prefill():
    """Ollama does not say what was cached; the second question of a conversation begins as the first did."""
    with running(Ollama(KnownText("Yes."), context_tokens=100_000)) as server:
        async with AsyncDisco(local=f"{server.base_url}#smollm2:135m") as client:
            asked = [{"role": "user", "content": "word " * 400}]
            first = await get(client, messages=asked)
            asked += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
            second = await get(client, messages=asked)
            other = await get(client, messages=[{"role": "user", "content": "Something else, " * 20}])
    seen = [answer.route.attempts[0] for answer in (first, second, other)]
    assert seen[0].cached_tokens == 0
    assert seen[1].cached_tokens > 0.8 * seen[1].prompt_tokens
    assert seen[2].cached_tokens < 0.5 * seen[2].prompt_tokens


# ---------------------------------------------------------------------- as token ids, where they are the same


async def test_another_vocabulary_or_none_is_found_out(native_server, tmp_path):
    size = len(read_tokens(native_server.gguf))
    assert size == 49152
    for tokens, spelled in ((size, {"content": "other words"}), (size + 1, {}), (size, {})):
        models = {"data": [{"id": "m", "meta": {"n_vocab": tokens}}]}
        scripts = [answering(json.dumps(body).encode()) for body in (models, spelled)]
        async with (
            scripted_server(*scripts) as server,
            openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
        ):
            assert await proved_vocabulary(client, native_server.gguf) is None
    async with openai.AsyncOpenAI(base_url=native_server.base_url, api_key="none") as client:
        assert await proved_vocabulary(client, tmp_path / "no.gguf") is None
    verdict = ProbeVerdict("flags", vocabulary="gguf:1")
    assert ProbeVerdict.from_dict(verdict.to_dict()) == verdict


async def test_ids_continue_as_the_text_would(native_server):
    async with endpoint_at(native_server.base_url) as local:
        await local.warm_up()
        proved = local.capabilities().vocabulary
        assert proved == read_header(native_server.gguf).vocabulary is not None
        root = native_server.base_url.removesuffix("/v1")
        ids = tuple(httpx2.post(f"{root}/tokenize", json={"content": BEGUN}).json()["tokens"])
        request = Request(COUNT, model="m", params={"max_tokens": 5, "temperature": 0})
        given = [Prefix(BEGUN, 0), Prefix(BEGUN, 0, ids, proved), Prefix(BEGUN, 0, ids, "gguf:another")]
        texts = [(await collected(local.open(request, prefix)))[1] for prefix in given]
    assert texts[0].startswith(", 12")
    assert texts == [texts[0]] * 3


async def test_an_answer_of_the_device_moves_as_ids(native_server, thread_model):
    """From llama.cpp in this process to a llama-server that has proved the file's vocabulary."""
    bodies = []

    async def note(request):
        if request.method == "POST":
            bodies.append((request.url.path, json.loads(request.content)))

    more = {
        "continuation": Continuation("auto", template=str(native_server.gguf)),
        "server_profile": NEAR,
        "http_client": httpx2.AsyncClient(event_hooks={"request": [note]}),
    }
    async with asking(thread_model, native_server.base_url, moving("device_only"), **more) as client:
        asked = {"messages": COUNT, "model": "smollm2-135m"}
        answer = await moved(client, native_server, "device_only", **asked)
    path, body = bodies[-1]
    assert path == "/v1/completions"
    head, *ids = body["prompt"]
    assert head.endswith("<|im_start|>assistant\n")
    tokens = read_tokens(native_server.gguf)
    spelled = b"".join(tokens[number] for number in ids).decode()
    assert spelled
    assert answer.text.startswith(spelled.replace("\u0120", " ").replace("\u010a", "\n"))
