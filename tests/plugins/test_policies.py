"""Policies of other packages: what they are given, what their users may set, and whose every fault is."""

from __future__ import annotations

import numpy as np
import pytest

from disco.candidate import Candidate
from disco.dispatch import Features, FittedPolicy, VectorPolicy, build_policy, known_policies, load_preset
from disco.dispatch.policies.plugged_policy import policy_spec
from disco.dispatch.policies.policy_registry import has_budget
from disco.errors import ConfigurationError
from disco.profiles import Empirical, Lengths
from disco.replay.sweeps.sweep import is_budgetless
from tests.plugins.made_package import install

CODE = """
from disco.dispatch import ServerOnly, Start

def coin(*, lengths, ttft, device, budget, tail, rng):
    return ServerOnly(name=f"coin:{budget}:{device.name}")

class Odd:
    name = "odd"
    def __init__(self, *, device, side="server", after_s=0.0, few=1):
        if side == "nowhere":
            raise ValueError("side is no side")
        self.side, self.after_s, self.few = side, after_s, few
    def starts(self, features, device, server):
        return [Start(self.side, self.after_s)] * self.few

class Quick(Odd):
    def delays(self, prompt_tokens): ...
    def refit(self, lengths, ttft): ...

def wrong(): return 7
nothing = 7
class Failing(Quick):
    def __init__(self, *, made=True, fails=""):
        if not made:
            raise KeyError("a secret")
        self.fails = fails
    def _do(self, what):
        if what == self.fails:
            raise RuntimeError("a secret")
    def starts(self, features, device, server):
        self._do("starts")
        return [Start("server")]
    def refit(self, lengths, ttft): self._do("refit")
    def delays(self, prompt_tokens):
        self._do("delays")
        return {"none": None, "short": ([0.0], [0.0]), "negative": (prompt_tokens * -1.0, prompt_tokens)}.get(
            self.fails, (prompt_tokens * 0, prompt_tokens * float("inf"))
        )
class Words:
    name = "words"
    def starts(self, features, device, server): return ["server"]
"""
ATTRIBUTES = ("coin", "Odd", "Quick", "wrong", "nothing", "missing", "Words", "Failing")
DEVICE, SERVER = Candidate("device", "device"), Candidate("server", "any")


@pytest.fixture
def package(site):
    install(site, "coin-flips", code=CODE, policies={name.lower(): name for name in ATTRIBUTES})


def build(name, **options):
    return build_policy(
        name,
        lengths=Lengths.from_samples([1]),
        ttft=Empirical.from_samples([1.0]),
        device=DEVICE,
        budget=0.25,
        tail=0.0,
        rng=np.random.default_rng(0),
        server_constrained=True,
        options=options,
    )


def preset(policy, **dispatch):
    return load_preset({"dispatch": {"policy": policy, **dispatch}})


def test_a_factory_gets_what_it_names_and_its_options(package):
    assert {"coin", "missing", "race"} <= set(known_policies())
    assert build("coin").name == "coin:0.25:device"
    for options in ({}, {"side": "device", "after_s": 0.5}):
        (start,) = build("odd", **options).starts(Features(1), DEVICE, SERVER)
        assert (start.endpoint, start.after_s) == (options.get("side", "server"), options.get("after_s", 0.0))
    assert preset("odd", options={"after_s": 1}).dispatch.options == {"after_s": 1}
    quick, odd = build("quick"), build("odd")
    assert isinstance(quick, FittedPolicy)
    assert isinstance(quick, VectorPolicy)
    assert not isinstance(odd, FittedPolicy | VectorPolicy)


def test_a_policy_has_a_budget_if_its_factory_names_it(package):
    assert has_budget("coin")
    assert not has_budget("odd")
    assert is_budgetless("odd:after_s=1")
    assert preset("coin", budget=0.3).dispatch.budget == 0.3
    with pytest.raises(ConfigurationError, match="'odd' has no budget; remove budget"):
        preset("odd", budget=0.3)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("race", {}),
        ("odd:after_s=0.5,side=device", {"after_s": 0.5, "side": "device"}),
        ('odd: few = 2 , side = "a b"', {"few": 2, "side": "a b"}),
        ("odd:few=true", {"few": True}),
    ],
)
def test_options_behind_a_name_are_read_as_toml_reads_them(text, options):
    assert policy_spec(text) == (text.partition(":")[0], options)
    assert [type(value) for value in policy_spec(text)[1].values()] == [type(v) for v in options.values()]


