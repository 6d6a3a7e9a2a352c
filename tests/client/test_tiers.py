"""Models between the local one and the server: their order, their keys and prices, and how far a prompt travels."""

from __future__ import annotations

import httpx2
import openai
import pytest
from defects.asking import MODEL, ask, client, create, device, preset, tried
from faults.in_memory import MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture

from disco import AsyncAzureDisco, AsyncDisco, Backup, ConfigurationError, Disco, NoEndpointError, Tier
from disco.dispatch import load_preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

KEY = "tier-secret-91234"
WHOLE = spoken(["The sea ", "is wide."])
GONE = Reply(before=[httpx2.ConnectError("refused")])
FAILS = Fault(kind=FailureKind.CONNECTION)


class Home(SimulatedEndpoint):
    """A model on another machine of the user's. Mutable: `closed`."""

    reach = "own"
    closed = False

    async def aclose(self):
        self.closed = True
        await super().aclose()


def home(**profile) -> Home:
    return Home("home", SimulatedProfile(answer="From home.", ttft_s=0.1, **profile), place="server")


class Server(MemoryServer):
    """Mutable: `keys` that requests came with."""

    def __init__(self, *replies) -> None:
        super().__init__(*replies)
        self.keys = []

    async def handle_async_request(self, request):
        self.keys.append(request.headers["authorization"].removeprefix("Bearer "))
        return await super().handle_async_request(request)

    def at(self, kind, *replies, **more):
        settings = {"api_key": KEY, "model": "middle", "continuation": "trailing", **more}
        return kind(base_url=self.also(*replies), http_client=httpx2.AsyncClient(transport=self), **settings)


async def test_they_stand_between_the_device_and_the_server_and_each_has_its_own_key_model_and_price():
    server, at_home = Server(WHOLE), home(fault=FAILS)
    tier = server.at(Tier, GONE, price=(1.0, 4.0))
    backup = server.at(Backup, GONE, price=(0.01, 0.01), model="last")
    one = client(server, local=device(fault=FAILS), tiers=[at_home, tier], backups=[backup], policy="cascade")
    answer = await ask(one.with_options(timeout=20.0))
    assert answer.text == "The sea is wide."
    failed = [("device", "connection"), ("home", "connection"), ("tier-2", "connection")]
    assert tried(answer) == [*failed, ("server", None)]
    order = [("device", 0), ("home", 1), ("tier-2", 2), ("server", 3), ("backup-1", 3)]
    assert [(e.name, e.rank) for e in answer.route.endpoints] == order
    costs = {e.name: (e.cost_in * 1e6, e.cost_out * 1e6) for e in answer.route.endpoints}
    assert costs["tier-2"] == pytest.approx((1.0, 4.0))
    assert costs["server"] == pytest.approx((0.15, 0.60))
    assert server.keys == [KEY, "secret-key-1234"]
    assert [body["model"] for body in server.requests] == ["middle", MODEL]
    assert KEY not in repr(tier) + repr(vars(one.router))
    await one.close()
    assert tier.http_client.is_closed
    assert not at_home.closed  # an endpoint object is the caller's


async def test_under_other_presets_the_cheapest_tier_is_the_server_and_the_others_take_over():
    at_home = home()
    async with client(Server(WHOLE), tiers=[at_home]) as one:  # no preset: the server itself
        assert tried(await ask(one)) == [("server", None)]
    async with client(Server(WHOLE), tiers=[at_home], policy=preset("race")) as one:
        assert tried(await ask(one)) == [("home", None)]
        at_home.profile = SimulatedProfile(fault=FAILS)
        assert tried(await ask(one)) == [("home", "connection"), ("server", None)]


async def test_a_client_of_tiers_alone_needs_no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with AsyncDisco(tiers=[home()], policy="cascade") as one:
        assert (await ask(one)).text == "From home."
        with pytest.raises(NoEndpointError, match="need a server"):
            await one.embeddings.create(model="m", input="sea")
    with Disco(tiers=[home()]) as sync:
        assert sync.chat.completions.create(**ASKED).choices[0].message.content == "From home."


ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]}
AZURE = {"api_version": "1", "azure_endpoint": "http://a"}
FINE = {"base_url": "http://b/v1", "api_key": "k", "model": "m"}
HERE = {**FINE, "base_url": "http://localhost:1/v1", "reach": "device"}


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ({**FINE, "base_url": ""}, "A tier has no base_url"),
        ({**FINE, "model": "", "name": "nas"}, "The tier 'nas' has no model"),
        ({**FINE, "api_key": None}, 'has no api_key.*reach="own"'),
        ({**FINE, "name": ""}, "name is empty"),
        ({**FINE, "name": 3}, "name is empty or no text"),
        ({**FINE, "logp": "yes"}, "logp must be True, False or None"),
        ({**FINE, "base_url": "b:80/v1"}, "base_url must begin with http"),
        ({**FINE, "reach": "far"}, '"device", "own" or "any"'),
        ({**FINE, "price": (1.0,)}, "price must be two numbers"),
        ({**FINE, "price": (1.0, -1.0)}, "at least 0"),
        (
            {**FINE, "base_url": "http://192.168.1.2:1/v1", "reach": "device"},
            'is not this machine.*reach="own"',
        ),
        ({**FINE, "base_url": "http://b", "reach": "own"}, 'write "http://b/v1"'),
        ({**HERE, "model": "big:cloud"}, "would leave this machine"),
    ],
)
def test_a_tier_that_cannot_be_is_refused_with_the_remedy(tier, message):
    with pytest.raises(ConfigurationError, match=message):
        Tier(**tier)


