"""From features to a plan: nobody unsuitable takes part, and the same snapshot and seed decide the same."""

from dataclasses import replace

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.dispatch import (
    Arrangement,
    Candidate,
    Dispatcher,
    Features,
    Migration,
    Preset,
    Start,
    TwoSided,
    eligible,
    load_preset,
)
from disco.errors import ContextLengthError, NoEndpointError
from disco.plan import CoolDown
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

LENGTHS = Lengths.from_samples([10] * 8 + [20] * 4 + [400])
TTFT = Empirical.from_samples([0.3, 0.4, 0.5, 0.9, 4.0])
# On the mains a device's token is nearly free; on battery it is dearer than the server's.
LAPTOP = Candidate("laptop", "device", rates=Rates(1e-9, 1e-9), continues=True, parks=True)
PHONE = replace(LAPTOP, name="phone", rates=Rates(2e-6, 2e-6))
CLOUD = Candidate("cloud", "any", rates=Rates(1.5e-7, 6e-7), continues=True, overhead_s=1.5)


def known():
    return {"lengths": LENGTHS, "ttft": TTFT, "rng": np.random.default_rng(0)}


def dispatcher(**sections):
    return Dispatcher(Preset(**sections), **known())


def cool_downs(names):
    return {name: CoolDown(name, "failures", "server", 3, 4.0) for name in names}


def test_a_side_that_cannot_serve_is_replaced_and_the_policy_follows_prices_between_requests():
    wanted, served = Features(5, needs=frozenset({"tools"})), {"laptop": frozenset(), "cloud": None}
    forced = dispatcher(dispatch={"policy": "device_only"})
    assert forced.plan(wanted, [LAPTOP, CLOUD], served).starts == (Start("cloud"),)
    assert dispatcher(migration={"enabled": False}).plan(Features(900), [PHONE, CLOUD], {}).migrations == {}
    one = TwoSided(load_preset("balanced").dispatch, **known())
    policies = ["length_threshold", "wait_time", "length_threshold"]
    assert [one.policy_for(d, CLOUD).name for d in (LAPTOP, PHONE, LAPTOP)] == policies


REACHES = ["device", "own", "any"]
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from("abcdef"),
        reach=st.sampled_from(REACHES),
        rates=st.builds(Rates, st.sampled_from([0.0, 1e-7, 1e-6]), st.sampled_from([0.0, 1e-7, 1e-6])),
        continues=st.booleans(),
        context_tokens=st.sampled_from([None, 512, 4_096]),
    ),
    max_size=6,
    unique_by=lambda c: c.name,
)
FEATURES = st.builds(
    Features,
    prompt_tokens=st.sampled_from([448, 449, 492, 493, 4032, 4033]) | st.integers(0, 5_000),
    max_tokens=st.none() | st.just(20) | st.integers(1, 100),
    needs=st.sampled_from([frozenset(), frozenset({"tools"})]),
    reach=st.sampled_from(REACHES),
    may_migrate=st.booleans(),
)
UNSHARED = ["race", "device_only", "server_only"]
NAMES = st.frozensets(st.sampled_from("abcdef"))


