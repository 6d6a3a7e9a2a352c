"""With a `redact` hook, no server elsewhere gets what the hook names: by no method, and whatever fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from everything import methods
from plain_server import PlainServer, listening, served
from redaction.hooks import MAIL, hook, leaks
from security.test_local_only import outcome, used
from serving import serving

from disco import AsyncDisco, Backup, Disco, Tier
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ASKED = [{"role": "user", "content": f"Write to Zora Quill at {MAIL}, then to Zora."}]
ANSWER = (
    f"I wrote to Zora Quill at {MAIL} today, and Zora told me that it was all right for both of them to wait."
)
SAID = ANSWER.replace("Zora Quill", "[PERSON_1]").replace("Zora", "[PERSON_2]").replace(MAIL, "[EMAIL_1]")


@pytest.fixture
def anyio_backend() -> str:
    """Who is sent what does not depend on the event loop."""
    return "asyncio"


@dataclass
class Heard:
    """What a server was sent: (method, path, body) of each request."""

    requests: list[tuple[str, str, bytes]] = field(default_factory=list)

    @property
    def bodies(self) -> list[tuple[str, bytes]]:
        return [(path, body) for _, path, body in self.requests if body]


@contextlib.contextmanager
def hearing() -> Iterator[tuple[str, Heard]]:
    """A server that keeps what it is sent, and refuses it: its base_url."""
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            heard.requests.append((self.command, self.path, body))
            self.send_response(400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_DELETE = do_PUT = do_PATCH = do_GET  # noqa: N815 - as the base class calls them

        def log_message(self, *args: object) -> None:
            pass

    with listening(Handler) as base_url:
        yield base_url, heard


def greetings(text: str) -> dict[str, str]:
    return {"hello": "WORD"} if "hello" in text else {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
async def test_no_method_of_the_sdk_sends_a_text_that_the_hook_has_not_read(kind: Any) -> None:
    with hearing() as (base_url, heard):
        async with used(kind(api_key="k", base_url=base_url, max_retries=0, redact=greetings)) as client:
            outcomes = {name: await outcome(call) for name, call in methods(client)}
            for each in (client.realtime.connect(model="m"), client.responses.connect()):
                assert each._prepare_url().host == "local-only.invalid"
    assert len(outcomes) > 300
    assert len([error for error in outcomes.values() if "redact hook" in str(error)]) > 100
    assert {path for path, _ in heard.bodies} == {"/v1/chat/completions"}
    assert not [body for _, body in heard.bodies if b"hello" in body]
    assert [body for _, body in heard.bodies if b"[WORD_1]" in body]


@pytest.mark.parametrize("sync", [False, True])
async def test_servers_of_every_kind_get_placeholders_and_the_reader_the_originals(sync: bool) -> None:
    """The hook runs in a thread here, and the bytes on real sockets."""
    broken = Fault(after_tokens=9, kind=FailureKind.CRASHED)
    local = SimulatedEndpoint(
        "device", SimulatedProfile(answer=ANSWER, gap_s=0.001, fault=broken), place="device"
    )
    home, first, backup = (PlainServer("flags", SAID) for _ in range(3))
    with served(home) as at_home, served(first) as at_first, served(backup) as at_backup:
        settings: dict[str, Any] = {
            "base_url": at_first,
            "api_key": "k",
            "redact": hook,
            "continuation": "flags",
            "max_retries": 0,
            "backups": [
                Backup(base_url=at_backup, api_key="k", model="m", continuation="flags", price=(0.0, 0.0))
            ],
        }
        tier = Tier(
            base_url=at_home, model="m", reach="own", name="home", price=(1.0, 1.0), continuation="flags"
        )
        for more in (
            {},
            {"local": local, "policy": "server-first"},
            {"local": local, "tiers": [tier], "policy": "cascade"},
        ):
            if sync:
                with Disco(**settings, **more) as one:
                    assert (
                        one.chat.completions.create(model="m", messages=ASKED).choices[0].message.content
                        == ANSWER
                    )
                    stream = one.chat.completions.create(model="m", messages=ASKED, stream=True)
                    assert "".join(c.choices[0].delta.content or "" for c in stream) == ANSWER
            else:
                async with AsyncDisco(**settings, **more) as two:
                    answer = await two.chat.completions.create(model="m", messages=ASKED)
                    assert answer.choices[0].message.content == ANSWER
                    async with await two.chat.completions.create(
                        model="m", messages=ASKED, stream=True
                    ) as chunks:
                        assert "".join([c.choices[0].delta.content or "" async for c in chunks]) == ANSWER
    assert first.bodies
    assert home.bodies
    assert not leaks([home.bodies, first.bodies, backup.bodies])


def test_a_server_of_discos_redacts_for_its_callers() -> None:
    with served(PlainServer("flags", SAID)) as upstream:

        def redacting(**more: Any) -> AsyncDisco:
            return AsyncDisco(base_url=upstream, api_key="k", redact=hook, **more)

        with serving(redacting) as server:
            said = server.ask("/v1/chat/completions", {"model": "m", "messages": ASKED})
            assert said.status == 200
            assert said.json["choices"][0]["message"]["content"] == ANSWER
            assert server.ask("/v1/embeddings", {"model": "m", "input": MAIL}).status == 400
