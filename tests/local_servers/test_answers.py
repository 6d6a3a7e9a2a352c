"""Each server as the local side of a whole client: races, moves both ways, failover both ways, and what stays here.

All of it with real SmolLM2. Greedy answers of one model in two servers may differ in a word, so the text is held to
the route record: each piece of it is what its writer wrote, without a gap and without an overlap.
"""

from __future__ import annotations

import socket
import zlib

import anyio
import anyio.to_thread
import pytest
from faults.lab import get
from faults.proxy_server.fault import Cut, Fault, Kind, Moment
from faults.proxy_server.proxy import fault_proxy
from local_servers.desks import desks_by_turns
from quirks.ollama import Ollama
from quirks.server import running
from quirks.writers import KnownText
from security.recorder import recording

from disco import AsyncDisco, LocalServer
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.profiles import QuantileTable, ServerProfile
from disco.request import Timeouts

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = [{"role": "user", "content": "Write a few short sentences about the sea, please."}]
ASKED = {"messages": SEA, "max_tokens": 16, "temperature": 0}
LONGER = {**ASKED, "max_tokens": 40}  # for what takes its time to move
PATIENT = Timeouts(connect_s=20.0, first_content_s=60.0, gap_s=60.0, total_s=120.0)
NEAR = {"levels": (0.0, 0.5, 1.0), "values": (0.05, 0.2, 0.5), "mean": 0.25}
TRIES = 4  # on a busy machine an answer may be over before a move would be in time


@pytest.fixture
def anyio_backend():
    return "asyncio"  # `test_endpoint` runs on both


def asking(desk, server, policy, *, base_url=None, at=None, probed=False, **more):
    """A client with the desk's server as its local side.

    llama-cpp-python's is given the model's file, without which it cannot continue. How the others continue is found
    out where it is `probed`, which is a second of work, and known elsewhere.
    """
    way = {} if probed else {"continuation": "flags"}
    if desk.kind == "llama-cpp-python":
        way = {"continuation": Continuation("completions", template=desk.gguf)}
    settings = {
        "local": LocalServer(base_url=base_url or desk.base_url, model=desk.model, **way),
        "policy": policy,
        "api_key": "secret-key-1234",
        "base_url": at or server.base_url,
        "continuation": "flags",
        "timeouts": PATIENT,
        "price": (0.15, 0.60),
        **more,
    }
    return AsyncDisco(**settings)


def lab(policy, **more):
    fields = {"playback": {"pace_tps": "off"}, "migration": {"enabled": False}, **more}
    return Preset(name="lab", dispatch={"policy": policy}, **fields)


def whole(answer, *, attempts=None, segments=None):
    """It is a seamless answer, of these attempts and segments where they are given."""
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
    assert segments in (None, [p.endpoint for p in route.segments])


async def test_it_races(desk, native_server):
    async with asking(desk, native_server, lab("race")) as client:
        await client.warm_up(model=native_server.model)
        answer = await get(client, **ASKED)
    whole(answer)
    assert {t.endpoint for t in answer.route.attempts} == {"device", "server"}
    assert len(answer.route.segments) == 1


TO_IT = ("server_only", 0.0, ["server", "device"])
FROM_IT = ("device_only", 1e-7, ["device", "server"])


@pytest.mark.parametrize(("desk", "move"), desks_by_turns([TO_IT, FROM_IT]), indirect=["desk"])
async def test_it_takes_over_and_hands_over_in_mid_sentence(desk, native_server, move):
    policy, exchange_rate, way = move
    paced = lab(
        policy,
        cost={"exchange_rate": exchange_rate},
        playback={"pace_tps": 6.0},
        # Where the source writes on, a busy machine may be too late with the target's first token.
        migration={"enabled": True, "order": "break_before_make"},
    )
    near = ServerProfile(name="near", source="loopback", licence="-", rows=1, ttft_s=QuantileTable(**NEAR))
    async with asking(desk, native_server, paced, server_profile=near, probed=move is TO_IT) as client:
        await client.warm_up(model=native_server.model)
        for _ in range(TRIES):
            answer = await get(client, **LONGER)
            whole(answer)
            if [p.endpoint for p in answer.route.segments] == way:
                break
    assert [p.endpoint for p in answer.route.segments] == way, answer.route.migrations
    assert [transfer.outcome for transfer in answer.route.migrations] == ["switched"]


