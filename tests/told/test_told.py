"""A client learns the TTFT of a server that publishes it, before and beside its answers; no other server is asked."""

from __future__ import annotations

import json

import anyio
import httpx2
import pytest
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures
from scripted_server import chunk, sse

from disco import AsyncDisco, Backup
from disco.client.endpoint_catalog.observed import told_ttft
from disco.endpoints.published_ttft import PublishedTtft
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.anyio

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Tell me about the sea."}]}
ANSWER = sse(chunk("The sea."), chunk(finish="stop"))
SAID = PublishedTtft(
    model="m",
    count=100,
    newest_age_s=0.0,
    oldest_age_s=60.0,
    quantiles_s=[4.0 + n / 100 for n in range(1, 101)],
)


class Publisher(httpx2.AsyncBaseTransport):
    """A server in memory. Mutable: `asked`, the paths so far; what it says."""

    def __init__(self, *, publishes=True, said=None):
        self.asked: list[str] = []
        self.header = {"x-disco-ttft": "1"} if publishes else {}
        self.said = SAID.model_dump_json() if said is None else said

    async def handle_async_request(self, request):
        self.asked.append(request.url.path)
        if request.url.path == "/v1/disco/ttft":
            assert dict(request.url.params) == {"model": "m"}
            assert request.headers["authorization"] == "Bearer its-key"
            return httpx2.Response(200, content=self.said, request=request)
        if request.url.path == "/v1/models":
            return httpx2.Response(
                200, json={"data": [{"id": "m"}, {"id": "n"}]}, headers=self.header, request=request
            )
        kind = {"content-type": "text/event-stream", **self.header}
        return httpx2.Response(200, content=ANSWER, headers=kind, request=request)

    def client(self, **more):
        device = SimulatedEndpoint("device", SimulatedProfile(prefill_tps=1.0), place="device")
        return AsyncDisco(
            local=device,
            preset="fast",
            api_key="its-key",
            base_url="http://publisher.example/v1",
            http_client=httpx2.AsyncClient(transport=self),
            continuation="none",
            **more,
        )

    @property
    def questions(self):
        return self.asked.count("/v1/disco/ttft")


def known_of(client, name="server"):
    (known,) = (k for (n, *_), k in client.router.statistics.endpoints.items() if n == name)
    return known


async def answers(client, count=1):
    for _ in range(count):
        await client.chat.completions.create(**ASKED)
        await anyio.sleep(0.01)  # the question goes out beside


async def test_it_knows_the_server_before_its_first_answer():
    server = Publisher()
    async with server.client() as client:
        await client.warm_up("m")
        known = known_of(client)
        assert (known.ttft.count, client.router.catalog.knows(known)) == (0, True)
        assert 4.4 < known.ttft.snapshot().quantile(0.5) < 4.6
        assert server.asked == ["/v1/models", "/v1/disco/ttft"]


async def test_one_that_was_not_warmed_up_learns_it_from_its_first_answer(monkeypatch):
    server = Publisher()
    async with server.client() as client:
        await answers(client)
        known = known_of(client)
        assert known.ttft.count == 1  # its own observation is not lost
        assert 4.4 < known.ttft.snapshot().quantile(0.5) < 4.6
        await answers(client, 3)
        assert server.questions == 1  # not with every answer
        monkeypatch.setattr(told_ttft, "ASK_AGAIN_S", 0.0)
        client.router._told._sources.clear()
        await answers(client, 2)
        assert server.questions == 3
        assert known.ttft.count == 6


@pytest.mark.parametrize("how", ["answer", "warm_up"])
async def test_a_server_that_does_not_publish_is_never_asked(how):
    server = Publisher(publishes=False)
    async with server.client() as client:
        if how == "warm_up":
            await client.warm_up("m")
        await answers(client, 2)
        assert server.questions == 0
        assert known_of(client).told == 0


@pytest.mark.parametrize(
    "said", ["", "[]", "<html>", json.dumps(SAID.model_dump() | {"quantiles_s": [3.0, 2.0]})]
)
async def test_one_that_lies_or_fails_changes_nothing(said):
    server = Publisher(said=said)
    async with server.client() as client:
        before = client.router.catalog.server.ttft().quantile(0.5)
        await client.warm_up("m")
        assert known_of(client).ttft.snapshot().quantile(0.5) == pytest.approx(before, rel=0.03)
        assert not client.router.catalog.knows(known_of(client))


async def test_old_figures_count_for_little_and_an_empty_document_for_nothing():
    old = SAID.model_copy(update={"newest_age_s": 36_000.0, "oldest_age_s": 36_000.0})
    none = PublishedTtft(model="m", count=0)
    for said in (old, none):
        async with Publisher(said=said.model_dump_json()).client() as client:
            await client.warm_up("m")
            assert known_of(client).ttft.snapshot().quantile(0.5) < 1.0
            assert not client.router.catalog.knows(known_of(client))


async def test_nothing_is_asked_for_a_request_that_stays_here():
    server = Publisher()
    async with server.client(default_options={"local_only": True}) as client:
        await client.warm_up("m")
        assert server.asked == []


async def test_a_backup_is_asked_under_its_own_model():
    """`Publisher` checks the name and the key."""
    server, first = Publisher(), Publisher(publishes=False)
    backup = Backup(
        base_url="http://backup.example/v1",
        api_key="its-key",
        model="m",
        http_client=httpx2.AsyncClient(transport=server),
        continuation="none",
    )
    async with first.client(backups=[backup]) as client:
        endpoint = client.router.endpoints._standby[0].endpoint
        await endpoint.warm_up()
        assert endpoint.publishes_ttft
        await answers(client)
        assert (first.questions, server.questions) == (0, 1)
        assert known_of(client, "backup-1").told == pytest.approx(100)


def test_what_was_seen_beyond_what_is_kept_needs_no_word_of_the_server():
    from disco.client.endpoint_catalog.observed.statistics import MOST_REPLAYED, EndpointStatistics
    from disco.profiles import Empirical, Rolling

    known = EndpointStatistics(ttft=Rolling())
    prior = Empirical.from_samples([4.0])
    for number in range(MOST_REPLAYED + 1):
        assert known.start_from(prior, 20.0, 20.0)
        assert known.ttft.count + known.ttft.censored_count == number
        known.saw_ttft(1.0, censored=number % 3 == 0)
    assert not known.start_from(prior, 20.0, 20.0)
    assert EndpointStatistics(ttft=None).start_from(prior, 20.0, 20.0) is False
