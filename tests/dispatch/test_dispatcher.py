"""From features to a plan: nobody unsuitable takes part, and the same snapshot and seed decide the same."""

import numpy as np
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
    load_preset,
)
from disco.errors import NoEndpointError
from disco.plan import CoolDown
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

LENGTHS = Lengths.from_samples([10] * 8 + [20] * 4 + [400])
TTFT = Empirical.from_samples([0.3, 0.4, 0.5, 0.9, 4.0])
# On the mains a device's token is nearly free; on battery it is dearer than the server's.
LAPTOP = Candidate("laptop", "device", rates=Rates(1e-9, 1e-9), continues=True, parks=True)
PHONE = Candidate("phone", "device", rates=Rates(2e-6, 2e-6), continues=True, parks=True)
CLOUD = Candidate("cloud", "any", rates=Rates(1.5e-7, 6e-7), continues=True)
FINE = Candidate("fine", "any", rates=Rates(3e-6, 1.5e-5), continues=True)


def dispatcher(preset="balanced", seed=0, **sections):
    chosen = Preset(**sections) if sections else load_preset(preset)
    return Dispatcher(chosen, lengths=LENGTHS, ttft=TTFT, rng=np.random.default_rng(seed))


def plan(features, candidates, preset="balanced", served=None, **sections):
    return dispatcher(preset, **sections).plan(features, candidates, served or {})


def two_sided(preset="balanced"):
    return TwoSided(load_preset(preset).dispatch, lengths=LENGTHS, ttft=TTFT, rng=np.random.default_rng(0))


def test_auto_spares_the_more_expensive_side_also_when_prices_change_between_requests():
    short = plan(Features(5), [LAPTOP, CLOUD])
    assert (short.starts, short.fallbacks) == ((Start("laptop"),), ("cloud",))
    assert plan(Features(900), [LAPTOP, CLOUD]).starts == (Start("laptop"), Start("cloud"))
    first, second = plan(Features(900), [PHONE, CLOUD]).starts
    assert (first, second.endpoint) == (Start("cloud"), "phone")
    assert second.after_s > 0
    one = two_sided()
    policies = ["length_threshold", "wait_time", "length_threshold"]
    assert [one.policy_for(d, CLOUD).name for d in (LAPTOP, PHONE, LAPTOP)] == policies


def test_the_cheapest_of_each_side_takes_part_and_the_others_stand_by_cheapest_first():
    made = plan(Features(900), [FINE, PHONE, CLOUD, LAPTOP])
    assert {s.endpoint for s in made.starts} == {"laptop", "cloud"}
    assert made.fallbacks == ("phone", "fine")


def test_one_side_alone_starts_at_once_whatever_the_policy():
    for preset in ("balanced", "battery-saver", "cheap", "fast"):
        assert plan(Features(900), [PHONE], preset).starts == (Start("phone"),)
        assert plan(Features(900), [CLOUD], preset).starts == (Start("cloud"),)


def test_device_only_is_served_by_a_server_where_the_device_cannot():
    wanted = Features(5, needs=frozenset({"tools"}))
    served = {"laptop": frozenset(), "cloud": None}
    sections = {"dispatch": {"policy": "device_only"}}
    assert plan(wanted, [LAPTOP, CLOUD], served=served, **sections).starts == (Start("cloud"),)


MUTE = Candidate("mute", "device", rates=Rates(1e-9, 1e-9))


@pytest.mark.parametrize(
    ("candidates", "moves"),
    [
        ([LAPTOP, PHONE, CLOUD], {"phone": Migration("laptop"), "cloud": Migration("laptop")}),
        ([PHONE, CLOUD], {"phone": Migration("cloud", keep_prefill=False)}),  # a server keeps none
        ([MUTE, CLOUD], {}),
    ],
)
def test_every_dearer_writer_may_hand_over_to_the_cheapest_that_continues(candidates, moves):
    assert plan(Features(900), candidates).migrations == moves
    assert plan(Features(900, may_migrate=False), candidates).migrations == {}
    assert plan(Features(900), candidates, migration={"enabled": False}).migrations == {}


def test_presets_decide_starts_order_and_reach():
    assert plan(Features(1), [LAPTOP, CLOUD], "fast").starts == (Start("laptop"), Start("cloud"))
    assert plan(Features(9), [LAPTOP, CLOUD], "cheap").order == "break_before_make"
    with pytest.raises(NoEndpointError, match="local-only"):
        plan(Features(9), [CLOUD], "private")


def test_refit_changes_the_plan():
    one = dispatcher("battery-saver")
    before = one.plan(Features(900), [PHONE, CLOUD], {}).starts[1].after_s
    one.refit(LENGTHS, Empirical.from_samples([10 * t for t in (0.3, 0.4, 0.5, 0.9, 4.0)]))
    assert one.plan(Features(900), [PHONE, CLOUD], {}).starts[1].after_s >= 2 * before


