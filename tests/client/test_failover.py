"""A dead, refusing or unreachable server, and the backups behind it, in virtual time."""

from __future__ import annotations

import logging

import anyio
import httpx2
import openai
import pytest
from defects.asking import MODEL, ask, client, create, device, preset, text_of, tried
from faults.in_memory import HOLE, MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture

from disco import AsyncDisco, Backup, ConfigurationError, Disco
from disco.client import planning

pytestmark = pytest.mark.anyio

KEY, OTHER_KEY = "secret-key-1234", "other-secret-5678"
WHOLE = spoken(["The sea ", "is wide."])
GONE = Reply(before=[httpx2.ConnectError("refused")])
GIVEN_UP = Reply(before=[HOLE, httpx2.ConnectTimeout("no answer")])
REFUSAL = Reply([b'{"error": {"message": "No."}}'], 401, {"content-type": "application/json"})


class Server(MemoryServer):
    """Mutable: `headers` of its requests."""

    def __init__(self, *replies) -> None:
        super().__init__(*replies)
        self.headers = []

    async def handle_async_request(self, request):
        self.headers.append(request.headers)
        return await super().handle_async_request(request)

    def backup(self, *replies, **more) -> Backup:
        http = httpx2.AsyncClient(transport=self)
        settings = {"api_key": OTHER_KEY, "model": "second-model", "http_client": http, **more}
        return Backup(base_url=self.also(*replies), continuation="trailing", **settings)


def here():
    return device(answer="Here it is.", decode_tps=1000.0)


def asking(server, **more) -> AsyncDisco:
    return client(server, **{"policy": preset("server_only"), **more})


async def test_the_cheapest_backup_that_lives_answers_with_its_own_key_and_model_and_ends_with_the_client():
    server = Server(GONE)
    backup = server.backup(WHOLE, price=(9.0, 9.0))
    cheap = server.backup(GONE, price=(0.01, 0.01), name="cheap")
    one = asking(server, backups=[backup, cheap])
    stream = await create(
        one.with_options(timeout=20.0), stream=True, extra_headers={"X-Secret": "first only"}
    )
    assert await text_of(stream) == "The sea is wide."
    assert tried(stream) == [("server", "connection"), ("cheap", "connection"), ("backup-1", None)]
    assert {e.name: e.cost_in for e in stream.route.endpoints}["backup-1"] == pytest.approx(9e-6)
    assert [h["authorization"] for h in server.headers] == [
        f"Bearer {key}" for key in (KEY, OTHER_KEY, OTHER_KEY)
    ]
    assert [body["model"] for body in server.requests] == [MODEL, "second-model", "second-model"]
    assert ["x-secret" in h for h in server.headers] == [True, False, False]
    assert OTHER_KEY not in repr(backup) + repr(vars(one.router))
    await one.close()
    assert backup.http_client.is_closed


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
    for kind in (AsyncDisco, Disco):
        with pytest.raises(ConfigurationError, match=message):
            kind(api_key=KEY, base_url="http://a/v1", backups=given)
    with pytest.raises(ConfigurationError, match="need a first server"):
        AsyncDisco(local=here(), backups=[Backup(base_url="http://b/v1", api_key="k", model="m")])
    with pytest.raises(ConfigurationError, match=r"contains a str\. Write disco\.Backup"):
        AsyncDisco(api_key=KEY, backups=["http://b/v1"])


async def test_a_refused_key_is_answered_around_and_told_once(caplog):
    with caplog.at_level(logging.WARNING, "disco"):
        async with asking(Server(REFUSAL), local=here()) as one:
            answers = [await ask(one) for _ in range(3)]
    assert [answer.text for answer in answers] == ["Here it is."] * 3
    assert [tried(answer) for answer in answers] == [
        [("server", "account"), ("device", None)],
        *[[("device", None)]] * 2,  # it is not asked again for each answer
    ]
    (told,) = [r.getMessage() for r in caplog.records if "refuses its key" in r.getMessage()]
    assert "'server'" in told
    assert KEY not in told


async def test_a_black_hole_is_given_up_long_before_the_connect_clock_where_another_endpoint_may_serve():
    async with asking(Server(GIVEN_UP), local=here()) as one:
        assert one.timeouts.connect_s == 5.0
        answer = await ask(one)
        assert tried(answer) == [("server", "timeout"), ("device", None)]
        assert answer.route.attempts[0].ended_s == pytest.approx(planning.CONNECT_S, abs=0.2)
    async with asking(Server(GIVEN_UP)) as alone:
        began_at = anyio.current_time()
        with pytest.raises(openai.APITimeoutError):
            await ask(alone)
        assert anyio.current_time() - began_at == pytest.approx(5.0, abs=0.2)


async def test_a_copy_may_ask_more_often():
    async with asking(Server(GONE)) as one:
        for asker, times in ((one, 1), (one.with_options(max_retries=1), 2)):
            with pytest.raises(openai.APIConnectionError) as caught:
                await ask(asker)
            assert tried(caught.value) == [("server", "connection")] * times