def test_tiers_that_do_not_go_together_are_refused_by_every_client():
    twice = [Tier(**FINE, name="a"), Tier(**FINE, name="a")]
    wrong = [(twice, "Two endpoints are called 'a'"), (["http://b/v1"], r"a str\. Write disco\.Tier")]
    wrong += [(Tier(**FINE), r"tiers is a Tier\. Give a list"), (None, "tiers is a NoneType")]
    for kind, more in ((AsyncDisco, {}), (Disco, {}), (AsyncAzureDisco, AZURE)):
        for tiers, message in (*wrong, ([Tier(**FINE, continuation="magic")], "Unknown continuation")):
            with pytest.raises(ConfigurationError, match=message):
                kind(api_key="k", tiers=tiers, **more)
        kind(api_key="k", tiers=[Tier(**FINE), Tier(**HERE)], **more)


async def test_under_a_money_aim_every_price_has_to_be_known():
    aim = {"dispatch": {"policy": "cascade"}, "cascade": {"aim": "money", "usd_per_answer": 1e-4}}
    money = load_preset(aim)
    for unknown in (Tier(**FINE), Tier(**{**HERE, "reach": "own"}, name="nas")):
        with pytest.raises(ConfigurationError, match=r"price of every tier.*(tier-1|nas).*\(0, 0\)"):
            AsyncDisco(api_key="k", tiers=[unknown], policy=money)
    server = Server(WHOLE)
    known = [server.at(Tier, WHOLE, price=(0, 0)), server.at(Tier, WHOLE, model=MODEL), home()]
    async with client(server, local=device(), tiers=known, policy=money, price=None) as one:
        assert (await ask(one)).text
        with pytest.raises(ConfigurationError, match="that of 'server' is not known"):
            await create(one, model="unheard-of")
        assert (await create(one, model="unheard-of", disco={"reach": "own"})).route.winner == "device"


async def test_a_prompt_travels_as_far_as_the_narrowest_of_options_and_preset_lets_it():
    """Neither failover nor a race nor warming up takes it farther; a request that must pass through is refused."""
    server, local, at_home = Server(WHOLE), device(fault=FAILS), home()
    settings = {"tiers": [server.at(Tier, WHOLE), at_home], "backups": [server.at(Backup, WHOLE)]}
    async with client(
        server, local=local, policy="fast", default_options={"reach": "own"}, **settings
    ) as one:
        await one.warm_up(MODEL)
        for options in ({}, {"preset": "cascade"}, {"preset": "cheap"}, {"local_only": False}):
            answer = await create(one, disco=options)
            assert answer.route.winner == "home"
        for options in ({"reach": "device"}, {"local_only": True}, {"local_only": True, "reach": "any"}):
            with pytest.raises(openai.APIConnectionError) as caught:
                await create(one, disco=options)
            assert {name for name, _ in tried(caught.value)} == {"device"}
        with pytest.raises(NoEndpointError, match="would leave your machines"):
            await one.embeddings.create(model="m", input="sea")
        assert not (await one.models.list()).data[1:]
        assert one.copy().responses.connect()._prepare_url().host == "local-only.invalid"
        at_home.profile = SimulatedProfile(fault=FAILS)
        with pytest.raises(openai.APIConnectionError):
            await create(one)
        assert server.requests == []
        assert (await create(one, disco={"reach": "any"})).route.winner in ("server", "tier-1")
    alone = Server(WHOLE)
    async with client(alone) as one:
        with pytest.raises(NoEndpointError, match=r'limited to them.*reach "any"'):
            await create(one, disco={"reach": "own"})
    assert alone.requests == []
    with pytest.raises(ConfigurationError, match="reach = 'own' keeps answers on your own machines"):
        AsyncDisco(api_key="k", default_options={"reach": "own"})
    with pytest.raises(ConfigurationError, match="reach = 'device' keeps answers on this machine"):
        AsyncDisco(api_key="k", tiers=[home()], default_options={"reach": "device"})