@settings(max_examples=150)
@given(
    candidates=CANDIDATES,
    wanted=FEATURES,
    policy=st.sampled_from(["auto", "wait_time", "optimal_wait", "length_threshold", "random", *UNSHARED]),
    budget=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    able=NAMES,
    resting=NAMES,
    probing=NAMES,
    budget_class=st.sampled_from(["background", "standard", "urgent"]),
)
def test_a_plan_names_all_eligible_endpoints_and_no_other(
    candidates, wanted, policy, budget, able, resting, probing, budget_class
):
    """Each once, those that rest last; moves stay among them and save money; the same seed plans the same."""
    share = {} if policy in UNSHARED else {"budget": budget}
    one, again = (dispatcher(dispatch={"policy": policy, **share}) for _ in range(2))
    probing -= resting
    served = {name: frozenset({"tools"}) for name in able}
    how = {"resting": cool_downs(resting), "probing": probing, "budget_class": budget_class}
    # The estimate may be 32 times too high; the limit of the answer does not count, nor does an unknown context.
    least = wanted.prompt_tokens // 32
    allowed = {
        c.name: c
        for c in candidates
        if REACHES.index(c.reach) <= REACHES.index(wanted.reach)
        and (not wanted.needs or c.name in able)
        and (c.context_tokens is None or least < c.context_tokens)
    }
    if not allowed:
        with pytest.raises(NoEndpointError):
            one.plan(wanted, candidates, served, **how)
        return
    assert [c.name for c in eligible(wanted, candidates, served)] == list(allowed)  # in the given order
    made = one.plan(wanted, candidates, served, **how)
    assert made == again.plan(wanted, candidates, served, **how)
    named = [s.endpoint for s in made.starts] + list(made.fallbacks)
    assert sorted(named) == sorted(allowed)
    assert made.starts
    assert min(s.after_s for s in made.starts) == 0.0
    rested = {r.endpoint for r in made.deprioritised if r.reason != "short_context"}
    assert rested == (allowed.keys() & resting if allowed.keys() - resting else set())
    # Of those that are left, the ones that would cut a typical answer off come behind the others.
    awake = allowed.keys() - rested
    tokens = wanted.prompt_tokens + min(256, 256 if wanted.max_tokens is None else wanted.max_tokens)
    short = {name for name in awake if tokens > (allowed[name].context_tokens or tokens)}
    spared = {r.endpoint for r in made.deprioritised if r.reason == "short_context"}
    assert spared == (short if awake - short else set())
    assert {s.endpoint for s in made.starts} <= awake - spared
    assert set(named[len(named) - len(rested) - len(spared) :]) == rested | spared
    assert set(named[len(named) - len(rested) :]) == rested
    assert not {m.target for m in made.migrations.values()} & (resting | probing | short)
    for writer, move in made.migrations.items():
        assert wanted.may_migrate
        assert allowed[move.target].continues
        assert allowed[move.target].rates.cost_out < allowed[writer].rates.cost_out


def test_a_refusal_lists_every_endpoint_with_its_reason_and_a_remedy_and_openai_users_know_a_long_prompt():
    near, home = Candidate("phone", "device", context_tokens=2_048), Candidate("home", "own")
    far = Candidate("cloud", "any", context_tokens=8_192)
    served = {"phone": frozenset(), "cloud": frozenset({"tools", "json_schema"}), "home": None}
    tools = {"needs": frozenset({"tools", "audio"})}
    served_by_none = (
        r"(?s)phone \(device\): it does not serve audio, tools.*cloud \(server\): it is a server and the "
    )
    for features, candidates, said in [
        (Features(1), (), "No endpoint is configured"),
        (Features(10, reach="own"), (far,), r'cloud \(server\): .*own machines.*reach "own".*reach "any"'),
        (
            Features(10, reach="device", **tools),
            (near, far),
            f"{served_by_none}request is local-only; it does not serve.*local_only = false",
        ),
    ]:
        with pytest.raises(NoEndpointError, match=said) as refused:
            eligible(features, candidates, served)
        assert not isinstance(refused.value, ContextLengthError)
    assert eligible(Features(10, **tools), (near, home, far), served) == [home]
    for reach, said in [
        (
            "any",
            r"maximum context length is 8192 .* resulted in at least 9375 .*phone.*2048.*cloud.*8192.*shorten",
        ),
        # Also where one place alone may serve it.
        ("device", r"maximum context length is 2048 .*cloud \(server\): it is a server"),
    ]:
        with pytest.raises(ContextLengthError, match=said) as caught:
            eligible(Features(300_000, reach=reach), (near, far), served)
        assert isinstance(caught.value, openai.BadRequestError)
        assert caught.value.code == "context_length_exceeded"