CUT = Fault(Kind.RESET, Moment.MIDDLE, tokens=8)
IN_A_LINE = Fault(Kind.CLOSE, Moment.MIDDLE, cut=Cut.LINE)
FAILING = [("device_only", CUT), ("server_only", CUT), ("device_only", IN_A_LINE)]


@pytest.mark.parametrize(("desk", "failing"), desks_by_turns(FAILING), indirect=["desk"])
async def test_one_goes_on_where_the_other_fails(desk, native_server, failing):
    policy, fault = failing
    local = policy == "device_only"
    with fault_proxy(desk.base_url if local else native_server.base_url) as proxy:
        through = {"base_url" if local else "at": proxy.base_url}
        async with asking(desk, native_server, lab(policy), **through) as client:
            await client.warm_up(model=native_server.model)
            proxy.arm([fault])
            answer = await get(client, **ASKED)
        way = ["device", "server"] if local else ["server", "device"]
        whole(answer, attempts=way, segments=None if local else way)
        assert answer.route.attempts[0].failure == "connection"
        await anyio.to_thread.run_sync(proxy.wait_idle)


class Outside:
    """Every address that anything in this process connects to, or asks the name of."""

    def __init__(self, monkeypatch):
        self.seen: set[str] = set()
        connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

        def noted(original):
            def call(sock, address, *more):
                if sock.family in (socket.AF_INET, socket.AF_INET6):
                    self.seen.add(f"{address[0]}:{address[1]}")
                return original(sock, address, *more)

            return call

        def looked_up(host, *more, **named):
            self.seen.add(str(host))
            return look_up(host, *more, **named)

        monkeypatch.setattr(socket.socket, "connect", noted(connect))
        monkeypatch.setattr(socket.socket, "connect_ex", noted(connect_ex))
        monkeypatch.setattr(socket, "getaddrinfo", looked_up)


@pytest.mark.parametrize(("desk", "how"), desks_by_turns(["policy", "request"]), indirect=["desk"])
async def test_what_must_stay_here_stays(desk, native_server, monkeypatch, how):
    """No byte to the other server, no look-up, no connection but to the server on this machine."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.invalid:3128")
    outside = Outside(monkeypatch)
    with recording() as recorder:
        policy = "private" if how == "policy" else lab("race")
        async with asking(desk, recorder, policy, probed=True) as client:
            if how == "policy":
                await client.warm_up()
            more = {} if how == "policy" else {"extra_body": {"disco": {"local_only": True}}}
            for stream in (True, False):
                whole(await get(client, stream=stream, **ASKED, **more), attempts=["device"])
        assert recorder.untouched
    own, behind = (
        url.removeprefix("http://").removesuffix("/v1") for url in (desk.base_url, native_server.base_url)
    )
    assert own in outside.seen
    of_quirks = desk.kind in ("ollama", "lmstudio")  # their model is asked from here
    assert outside.seen <= {own, own.partition(":")[0], *([behind] if of_quirks else [])}


def as_seen(client):
    (member,) = client.router.members(None)
    return client.router.catalog.candidate(
        0, member, "m", client.router.preset, member.endpoint.capabilities("m")
    )


async def test_it_answers_where_there_is_no_other_and_is_got_to_know(desk, caplog):
    """How fast it is; its energy, which is what the server tells of its model, or assumed aloud."""
    async with AsyncDisco(local=desk.address, policy="battery-saver", timeouts=PATIENT) as client:
        before = as_seen(client)
        long = [{"role": "user", "content": "Tell me about the sea. " * 10}]
        for messages in (long, SEA):
            whole(await get(client, **{**ASKED, "messages": messages}), attempts=["device"])
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
