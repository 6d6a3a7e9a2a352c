"""A cascade starts the lowest tier that can answer; what rests or is too slow is skipped, and no wall."""

from dataclasses import replace

import numpy as np
import pytest

from disco.dispatch import Candidate, Dispatcher, Features, Start, features_of, load_preset
from disco.dispatch.arranging import Arrangement
from disco.dispatch.cascade import CascadePolicy
from disco.plan import CoolDown
from disco.profiles import Empirical, Lengths
from disco.rates import Rates
from disco.request import Request

# 256 tokens take 10, 5 and 3 seconds; the backup is cheap but only stands in for the server.
HERE = Candidate("here", "device", rank=0, decode_tps=25.6)
HOME = Candidate("home", "own", rank=1, decode_tps=64.0, overhead_s=1.0)
TOP = Candidate(
    "top", "any", rates=Rates(1e-6, 1e-6), rank=2, decode_tps=256.0, overhead_s=2.0, continues=True
)
SPARE = replace(TOP, name="spare", rates=Rates(), standby=True)
ALL = (TOP, SPARE, HOME, HERE)


def planner() -> Dispatcher:
    known = {"lengths": Lengths.from_samples([9]), "ttft": Empirical.from_samples([1.0])}
    return Dispatcher(load_preset("cascade"), **known, rng=np.random.default_rng(0))


def arranged(features: Features, *able: Candidate, budget_class: str = "standard") -> Arrangement:
    return CascadePolicy().arrange(features, able, budget_class)


@pytest.mark.parametrize(
    ("resting", "features", "first", "fallbacks"),
    [
        ((), Features(9), "here", ("home", "top", "spare")),
        (("home",), Features(9), "here", ("top", "spare", "home")),
        (("here",), Features(9), "home", ("top", "spare", "here")),
        (("here", "home", "top", "spare"), Features(9), "here", ("home", "top", "spare")),
        ((), Features(9, reach="own"), "here", ("home",)),
        ((), Features(9, deadline_s=6.0), "home", ("top", "spare", "here")),
        ((), Features(9, deadline_s=4.0), "top", ("spare", "here", "home")),
        ((), Features(9, deadline_s=1.0), "top", ("here", "home", "spare")),  # the first to be done
        ((), Features(9, max_tokens=2, deadline_s=1.0), "here", ("home", "top", "spare")),
        ((), Features(9, class_tokens=2, deadline_s=1.0), "here", ("home", "top", "spare")),
    ],
    ids=str,
)
def test_the_lowest_tier_starts_and_the_others_follow_upwards(resting, features, first, fallbacks):
    rest = {name: CoolDown(name, "failures") for name in resting}
    plan = planner().plan(features, ALL, {}, resting=rest)
    assert plan.starts == (Start(first),)
    assert plan.fallbacks == fallbacks
    assert plan.migrations == {}


def test_an_answer_rises_through_the_tiers_that_can_answer_in_time():
    able = (HERE, HOME, TOP, SPARE)
    assert arranged(Features(9), *able).tiers == (("here",), ("home",), ("top", "spare"))
    assert arranged(Features(9), HERE, SPARE).tiers == (("here",), ("spare",))
    slow = replace(HOME, overhead_s=30.0)
    assert arranged(Features(9, deadline_s=20.0), HERE, slow, TOP).tiers == (("here",), ("top",))
    assert arranged(Features(9), TOP, SPARE).tiers == (("top", "spare"),)
    assert arranged(Features(9), *able, budget_class="background").tiers == ()


def test_a_plan_has_a_cascade_where_there_is_a_tier_above():
    plan = planner().plan(Features(9), ALL, {})
    assert plan.cascade is not None
    assert plan.cascade.above("here") == ("home", "top", "spare")
    assert plan.cascade.above("top") == plan.cascade.above("spare") == plan.cascade.above("unknown") == ()
    assert planner().plan(Features(9), [TOP, SPARE], {}).cascade is None


def test_the_deadline_is_the_requests_limit_on_the_whole_answer():
    request = Request([{"role": "user", "content": "Hello"}], model="m")
    assert features_of(request, stream=True).deadline_s == request.timeouts.total_s
    assert features_of(request.due_in(3.0), stream=True).deadline_s == 3.0


def test_an_answer_with_classes_is_expected_to_be_as_long_as_the_longest():
    request = Request([], "m", classes=("no", "certainly not"))
    assert features_of(request, stream=True).expected_tokens == 4
    assert features_of(replace(request, classes=()), stream=True).expected_tokens == 256