@pytest.mark.parametrize("text", ["odd:", "odd:few", "odd:few=", "odd:=1", "odd:few=1,few=2"])
def test_options_that_are_none_are_refused(text):
    with pytest.raises(ConfigurationError, match="write NAME:KEY=VALUE"):
        policy_spec(text)


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        (
            "missing",
            {},
            r"coin_flips:missing, which cannot be imported \(AttributeError: .*Reinstall or update",
        ),
        ("nothing", {}, "cannot be called"),
        ("wrong", {}, "makes a int, which is no policy"),
        ("odd", {"aftr_s": 1}, "has no option 'aftr_s'. Did you mean 'after_s'"),
        ("coin", {"few": 1}, "has no option 'few'. It has no options"),
        ("coin", {"budget": 1}, "'budget' is given by disco"),
        ("odd", {"side": "nowhere"}, "cannot be made: side is no side"),
    ],
)
def test_a_preset_that_cannot_be_followed_is_refused_where_it_is_read(package, policy, options, said):
    """And the message names the package, whose name the user may never have heard."""
    with pytest.raises(
        ConfigurationError, match=rf"policy '{policy}' of the package coin-flips 1\.0.*{said}"
    ):
        preset(policy, options=options)
    assert preset("race").dispatch.policy == "race"  # others are not harmed


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("odd", {"few": 0}, "starts nothing"),
        ("odd", {"side": "edge"}, "starts 'edge'; this request has only 'device' and 'server'"),
        ("odd", {"after_s": -1.0}, "after -1.0 s"),
        ("odd", {"after_s": float("inf")}, "To start it never, leave its start out"),
        ("odd", {"after_s": "soon"}, "after 'soon' s"),
        ("words", {}, "returns a str where a disco.plan.Start must be"),
    ],
)
def test_a_decision_that_is_none_names_the_package(package, policy, options, said):
    with pytest.raises(ConfigurationError, match=rf"of the package coin-flips 1\.0.*{said}"):
        build(policy, **options).starts(Features(1), DEVICE, SERVER)


def test_what_a_policy_raises_is_told_by_its_type_with_the_package(package):
    tokens = np.array([1, 2])

    def refused(said, what, *given):
        with pytest.raises(
            ConfigurationError, match=rf"'failing' of the package coin-flips 1\.0.*{said}"
        ) as e:
            what(*given)
        assert "secret" not in str(e.value)

    refused(r"failed \(KeyError\) when it was made", lambda: build("failing", made=False))
    refused(
        r"failed \(RuntimeError\) when it decided",
        build("failing", fails="starts").starts,
        Features(1),
        DEVICE,
        SERVER,
    )
    refused(r"failed \(RuntimeError\) when it decided", build("failing", fails="delays").delays, tokens)
    unfitted = build("failing", fails="refit")
    unfitted.refit(Lengths.from_samples([1]), Empirical.from_samples([1.0]))  # the answer before is complete
    refused(r"failed \(RuntimeError\) when it was fitted", unfitted.starts, Features(1), DEVICE, SERVER)
    for wrong in ("none", "short", "negative"):
        refused("two times for each request", build("failing", fails=wrong).delays, tokens)
    device_s, server_s = build("failing").delays(tokens)
    assert (device_s.tolist(), server_s.tolist()) == ([0.0, 0.0], [np.inf, np.inf])


def test_policies_of_disco_have_no_options():
    with pytest.raises(ConfigurationError, match="'race' has no options of its own; remove x"):
        preset("race", options={"x": 1})


def test_two_packages_with_one_name_refuse_that_name_alone(package, site):
    install(site, "other", code=CODE, policies={"coin": "coin", "mine": "coin"})
    with pytest.raises(ConfigurationError, match=r"'coin' is declared by coin-flips 1\.0 and other 1\.0"):
        preset("coin")
    assert preset("mine").dispatch.policy == "mine"


def test_no_package_takes_a_name_of_discos(site):
    install(site, "other", code=CODE, policies={"race": "coin"})
    assert [s.endpoint for s in build("race").starts(Features(1), DEVICE, SERVER)] == ["device", "server"]
