"""A dead, refusing or unreachable server on real sockets, and the backups behind it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys

import anyio
import httpx2
import openai
import pytest
from scripted_server import RESET, STREAM_HEAD, answer, chunk, piece, scripted_server, sse, stream
from servers import free_port
from serving import upstream
from watched import preset

from disco import AsyncDisco, Backup, ConfigurationError, Disco
from disco.cli.demonstration.demo_server import DemoServer
from disco.client import planning as routing
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "first-model", "messages": SEA}
SERVER_FIRST = preset("server_only")
KEY, OTHER_KEY = "secret-key-1234", "other-secret-5678"

WHOLE = stream(
    sse(chunk(role="assistant", content=""), chunk("The sea "), chunk("is wide."), chunk(finish="stop"))
)
DIES = [STREAM_HEAD, piece(sse(chunk("The sea "), done=False)), 0.02, RESET]


def refusal(status: str) -> list:
    return answer(b'{"error": {"message": "No."}}', status=status)


def device() -> SimulatedEndpoint:
    return SimulatedEndpoint(
        "device", SimulatedProfile(answer="Here it is.", decode_tps=1000.0), place="device"
    )


def http() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=False)


def asking(base_url: str, *backups: Backup, local=None, **more) -> AsyncDisco:
    settings = {"policy": SERVER_FIRST, "max_retries": 0, "http_client": http(), "continuation": "trailing"}
    return AsyncDisco(local=local, base_url=base_url, api_key=KEY, backups=backups, **{**settings, **more})


def behind(server, name=None, **more) -> Backup:
    settings = {"api_key": OTHER_KEY, "model": "second-model", "http_client": http()}
    settings |= {"continuation": "trailing"}
    return Backup(base_url=server.base_url, name=name, **{**settings, **more})


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}/v1"


async def text_of(client: AsyncDisco, **more) -> tuple[str, object]:
    async with await client.chat.completions.create(stream=True, **ASKED, **more) as chunks:
        text = "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])
        return text, chunks.route


async def test_a_backup_answers_for_a_dead_server_with_its_own_key_and_model():
    async with scripted_server(WHOLE) as second, asking(nowhere(), behind(second)) as client:
        text, route = await text_of(client, extra_headers={"X-Secret": "for the first only"})
        (_, headers, body) = second.requests[0]
    assert text == "The sea is wide."
    assert [(t.endpoint, t.failure) for t in route.attempts] == [("server", "connection"), ("backup-1", None)]
    assert headers["authorization"] == f"Bearer {OTHER_KEY}"
    assert body["model"] == "second-model"
    assert "x-secret" not in headers
    assert [e.name for e in route.endpoints] == ["server", "backup-1"]


async def test_once_the_first_server_is_known_to_be_dead_the_backup_takes_its_place():
    async with scripted_server(WHOLE) as second, asking(nowhere(), behind(second), local=device()) as client:
        for _ in range(2):  # the device comes first while the server is only suspected
            _, route = await text_of(client)
            assert [t.endpoint for t in route.attempts] == ["server", "device"]
        _, route = await text_of(client)
    assert [t.endpoint for t in route.attempts] == ["backup-1"]
    assert [r.endpoint for r in route.deprioritised] == ["server"]


async def test_a_backup_goes_on_where_the_first_server_broke_off():
    async with (
        scripted_server(DIES) as first,
        scripted_server(stream(sse(chunk("is wide."), chunk(finish="stop")))) as second,
        asking(first.base_url, behind(second)) as client,
    ):
        text, route = await text_of(client)
        messages = second.requests[0][2]["messages"]
    assert text == "The sea is wide."
    assert [(p.endpoint) for p in route.segments] == ["server", "backup-1"]
    assert route.seamless
    assert messages[-1]["role"] == "assistant"


async def test_backups_are_asked_cheapest_first_and_unused_when_nothing_fails():
    async with (
        scripted_server(WHOLE) as first,
        scripted_server(WHOLE) as dear,
        scripted_server(WHOLE) as cheap,
    ):

        def backups() -> tuple[Backup, Backup]:
            return behind(dear, price=(9.0, 9.0)), behind(cheap, name="cheap", price=(0.01, 0.01))

        async with asking(first.base_url, *backups()) as client:
            _, route = await text_of(client)
            assert [t.endpoint for t in route.attempts] == ["server"]
        async with asking(nowhere(), *backups()) as client:
            _, route = await text_of(client)
    assert [t.endpoint for t in route.attempts] == ["server", "cheap"]
    assert route.endpoints[1].cost_in == pytest.approx(9e-6)
    assert dear.requests == []


async def test_what_must_stay_here_never_reaches_a_backup():
    async with scripted_server(WHOLE) as second:
        crashes = SimulatedProfile(fault=Fault(kind=FailureKind.CRASHED))
        dead = SimulatedEndpoint("device", crashes, place="device")
        async with asking(nowhere(), behind(second), local=dead) as client:
            with pytest.raises(openai.APIConnectionError):
                await text_of(client, extra_body={"disco": {"local_only": True}})
        async with asking(nowhere(), behind(second), local=device(), policy="private") as client:
            await client.warm_up()
            await text_of(client)
        assert second.connections == 0


async def test_copies_keep_the_backups_and_closing_closes_them():
    async with scripted_server(WHOLE) as second:
        backup = behind(second)
        client = asking(nowhere(), backup)
        text, _ = await text_of(client.with_options(timeout=20.0))
        assert text == "The sea is wide."
        await client.close()
        assert backup.http_client.is_closed


def test_the_synchronous_client_has_backups_too():
    with upstream(WHOLE) as second:
        backup = Backup(base_url=second.base_url, api_key=OTHER_KEY, model="second-model")
        with Disco(
            base_url=nowhere(), api_key=KEY, backups=[backup], policy=SERVER_FIRST, max_retries=0
        ) as client:
            httpx2.get(f"{second.base_url}/models")  # the scripted server's own first answer
            answered = client.chat.completions.create(stream=True, **ASKED)
            text = "".join(c.choices[0].delta.content or "" for c in answered if c.choices)
    assert text == "The sea is wide."


def test_keys_of_backups_are_not_in_their_repr():
    backup = Backup(base_url="http://b/v1", api_key=OTHER_KEY, model="m")
    assert OTHER_KEY not in repr(backup)
    client = asking(nowhere(), backup)
    assert OTHER_KEY not in repr(vars(client.router))


@pytest.mark.parametrize(
    ("backups", "message"),
    [
        ([{"name": "server"}], "Two endpoints are called 'server'"),
        ([{"name": "a"}, {"name": "a"}], "Two endpoints are called 'a'"),
        ([{}, {"name": "backup-1"}], "Two endpoints are called 'backup-1'"),
        ([{"name": ""}], "name is empty"),
        ([{"api_key": ""}], "The backup 'backup-1' has no api_key"),
        ([{"base_url": ""}], "has no base_url"),
        ([{}, {"model": ""}], "The backup 'backup-2' has no model"),
        ([{"continuation": "magic"}], "Unknown continuation method"),
    ],
)
def test_backups_that_cannot_be_are_refused_with_the_remedy(backups, message):
    given = [Backup(**{"base_url": "http://b/v1", "api_key": "k", "model": "m", **b}) for b in backups]
    with pytest.raises(ConfigurationError, match=message):
        AsyncDisco(api_key=KEY, base_url=nowhere(), backups=given)


def test_backups_without_a_first_server_or_of_another_kind_are_refused(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    backup = Backup(base_url="http://b/v1", api_key="k", model="m")
    with pytest.raises(ConfigurationError, match="need a first server"):
        AsyncDisco(local=device(), backups=[backup])
    with pytest.raises(ConfigurationError, match=r"contains a str\. Write disco\.Backup"):
        AsyncDisco(api_key=KEY, backups=["http://b/v1"])


async def test_a_refused_key_is_answered_around_and_told_once(caplog):
    async with (
        scripted_server(refusal("401 Unauthorized")) as server,
        asking(server.base_url, local=device()) as client,
    ):
        with caplog.at_level(logging.WARNING, "disco"):
            for _ in range(3):
                text, route = await text_of(client)
                assert text == "Here it is."
                assert route.attempts[0].failure == "authentication"
    told = [r.getMessage() for r in caplog.records if "refuses its key" in r.getMessage()]
    assert len(told) == 1
    assert "'server'" in told[0]
    assert KEY not in told[0]


async def test_a_black_hole_is_given_up_long_before_the_connect_clock_where_another_endpoint_may_serve(
    monkeypatch,
):
    """A listener whose queue is full drops every further SYN, as a firewall does."""
    monkeypatch.setattr(routing, "CONNECT_S", 0.3)
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        port = hole.getsockname()[1]
        fill = [socket.socket() for _ in range(4)]
        try:
            for one in fill:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            async with asking(f"http://127.0.0.1:{port}/v1", local=device(), timeouts=None) as client:
                assert client.timeouts.connect_s == 5.0
                text, route = await text_of(client)
        finally:
            for one in fill:
                one.close()
    assert text == "Here it is."
    assert [(t.endpoint, t.failure) for t in route.attempts] == [("server", "timeout"), ("device", None)]
    assert route.attempts[0].ended_s < 4.0


OFFLINE_PROGRAM = """
import asyncio
from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

