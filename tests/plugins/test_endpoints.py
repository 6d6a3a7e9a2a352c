"""Kinds of endpoint that other packages add: where their texts are understood, and whose every fault is."""

from __future__ import annotations

import io
import json
import sys

import pytest
from servers import free_port

from disco import AsyncDisco, Backup, ConfigurationError, LocalServer, Plugin
from disco.cli.main import main
from disco.client.endpoint_catalog.plugged import as_plugin
from tests.plugins.made_package import install

CODE = """
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

def simulated(argument, *, name):
    if argument == "no":
        raise ValueError("write yes")
    if argument == "crash":
        raise RuntimeError("a secret")
    return SimulatedEndpoint(name, SimulatedProfile(answer_tokens=4), place=argument or "device")

def misnamed(argument, *, name):
    return SimulatedEndpoint("mine", SimulatedProfile(), place="device")

def misplaced(argument, *, name):
    made = simulated("device", name=name)
    made.place = "moon"
    return made

def words(argument, *, name):
    return argument

def nameless(argument):
    return argument
"""
ATTRIBUTES = ("simulated", "misnamed", "misplaced", "words", "nameless", "missing")
ASKED = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def package(site):
    install(site, "sim-endpoints", code=CODE, endpoints={name: name for name in ATTRIBUTES})


async def answer(client):
    stream = await client.chat.completions.create(model="gpt-4o-mini", messages=ASKED, stream=True)
    async for _ in stream:
        pass
    return stream.route


@pytest.mark.parametrize("local", ["simulated:", Plugin(endpoint="simulated:device", name="sim")])
@pytest.mark.anyio
async def test_the_local_side_is_named_by_a_text(package, local):
    async with AsyncDisco(local=local, preset="private") as client:
        route = await answer(client)
    name = "sim" if isinstance(local, Plugin) else "device"
    assert route.winner == name
    assert [attempt.endpoint for attempt in route.attempts] == [name]
    assert (route.bill_usd, route.policy_cost > 0) == (0.0, True)  # policies assume an energy of the device


@pytest.mark.anyio
async def test_a_tier_has_its_own_price(package):
    tier = Plugin(endpoint="simulated:server", price=(1.0, 2.0))
    async with AsyncDisco(local=None, tiers=[tier]) as client:
        route = await answer(client)
    (attempt,) = route.attempts
    assert attempt.endpoint == "tier-1"
    assert route.bill_usd == pytest.approx((attempt.prompt_tokens + 2 * attempt.completion_tokens) / 1e6)


@pytest.mark.real
@pytest.mark.anyio
async def test_a_backup_takes_the_place_of_a_server_that_does_not_answer(package):
    async with AsyncDisco(
        api_key="k", base_url="http://127.0.0.1:9/v1", backups=["simulated:server"], continuation="none"
    ) as client:
        route = await answer(client)
    assert [(a.endpoint, a.outcome) for a in route.attempts] == [
        ("server", "failed"),
        ("backup-1", "finished"),
    ]


def test_what_else_a_text_may_mean_is_not_taken(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:name").write_text("")
    for text in (
        "smollm2-135m",
        "hf:owner/repo/file.gguf",
        "http://localhost:11434/v1#qwen3:4b",
        "localhost:11434",
        "localhost:11434/v1#m",
        "c:model.gguf",
        "folder/with:colon.gguf",
        "other:model.gguf",
        "odd:name",
        None,
        tmp_path,
        LocalServer(base_url="http://localhost:1/v1"),
    ):
        assert as_plugin(text) is None
    assert as_plugin("simulated:8080") == Plugin(endpoint="simulated:8080")  # no host of that name is meant


@pytest.mark.parametrize(
    ("local", "said"),
    [
        (
            "simulatd:x",
            "No installed package adds a kind of endpoint called 'simulatd'. Did you mean 'simulated'",
        ),
        ("qwen3:4b", "A model of Ollama is named by its address"),
        ("simulated:no", "refuses what stands behind the colon: write yes"),
        ("simulated:crash", r"failed \(RuntimeError\) before it had made an endpoint"),
        ("misnamed:x", "calls its endpoint 'mine', and was told to call it 'device'"),
        ("misplaced:x", "not 'moon' with"),
        ("words:x", "makes a str, which is no disco.endpoints.contract.Endpoint"),
        ("nameless:x", r"failed \(TypeError\) before it had made an endpoint"),
        ("missing:x", "cannot be imported"),
    ],
)
def test_each_fault_names_the_package_and_never_what_stands_behind_the_colon(package, local, said):
    for given in ({"local": local}, {"tiers": [local]}, {"backups": [local], "api_key": "k"}):
        expected = said.replace("'device'", "'(device|tier-1|backup-1)'")
        with pytest.raises(ConfigurationError, match=expected) as error:
            AsyncDisco(**given)
        message = str(error.value)
        assert "sim-endpoints 1.0" in message or "No installed package" in message
        assert "secret" not in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endpoint": "simulated"}, "KIND:ARGUMENT"),
        ({"endpoint": "simulated:x", "price": (1, -1)}, "price must be two numbers"),
        ({"endpoint": "simulated:x", "name": ""}, "name is empty"),
    ],
)
def test_a_plugin_is_checked_where_it_is_written(given, said):
    with pytest.raises(ConfigurationError, match=said):
        Plugin(**given)


