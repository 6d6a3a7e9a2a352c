"""Several models by name behind one server: who answers, what is listed, and what a caller cannot change."""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from asgi import ask
from scripted_server import ScriptedServer, chunk, scripted_server, sse, stream
from serving import HELLO

from disco import AsyncDisco
from disco.cli.main import _parser
from disco.cli.serving.serve_clients import ClientMaker
from disco.cli.serving.settings import read_settings
from disco.client.endpoint_catalog.catalog import CatalogEntry
from disco.cost.budget_limiter import Limit
from disco.endpoints.host import HostEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import ConfigurationError, ModelFileError
from disco.record import read_record
from disco.server import Metrics, NamedModel, NamedModels, make_app, serve
from disco.server.api_errors import Refusal
from disco.state import limiter_of

pytestmark = pytest.mark.real  # upstream servers are asked over sockets

CHATS = "/v1/chat/completions"
CHAT = {"messages": HELLO, "disco": {"pace_tps": "off"}}
GOOD = stream(sse(chunk("From there."), chunk(finish="stop")))
QUICK = SimulatedProfile(gap_s=0.001, answer_tokens=4)


@contextlib.contextmanager
def upstream(*scripts: list) -> Iterator[ScriptedServer]:
    """The scripted server in a loop of its own."""
    scripted = scripted_server(*scripts)
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(scripted) as server:
        yield server


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Makes the application of a file, as `disco serve` does; `routes` gets every record."""
    monkeypatch.setenv("THE_KEY", "k-of-the-first-server")
    monkeypatch.setenv("OPENAI_API_KEY", "k-of-nobody-here")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-nobody-here")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: gateway-of-nobody-here")
    with start_blocking_portal("asyncio") as portal, contextlib.ExitStack() as stack:

        def serve(text: str, device: SimulatedEndpoint | None = None, state: object = "off"):
            head = f'state = "{state}"\npower = "off"\n'
            (tmp_path / "disco.toml").write_text(head + text, encoding="utf-8")
            settings = read_settings(
                _parser().parse_args(["serve", "--config", str(tmp_path / "disco.toml")])
            )
            routes: list = []
            metrics = Metrics(by_model=True)

            def on_route(route):
                routes.append(route)
                metrics.answer(route)

            maker = ClientMaker(settings, engine=device, prompt_cache=None, redact=None, on_route=on_route)
            exits = AsyncExitStack()
            stack.enter_context(portal.wrap_async_context_manager(exits))
            models = portal.call(maker.named, exits)
            app = make_app(models, metrics=metrics)

            def asked(*given, **more):
                return portal.call(lambda: ask(app, *given, **more))

            return types.SimpleNamespace(ask=asked, models=models, routes=routes, portal=portal)

        yield serve


def device() -> SimulatedEndpoint:
    return SimulatedEndpoint("device", QUICK, place="device")


def away(server, more: str = "") -> str:
    return f'base_url = "{server.base_url}"\nkey_env = "THE_KEY"\nprice = [1.0, 2.0]\ncontinuation = "none"\n{more}'


TWO = 'default = "here"\n[models.here]\npreset = "private"\n[models.away]\nlocal = "none"\nmodel = "theirs-4o"\n'


@pytest.mark.parametrize("runtime", ["llama-server", "engine"])
def test_the_runtime_of_the_file_is_that_of_its_local_models(served, runtime):
    one = served(f'local = "smollm2-135m"\nruntime = "{runtime}"\n[models.here]\npreset = "private"\n')
    assert one.models.named[0].client.router.local.runtime == runtime


def test_a_name_picks_the_client_and_the_server_gets_its_own_name_for_the_model(served):
    with upstream(GOOD, GOOD) as server:
        one = served(TWO + away(server), device())
        there = one.ask(CHATS, {**CHAT, "model": "away", "stream": True})
        _, headers, body = server.requests[-1]
        here, default = one.ask(CHATS, {**CHAT, "model": "here"}), one.ask(CHATS, CHAT)
        spoken = one.ask("/v1/responses", {"input": "Hi", "disco": {"pace_tps": "off"}})
    assert b"From there." in there.body
    assert (body["model"], headers["authorization"]) == ("theirs-4o", "Bearer k-of-the-first-server")
    assert "of-nobody-here" not in repr(headers)
    assert "openai-organization" not in headers
    assert {here.status, default.status, spoken.status} == {200}
    assert [(r.served_as, r.winner) for r in one.routes] == [
        *(("away", "server"), ("here", "device"), ("here", "device"), ("here", "device"))
    ]
    assert read_record(one.routes[0].to_json()).served_as == "away"
    text = one.ask("/metrics").body.decode()
    assert 'disco_answers_total{finish_reason="stop",model="away",winner="server"} 1.0' in text
    assert 'disco_bill_usd_total{endpoint="device",model="here"}' in text


def test_only_the_names_are_listed_and_others_do_not_exist(served):
    with upstream() as server:
        one = served(TWO.replace("default", "# default") + away(server), device())
        listed = one.ask("/v1/models").json
        assert [model["id"] for model in listed["data"]] == ["here", "away"]
        assert one.ask("/v1/models/away").json["id"] == "away"
        for name in ("awya", "theirs-4o", "local/simulated", "x" * 5000, ""):
            for path, body in (
                (CHATS, CHAT),
                ("/v1/embeddings", {"input": "x"}),
                ("/v1/responses", {"input": "x"}),
            ):
                refused = one.ask(path, {**body, "model": name})
                assert (refused.status, refused.error["code"]) == (404, "model_not_found")
                assert len(refused.error["message"]) < 300
        assert "'away'" in one.ask(CHATS, {**CHAT, "model": "awya"}).error["message"]
        assert one.ask("/v1/models/awya").status == 404
        assert one.ask(CHATS, CHAT).error["param"] == "model"
        assert one.ask("/v1/embeddings", {"input": "x"}).status == 400  # no default, and no name
        assert [path for path, *_ in server.requests if path != "/v1/models"] == []
    assert one.routes == []


def test_a_caller_cannot_lift_what_a_name_keeps_here_or_may_spend(served, tmp_path):
    """By no option, and not by asking for another preset."""
    with upstream(GOOD) as server:
        text = "[models.here]\npreset = 'private'\n" + away(server)
        text += "[models.near]\npreset = 'fast'\noptions = { reach = 'device' }\n" + away(server)
        text += "[models.poor]\nlocal = 'none'\n" + away(server)
        text += "budget = { usd = 1e-12, window_s = 100 }\n"
        one = served(text, device())
        for wish in (
            {},
            {"preset": "fast"},
            {"reach": "any"},
            {"local_only": False},
            {"preset": "server-first"},
        ):
            asks = {**CHAT, "disco": {"pace_tps": "off", **wish}}
            for name in ("here", "near"):
                assert one.ask(CHATS, {**asks, "model": name}).status == 200
            refused = one.ask(CHATS, {**asks, "model": "poor"})
            assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
        assert (
            one.ask("/v1/embeddings", {"input": "x", "model": "here"}).error["code"] == "no_eligible_endpoint"
        )
        assert [path for path, *_ in server.requests if path != "/v1/models"] == []
    assert {route.winner for route in one.routes} == {"device"}


def test_names_without_a_budget_share_that_at_the_top_and_others_have_their_own(served):
    """Also without a state file."""
    with upstream(*[GOOD] * 8) as server:
        names = "".join(f"[models.{name}]\nlocal = 'none'\n{away(server)}" for name in ("one", "two", "own"))
        names += "budget = { server_tokens = 5000, window_s = 100 }\n[models.here]\npreset = 'private'\n"
        one = served("[budget]\nserver_tokens = 4000\nwindow_s = 100\n" + names, device())

        def left() -> dict:
            return one.portal.call(lambda: one.models.budgets_left(0.0))

        first, second, own = (("one", "server_tokens"), ("two", "server_tokens"), ("own", "server_tokens"))
        assert left() == {first: 4000, second: 4000, own: 5000}
        assert one.ask(CHATS, {**CHAT, "model": "one", "max_tokens": 10}).status == 200
        after = left()
        assert after[first] == after[second] < 4000
        assert after[own] == 5000
        assert f'disco_budget_left{{limit="server_tokens",model="two"}} {after[second]}' in (
            one.ask("/metrics").body.decode()
        )
    routers = [client.router for client in one.models.clients]
    assert (
        len({id(router.health) for router in routers}) == len({id(router.limiter) for router in routers}) == 1
    )


def test_other_programs_with_the_state_file_count_what_the_names_spent(served, tmp_path):
    text = '[budget]\ndevice_tokens = 4000\nwindow_s = 1000\naccount = "all"\n[models.a]\n[models.b]\n'
    one = served(text, device(), state=tmp_path / "state.sqlite3")
    for name in ("a", "b"):
        assert one.ask(CHATS, {**CHAT, "model": name}).status == 200
    now = time.time()
    left = one.portal.call(lambda: one.models.budgets_left(now))
    assert left["a", "device_tokens"] == left["b", "device_tokens"] < 4000
    with contextlib.closing(limiter_of(tmp_path / "state.sqlite3")) as elsewhere:
        counter = elsewhere.counter(Limit("x", "device", "tokens", 4000, 1000, "all"))
        assert counter.left(now) == left["a", "device_tokens"]


@pytest.mark.anyio
async def test_a_name_that_is_closed_leaves_what_another_still_counts(tmp_path):
    """The budget of an answer that is cut off at the end is charged what it took, not all that was reserved."""
    path, limits = tmp_path / "state.sqlite3", {"device_tokens": 4000, "window_s": 1000}
    slow = SimulatedEndpoint("device", SimulatedProfile(gap_s=0.01, answer_tokens=2000), place="device")
    given = {"local": slow, "preset": "private", "state": path, "power": False, "budget": limits}
    async with AsyncDisco(**given) as first, AsyncDisco(**given, _beside=first):
        body = {"disco": {"pace_tps": "off"}}
        stream = await first.chat.completions.create(
            model="m", messages=HELLO, max_tokens=2000, stream=True, extra_body=body
        )
        await anext(aiter(stream))
    with contextlib.closing(limiter_of(path)) as elsewhere:
        assert elsewhere.counter(Limit("x", "device", "tokens", 4000, 1000)).left(time.time()) > 3900


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as the HTTP server
async def test_a_model_that_cannot_be_loaded_ends_the_start_at_once(tmp_path):
    """Whatever the others are doing: here, they never get ready."""
    slow, broken = (SimulatedEndpoint(name, QUICK, place="device") for name in ("slow", "broken"))
    slow.warm_up = anyio.sleep_forever
    broken.warm_up = partial(_fail, ModelFileError("There is no model file."))
    async with AsyncDisco(local=slow, preset="private") as a, AsyncDisco(local=broken, preset="private") as b:
        models = NamedModels([NamedModel("a", a, "a"), NamedModel("b", b, "b")])
        with anyio.fail_after(20), pytest.raises(ModelFileError, match="no model file"):
            await serve(models, port=0)


async def _fail(error: Exception) -> None:
    raise error


def test_a_model_that_reaches_no_server_shares_what_the_device_may_do(served):
    text = "[budget]\nusd = 1\ndevice_tokens = 4000\nwindow_s = 100\n[models.a]\npreset = 'private'\n"
    with upstream() as server:
        one = served(f"{text}[models.b]\n{away(server)}", device())
        assert one.ask(CHATS, {**CHAT, "model": "a"}).status == 200
        left = one.portal.call(lambda: one.models.budgets_left(0.0))
    assert left["a", "device_tokens"] == left["b", "device_tokens"] < 4000
    assert left.keys() == {("a", "device_tokens"), ("b", "device_tokens"), ("b", "usd")}


def test_one_local_model_is_loaded_once_and_two_have_breakers_of_their_own(served):
    names = "".join(f"[models.{name}]\npreset = 'private'\n" for name in ("a", "b"))
    text = f'local = "smollm2-135m"\n{names}[models.c]\npreset = "private"\nlocal = "./other.gguf"\n'
    one = served(text)
    a, b, c = (model.client.router for model in one.models.named)
    assert a.local is b.local
    assert a.local is not c.local
    identities = [router.endpoints.members(None)[0].identity for router in (a, b, c)]
    assert identities[0] == identities[1] != identities[2]
    assert a.health is c.health
    # Nor do two of the same kind, whose addresses are the same.
    entries = [CatalogEntry(HostEndpoint(model=name, name="device")) for name in ("a.gguf", "b.gguf")]
    assert entries[0].address == entries[1].address
    assert entries[0].identity != entries[1].identity
    assert one.models.attachable is a.local
    assert (a.endpoints._owns_local, b.endpoints._owns_local) == (True, False)


def test_the_model_of_a_verify_server_is_the_local_one_of_all_names_or_of_none(served):
    one = served(
        "verify = 'x.gguf'\n[models.a]\n[models.b]\nlocal = 'none'\n" + 'base_url = "http://127.0.0.1:9/v1"',
        device(),
    )
    a, b = (model.client.router.local for model in one.models.named)
    assert (a.name, b) == ("device", None)
    with pytest.raises(
        ConfigurationError, match=r'\[models.a\]: local = ".*y.gguf" cannot be used with verify'
    ):
        served("verify = 'x.gguf'\n[models.a]\nlocal = 'y.gguf'", device())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models.a]\nlocal = 'none'", r"\[models.a\]: no model could answer.*local.*base_url"),
        (
            "[models.a]\npreset = 'privat'\nlocal = 'smollm2-135m'",
            r"\[models.a\]: no preset is called 'privat'",
        ),
        (
            "[models.a]\nlocal = 'smollm2-135m'\noptions = { pase = 1 }",
            r"\[models.a\]: Unknown option 'pase'",
        ),
        (
            "[models.a]\nlocal = 'smollm2-135m'\nbudget = { dollars = 1, window_s = 9 }",
            r"\[models.a\]: budget: unknown key dollars.*usd",
        ),
        (
            "[models.a]\npreset = 'private'\nbase_url = 'http://127.0.0.1:1/v1'",
            r"\[models.a\]: .*no local model",
        ),
        ("default = 'b'\n[models.a]\nlocal = 'smollm2-135m'", "default names the model 'b'.*a"),
        ("[models.' ']\nlocal = 'smollm2-135m'", "' ' is no name of a model"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_its_table(served, text, says):
    with pytest.raises(ConfigurationError, match=says):  # the command names the file before it
        served(text)


def test_a_name_is_one_line_and_given_once():
    client = AsyncDisco(local=device(), preset="private")
    for names in (["a", "a"], ["a\nb"], [""], ["a" * 201]):
        with pytest.raises(ConfigurationError):
            NamedModels([NamedModel(name, client, name) for name in names])
    models = NamedModels.of(client)
    assert (models.find("any").model, models.find(None).model, models.named) == ("any", "", ())
    with pytest.raises(Refusal):
        NamedModels.of(None).find("any")