async def main():
    device = SimulatedEndpoint("device", SimulatedProfile(answer="Here it is."), place="device")
    policy = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
    async with AsyncDisco(local=device, api_key="k", base_url="https://api.example.com/v1", policy=policy) as client:
        whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        print(whole.choices[0].message.content)
        print([t.endpoint for t in whole.route.attempts], [r.reason for r in whole.route.deprioritised])

asyncio.run(main())
"""


def test_on_a_machine_without_a_network_the_server_is_not_even_tried():
    """For real: a network namespace with nothing in it."""
    apart = ["unshare", "--net"]
    try:
        possible = (
            subprocess.run([*apart, "true"], check=False, capture_output=True, timeout=10).returncode == 0
        )
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("a network namespace takes Linux, `unshare` and root")
    program = [*apart, sys.executable, "-c", OFFLINE_PROGRAM]
    ran = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["Here it is.", "['device'] ['offline']"], ran.stderr


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_real_server_is_left_alone_when_it_was_killed_and_taken_back_when_it_runs_again():
    asked = {"model": "m", "messages": SEA, "max_tokens": 4}
    with DemoServer(context_tokens=512) as server:
        at = {"base_url": server.base_url, "api_key": "any", "http_client": http(), "policy": SERVER_FIRST}
        async with AsyncDisco(local="smollm2-135m", **at) as client:

            async def get():
                return (await client.chat.completions.create(**asked)).route

            await client.warm_up()
            assert [t.endpoint for t in (await get()).attempts] == ["server"]
            server.kill()
            for _ in range(2):
                tried = [(t.endpoint, t.failure) for t in (await get()).attempts]
                assert tried == [("server", "connection"), ("device", None)]
            route = await get()
            assert [t.endpoint for t in route.attempts] == ["device"]
            assert route.deprioritised[0].failure == "connection"
            await anyio.to_thread.run_sync(server.start)
            with anyio.fail_after(90):
                # On a busy machine a probe may be too slow, and the server rests once more.
                while (route := await get()).winner != "server":  # noqa: ASYNC110 - nothing tells of a rest
                    await anyio.sleep(route.deprioritised[0].for_s or 0.1 if route.deprioritised else 0.1)
            assert route.deprioritised == ()
