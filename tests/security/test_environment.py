"""What the SDK reads from the environment goes to the server that is configured as the SDK's, and to no other."""

from __future__ import annotations

import httpx2
import pytest
from scripted_server import answer
from serving import HELLO, upstream

from disco import AsyncDisco, Backup, LocalServer, Tier
from disco.endpoints.split.layer_link import LayerLink, LayerServer
from disco.errors import EndpointFailure

VALUES = {
    "OPENAI_API_KEY": "key-of-the-environment",
    "OPENAI_ADMIN_KEY": "admin-key-of-the-environment",
    "OPENAI_ORG_ID": "org-of-the-environment",
    "OPENAI_PROJECT_ID": "project-of-the-environment",
    "OPENAI_WEBHOOK_SECRET": "webhook-of-the-environment",
    "OPENAI_CUSTOM_HEADERS": "X-Gateway: gateway-of-the-environment\nAuthorization: Bearer of-the-environment",
}
DOCUMENT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"} | {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]
}
pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://first.test/v1")


class Wire:
    """Takes every request; the first server is down."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.setdefault(request.url.host, []).append(repr((request.headers.raw, str(request.url))))
        if request.url.host == "first.test":
            return httpx2.Response(503, json={"error": {"message": "down"}})
        if request.method == "GET":
            return httpx2.Response(200, json={"object": "list", "data": [{"id": "m", "object": "model"}]})
        return httpx2.Response(200, json=DOCUMENT)

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))


@pytest.mark.anyio
async def test_backups_tiers_and_servers_of_ones_own_get_nothing_of_it():
    """Neither when they are warmed up, nor with a request, nor from a copy of the client."""
    wire = Wire()
    there = {"model": "m", "http_client": wire.http()}
    priced = {**there, "price": (1, 1)}
    local = LocalServer(base_url="https://local.test/v1", reach="own", **there)
    tiers = [
        Tier(base_url="https://own-tier.test/v1", reach="own", **priced),
        Tier(base_url="https://tier.test/v1", api_key="k-tier", **priced),
    ]
    backup = Backup(base_url="http://backup.test/v1", api_key="k-backup", **priced)
    made = {"local": local, "tiers": tiers, "backups": [backup], "http_client": wire.http()}
    async with AsyncDisco(policy="fast", price=(1, 1), max_retries=0, **made) as client:
        await client.warm_up("m")
        for one in (client, client.with_options(timeout=5)):
            assert (await one.chat.completions.create(model="m", messages=HELLO)).choices[0].message.content
    others = {"local.test", "own-tier.test", "tier.test", "backup.test"}
    assert set(wire.sent) == {*others, "first.test"}
    for host, requests in wire.sent.items():
        leaks = [said for said in requests if "of-the-environment" in said]
        assert bool(leaks) == (host == "first.test"), (host, leaks)
    assert "gateway-of-the-environment" in "".join(wire.sent["first.test"])


def test_a_layer_server_gets_nothing_of_it():
    """Which is asked by a client of its own."""
    with upstream(answer(b"{}")) as server:
        server_of = LayerServer(base_url=server.base_url)
        link = LayerLink(server_of, fingerprint="f", layers=1, hidden=8, name="split")
        for _ in range(2):  # the server answers the first as if it were a warming up
            with pytest.raises(EndpointFailure):
                link.facts()
        assert server.requests
        assert "of-the-environment" not in repr(server.requests)
