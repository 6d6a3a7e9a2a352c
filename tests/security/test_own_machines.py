"""What may go to the user's own machines goes no farther: a server elsewhere that keeps every byte is sent none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import openai
import pytest
from plain_server import PlainServer, listening, served
from security.recorder import recording
from serving import serving

from disco import AsyncDisco, Backup, NoEndpointError, Tier
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = [pytest.mark.real, pytest.mark.anyio]

HELLO = [{"role": "user", "content": "Tell me about the sea."}]
OWN = {"extra_body": {"disco": {"reach": "own"}}}
TEXT = "The sea is wide, and it is salt."
BROKEN = Fault(after_tokens=2, kind=FailureKind.INCOMPLETE)


@pytest.fixture
def anyio_backend() -> str:
    """Who is asked does not depend on the event loop."""
    return "asyncio"


@pytest.fixture
def elsewhere() -> Iterator[Any]:
    with recording() as server:
        yield server


def client(elsewhere: Any, home: str, **more: Any) -> AsyncDisco:
    """A device that fails after two tokens, a machine of the user's, and three servers that are none."""
    away = {"base_url": elsewhere.base_url, "api_key": "k", "model": "m", "price": (0.0, 0.0)}
    fixed = {
        "local": SimulatedEndpoint(
            "device", SimulatedProfile(answer=TEXT, gap_s=0.001, fault=BROKEN), place="device"
        ),
        "tiers": [Tier(base_url=home, model="m", reach="own", name="home", price=(1.0, 1.0)), Tier(**away)],
        "backups": [Backup(**away)],
        "base_url": elsewhere.base_url,
        "api_key": "k",
        "max_retries": 2,  # on a busy machine, a connection may take longer than it may beside other endpoints
    }
    return AsyncDisco(**{**fixed, **more})


@pytest.mark.parametrize("policy", ["cascade", "fast", "balanced"])
async def test_failover_races_probes_and_warming_up_stay_within_reach(elsewhere, policy):
    with served(PlainServer("flags", TEXT)) as home:
        async with client(elsewhere, home, policy=policy, default_options={"reach": "own"}) as one:
            await one.warm_up("m")
            for _ in range(2):  # after the first answer, servers are probed
                answer = await one.chat.completions.create(model="m", messages=HELLO)
                assert answer.route.segments[-1].endpoint == "home"
            answer = await one.responses.create(model="m", input="Tell me about the sea.")
            assert answer.output_text
            for refused in (one.embeddings.create(model="m", input="x"), one.chat.completions.create(
                model="m", messages=HELLO, modalities=["text", "audio"]
            )):  # fmt: skip
                with pytest.raises(NoEndpointError):
                    await refused
    assert elsewhere.untouched


async def test_a_single_request_stays_when_its_own_machines_fail(elsewhere):
    async with client(elsewhere, "http://127.0.0.1:9/v1", policy="cascade", max_retries=0) as one:
        for stream in (False, True):
            with pytest.raises(openai.OpenAIError):
                async for _ in await one.chat.completions.create(
                    model="m", messages=HELLO, stream=stream, **OWN
                ):
                    pass
    assert elsewhere.untouched


@contextlib.contextmanager
def leading_to(address: str) -> Iterator[str]:
    """A server that sends every request on to another address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(307)
            self.send_header("Location", f"{address}/chat/completions")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *args: object) -> None:
            pass

    with listening(Handler) as base_url:
        yield base_url


async def test_neither_a_redirect_nor_a_proxy_leads_out(elsewhere, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, elsewhere.base_url.removesuffix("/v1"))
    with leading_to(elsewhere.base_url) as home:
        async with client(elsewhere, home, policy="cascade", max_retries=0) as one:
            with pytest.raises(openai.OpenAIError):
                await one.chat.completions.create(model="m", messages=HELLO, **OWN)
    assert elsewhere.untouched


async def test_a_machine_of_the_users_may_be_a_disco_itself(elsewhere):
    """The name of its local model keeps the prompt there, although it has a server of its own."""

    def at_home(**more: Any) -> AsyncDisco:
        local = SimulatedEndpoint("device", SimulatedProfile(answer=TEXT, gap_s=0.001), place="device")
        return AsyncDisco(local=local, base_url=elsewhere.base_url, api_key="k", policy="fast", **more)

    with serving(at_home) as home:
        tier = Tier(base_url=home.base_url, model="local/device", reach="own", name="home")
        async with AsyncDisco(tiers=[tier], policy="cascade", default_options={"reach": "own"}) as one:
            answer = await one.chat.completions.create(model="m", messages=HELLO)
        assert (answer.choices[0].message.content, answer.route.winner) == (TEXT, "home")
        # At its start, and for its list of models, that disco asks its server; for the answer it does not.
        assert {attempt.endpoint for route in home.routes for attempt in route.attempts} == {"device"}


def test_callers_of_a_server_cannot_go_farther_than_its_owner_lets_them(elsewhere):
    with served(PlainServer("flags", TEXT)) as home:

        def bounded(**more: Any) -> AsyncDisco:
            return client(elsewhere, home, policy="cascade", default_options={"reach": "own"}, **more)

        with serving(bounded) as server:
            for wish in ({}, {"reach": "any"}, {"reach": None, "local_only": False}, {"preset": "fast"}):
                body = {"model": "m", "messages": HELLO, "disco": wish}
                assert server.ask("/v1/chat/completions", body).status == 200
            body["disco"] = {"reach": "far"}
            assert server.ask("/v1/chat/completions", body).status == 400
            assert (
                server.ask("/v1/embeddings", {"model": "m", "input": "x", "disco": {"reach": "any"}}).status
                == 400
            )
            assert server.ask("/v1/models").status == 200
    assert elsewhere.untouched