def test_an_endpoint_whose_context_may_be_too_short_answers_where_no_other_can():
    """By a typical answer, and not by the limit: programs ask for 32,000 tokens, and get 200."""
    phone = Candidate("phone", "device", rates=Rates(0.0, 0.0), context_tokens=4_096)
    cloud = Candidate("cloud", "any", rates=Rates(1e-6, 1e-6), context_tokens=128_000)
    one = Dispatcher(Preset(name="t", dispatch={"policy": "device_only"}), **known())
    for features, first, spared in [
        (Features(10, max_tokens=32_000), "phone", ()),
        (Features(4_000, max_tokens=50), "phone", ()),
        (Features(4_000, max_tokens=32_000), "cloud", ("phone",)),
        (Features(4_000), "cloud", ("phone",)),
        (Features(9_000), "cloud", ("phone",)),  # by an estimate: it takes over where the other fails
        (Features(4_000, counted={"phone": 3_000}), "phone", ()),  # its own count
        (Features(10, counted={"phone": 5_000}), "cloud", None),  # it could not answer
    ]:
        made = one.plan(features, [phone, cloud], {})
        assert made.starts[0].endpoint == first, features
        assert [rest.endpoint for rest in made.deprioritised] == list(spared or ())
        assert ("phone" in made.fallbacks) == (first == "cloud" and spared is not None)
        assert [left.endpoint for left in made.left_out] == ([] if spared is not None else ["phone"])
    assert one.plan(Features(9_000), [phone], {}).starts[0].endpoint == "phone"  # which decides itself
    with pytest.raises(ContextLengthError, match="resulted in 5000 tokens"):
        one.plan(Features(10, counted={"phone": 5_000}), [phone], {})


class InRankOrder:
    """An arrangement of another kind: every endpoint starts, in the user's order, a second apart."""

    def arrange(self, features, able, budget_class):
        ladder = sorted(able, key=lambda c: c.rank)
        starts, names = [Start(c.name, float(i)) for i, c in enumerate(ladder)], tuple(c.name for c in ladder)
        if budget_class == "background":
            return Arrangement((starts[0],), names, frozenset(names[1:]))
        return Arrangement(tuple(starts), names)

    def limited(self, able):
        return frozenset(c.name for c in able if c.rank)

    def refit(self, lengths, ttft):
        self.lengths = lengths


def test_any_arrangement_of_any_number_of_endpoints_is_planned():
    """Three tiers and no side: all that is not about who starts is the dispatcher's, whatever decides that."""
    tiers = [
        Candidate("top", "any", rates=Rates(3e-6, 9e-6), rank=2, continues=True),
        Candidate("home", "own", rates=Rates(1e-7, 1e-7), rank=1, continues=True),
        Candidate("here", "device", rates=Rates(0.0, 0.0), rank=0, continues=True, overhead_s=0.2),
    ]
    one = Dispatcher(Preset(), **known(), arranging=InRankOrder())
    here, home, top = Start("here"), Start("home", 1.0), Start("top", 2.0)
    own = Features(9, reach="own")
    for features, candidates, how, starts in [
        (Features(9), tiers, {}, (here, home, top)),
        (own, tiers, {}, (here, home)),
        (Features(9), tiers, {"budget_class": "background"}, (here,)),
    ]:
        assert one.plan(features, candidates, {}, **how).starts == starts
    assert one.plan(own, tiers, {}).migrations == {"home": Migration("here", keep_prefill=False)}
    assert one.plan(Features(9), tiers, {}, budget_class="background").fallbacks == ("home", "top")


def test_what_an_endpoint_is_known_to_lack_is_not_sent_there_although_it_decides_about_all_else():
    blind, other = Candidate("blind", "device"), Candidate("other", "device")
    served, lacks = {"blind": None, "other": None}, {"blind": {"images": "it has no projector"}}
    assert eligible(Features(10, needs=frozenset({"images"})), (blind, other), served, lacks) == [other]
    assert eligible(Features(10, needs=frozenset({"tools"})), (blind, other), served, lacks) == [blind, other]
    with pytest.raises(NoEndpointError, match=r"does not serve images \(it has no projector\)") as refused:
        eligible(Features(10, needs=frozenset({"images", "tools"})), (blind,), served, lacks)
    assert refused.value.param == "messages"