def test_options_of_a_model_that_disco_runs_are_not_for_it(package):
    with pytest.raises(ConfigurationError, match="prompt_cache is for a model that disco runs"):
        AsyncDisco(local="simulated:", prompt_cache=True)


def test_two_packages_with_one_name_refuse_that_name_alone(package, site):
    install(site, "other", code=CODE, endpoints={"simulated": "simulated", "mine": "simulated"})
    with pytest.raises(ConfigurationError, match=r"declared by other 1\.0 and sim-endpoints 1\.0"):
        AsyncDisco(local="simulated:")
    AsyncDisco(local="mine:")


def test_a_secret_behind_the_colon_is_in_no_repr():
    assert "secret" not in repr(Plugin(endpoint="simulated:secret"))
    assert "secret" not in repr(Backup(base_url="http://secret", api_key="secret", model="m"))


def test_disco_plugins_lists_what_is_installed_and_what_does_not_load(package, site, capsys):
    install(site, "coin", code="def make(*, ttft, width=1): ...", policies={"coin": "make", "race": "make"})
    install(site, "leaves", code="raise SystemExit", policies={"gone": "make"}, endpoints={"hf": "make"})
    install(site, "good", code="class P:\n  name='p'\n  def starts(self): ...\n", policies={"good": "P"})
    assert main(["plugins"]) == 1
    printed = capsys.readouterr().out
    rows = {line.split("│")[1].strip(): line for line in printed.splitlines() if line.startswith("│")}
    assert "loads" in rows["simulated:..."]
    assert "sim-endpoints 1.0" in rows["simulated:..."]
    assert "cannot be imported" in rows["missing:..."]
    assert "makes a NoneType" in rows["coin"]
    assert "disco has a policy of this name" in rows["race"]
    assert "SystemExit" in rows["gone"]
    assert "never used" in rows["hf:..."]
    assert "loads" in rows["good"]


def test_an_output_that_takes_few_characters_gets_the_rest_as_question_marks(site, monkeypatch):
    """As a pipe on Windows, whose encoding is the system's."""
    install(site, "greek", code="def make(): ...", endpoints={"λ-kind": "make"})
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)
    monkeypatch.setattr(sys, "stdout", pipe)
    main(["plugins"])
    assert "?-kind" in pipe.buffer.getvalue().decode("cp1252")


def doctor(capsys, *arguments: str) -> dict[str, list[dict[str, str]]]:
    main(["doctor", "--json", "--state", "off", "--port", str(free_port()), *arguments])
    printed = capsys.readouterr().out
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(printed)["findings"]:
        found.setdefault(one["subject"], []).append(one)
    assert "hidden" not in printed
    return found


@pytest.mark.real
def test_doctor_tries_the_endpoint_and_names_what_does_not_load(package, capsys, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    found = doctor(capsys, "--local", "simulated:device")
    (tried,) = found["local model"]
    assert (tried["verdict"], tried["what"][:24]) == ("works", "simulated:... loads in 0")
    assert {"works", "does not"} == {one["verdict"] for one in found["plug-ins"]}
    (broken,) = (one for one in found["plug-ins"] if one["verdict"] == "does not")
    assert "'missing' of the package sim-endpoints 1.0" in broken["what"]
    assert "pip uninstall sim-endpoints" in broken["remedy"]
    # One that may send prompts anywhere is not asked without --ask; what stands behind the colon is never shown.
    (unasked,) = doctor(capsys, "--local", "simulated:server")["local model"]
    assert (unasked["verdict"], unasked["remedy"]) == ("not checked", "disco doctor --ask")
    (refused,) = doctor(capsys, "--local", "hiding:hidden")["local model"]
    assert refused["verdict"] == "does not"