REACHES = ["device", "own", "any"]
candidates = st.lists(
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
features = st.builds(
    Features,
    prompt_tokens=st.integers(0, 5_000),
    max_tokens=st.none() | st.integers(1, 100),
    needs=st.sampled_from([frozenset(), frozenset({"tools"})]),
    reach=st.sampled_from(REACHES),
    may_migrate=st.booleans(),
)
policies = st.sampled_from(
    ["auto", "wait_time", "optimal_wait", "length_threshold", "race", "random", "device_only", "server_only"]
)
budgets = st.sampled_from([0.0, 0.05, 0.5, 1.0])


@settings(max_examples=200)
@given(
    given_candidates=candidates,
    wanted=features,
    policy=policies,
    budget=budgets,
    able=st.frozensets(st.sampled_from("abcdef")),
    resting=st.frozensets(st.sampled_from("abcdef")),
    probing=st.frozensets(st.sampled_from("abcdef")),
    budget_class=st.sampled_from(["background", "standard", "urgent"]),
)
def test_a_plan_names_all_eligible_endpoints_and_no_other(
    given_candidates, wanted, policy, budget, able, resting, probing, budget_class
):
    """Each once, those that rest last; moves stay among them and save money; the same seed plans the same."""
    share = {} if policy in ("race", "device_only", "server_only") else {"budget": budget}
    one, again = (dispatcher(dispatch={"policy": policy, **share}) for _ in range(2))
    probing -= resting
    how = {
        "served": {name: frozenset({"tools"}) for name in able},
        "resting": {name: CoolDown(name, "failures", "server", 3, 4.0) for name in resting},
        "probing": probing,
        "budget_class": budget_class,
    }
    limit = wanted.prompt_tokens + (64 if wanted.max_tokens is None else wanted.max_tokens)
    allowed = {
        c.name: c
        for c in given_candidates
        if REACHES.index(c.reach) <= REACHES.index(wanted.reach)
        and (not wanted.needs or c.name in able)
        and (c.context_tokens is None or limit <= c.context_tokens)
    }
    if not allowed:
        with pytest.raises(NoEndpointError):
            one.plan(wanted, given_candidates, **how)
        return
    made = one.plan(wanted, given_candidates, **how)
    assert made == again.plan(wanted, given_candidates, **how)
    named = [s.endpoint for s in made.starts] + list(made.fallbacks)
    assert sorted(named) == sorted(allowed)
    assert made.starts
    assert min(s.after_s for s in made.starts) == 0.0
    rested = {r.endpoint for r in made.deprioritised}
    assert rested == (allowed.keys() & resting if allowed.keys() - resting else set())
    assert set(named[len(named) - len(rested) :]) == rested
    assert not {m.target for m in made.migrations.values()} & (resting | probing)
    for writer, move in made.migrations.items():
        assert wanted.may_migrate
        assert allowed[move.target].continues
        assert allowed[move.target].rates.cost_out < allowed[writer].rates.cost_out


class InRankOrder:
    """An arrangement of another kind: every endpoint starts, in the user's order, a second apart."""

    def arrange(self, features, able, budget_class):
        ladder = sorted(able, key=lambda c: c.rank)
        starts = tuple(Start(c.name, float(i)) for i, c in enumerate(ladder))
        if budget_class == "background":
            return Arrangement(
                starts[:1], tuple(c.name for c in ladder), frozenset(c.name for c in ladder[1:])
            )
        return Arrangement(starts, tuple(c.name for c in ladder))

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
    known = {"lengths": LENGTHS, "ttft": TTFT, "rng": np.random.default_rng(0)}
    one = Dispatcher(Preset(), **known, arranging=InRankOrder())
    assert one.plan(Features(9), tiers, {}).starts == (Start("here"), Start("home", 1.0), Start("top", 2.0))
    bounded = one.plan(Features(9, reach="own"), tiers, {})
    assert [s.endpoint for s in bounded.starts] == ["here", "home"]
    assert bounded.migrations == {"home": Migration("here", keep_prefill=False)}
    spared = one.plan(Features(9), tiers, {}, budget_class="background")
    assert (spared.starts, spared.fallbacks) == ((Start("here"),), ("home", "top"))
    everywhere = one.plan(Features(9), tiers, {}, probing=["here", "home", "top"])
    assert len(everywhere.starts) == 3
    alone = one.plan(Features(9), tiers[2:], {}, probing=["here"])
    assert alone.starts == (Start("here"),)
    backed = one.plan(Features(9, reach="own"), tiers, {}, probing=["home"])
    assert backed.starts == (Start("here"), Start("home", 1.0))
