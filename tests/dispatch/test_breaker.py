"""The breaker: a hiccup does not open it, it does not flap, one probes at a time, and one always will."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.dispatch import Candidate, Dispatcher, Features, Preset, Start
from disco.dispatch.breakers.circuit_breaker import Breaker, BreakerConfig
from disco.dispatch.breakers.endpoint_health import Health
from disco.errors import EndpointFailure, FailureKind
from disco.plan import CoolDown, Migration
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

P = BreakerConfig()
SILENT = ("seam", "unserved")  # say nothing about the endpoint
REFUSALS = ("authentication", "bad_request", "content_filter", "context_length")
COUNTED = ("connection", "timeout", "stalled", "server", "garbage", "incomplete", "crashed")


def fail(breaker, at, kind="server", *, started_at=None, retry_after_s=None):
    started_at = at if started_at is None else started_at
    breaker.failed(FailureKind(kind), started_at, at, retry_after_s=retry_after_s)


def opened(at=0.0, kind="server"):
    breaker = Breaker()
    for _ in range(3):
        fail(breaker, at, kind)
    assert breaker.state(at) == "open"
    return breaker


@pytest.mark.parametrize("kind", COUNTED)
def test_one_failure_is_a_hiccup(kind):
    breaker = Breaker()
    fail(breaker, 0.0, kind)
    assert breaker.state(0.0) == "closed"


@pytest.mark.parametrize(
    ("kind", "needed", "rest_s"), [("server", 3, 5.0), ("connection", 2, 2.0), ("timeout", 2, 2.0)]
)
def test_nobody_there_is_believed_sooner_and_for_less_long(kind, needed, rest_s):
    breaker = Breaker()
    for n in range(needed):
        assert breaker.state(float(n)) == "closed"
        fail(breaker, float(n), kind)
    last = needed - 1.0
    assert breaker.rest("s", last) == CoolDown("s", "failures", kind, needed, rest_s)
    assert breaker.state(last + rest_s - 1e-9) == "open"
    assert breaker.state(last + rest_s) == "half_open"


def test_old_failures_are_forgotten():
    breaker = Breaker()
    for n in range(20):
        fail(breaker, n * P.window_s / 2)
    assert breaker.state(10 * P.window_s) == "closed"


def test_a_busy_server_that_fails_now_and_then_stays_open_for_business():
    breaker = Breaker()
    for n in range(300):
        if n % 3 == 0:
            fail(breaker, n * 0.1)
        else:
            breaker.answered(n * 0.1, n * 0.1)
    assert breaker.state(30.0) == "closed"


@pytest.mark.parametrize("kind", [*SILENT, *REFUSALS])
def test_what_is_no_fault_of_the_endpoints_does_not_count(kind):
    breaker = Breaker()
    for n in range(50):
        fail(breaker, n * 0.1, kind)
    assert breaker.state(5.0) == "closed"


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_probe_that_is_refused_for_its_own_fault_found_the_endpoint_well(kind):
    breaker = opened()
    breaker.claim(5.0)
    fail(breaker, 5.1, kind, started_at=5.0)
    assert breaker.state(5.1) == "closed"


def test_a_probes_answer_closes_it_and_its_failure_doubles_the_rest():
    breaker = opened()
    assert breaker.claim(5.0)
    fail(breaker, 5.5, started_at=5.0)
    assert breaker.rest("s", 5.5) == CoolDown("s", "failures", "server", 4, 10.0)
    assert breaker.claim(15.5)
    breaker.answered(15.5, 16.0)
    assert breaker.state(16.0) == "closed"


def test_the_rest_grows_up_to_a_limit():
    breaker, at = opened(), 0.0
    rests = []
    for _ in range(8):
        rest = breaker.rest("s", at)
        rests.append(rest.for_s)
        at += rest.for_s
        breaker.claim(at)
        fail(breaker, at)
    assert rests == pytest.approx([5, 10, 20, 40, 80, 120, 120, 120])


def test_the_rest_is_short_again_only_after_it_was_well_for_a_while():
    breaker = opened()
    breaker.answered(5.0, 5.0)
    for _ in range(3):
        fail(breaker, 6.0)
    assert breaker.rest("s", 6.0).for_s == 10.0  # not 5: the first answer is not yet health
    breaker.answered(16.0, 16.0)
    well_until = 16.0 + P.healthy_s
    for n in range(3):
        fail(breaker, well_until + n)
    assert breaker.rest("s", well_until + 2).for_s == 5.0


def test_a_rate_limit_opens_it_at_once_for_as_long_as_the_server_says():
    breaker = Breaker()
    fail(breaker, 1.0, "rate_limit", retry_after_s=17.0)
    assert breaker.rest("s", 1.0) == CoolDown("s", "rate_limit", "rate_limit", 1, 17.0)
    assert breaker.state(17.9) == "open"
    assert breaker.state(18.0) == "half_open"


def test_a_second_word_on_the_rate_limit_prolongs_the_rest_and_never_shortens_it():
    breaker = Breaker()
    fail(breaker, 0.0, "rate_limit", retry_after_s=10.0)
    fail(breaker, 1.0, "rate_limit", started_at=-1.0, retry_after_s=30.0)
    fail(breaker, 2.0, "rate_limit", started_at=-1.0, retry_after_s=1.0)
    assert breaker.state(30.9) == "open"
    assert breaker.state(31.0) == "half_open"


def test_news_from_before_the_rest_is_no_news():
    breaker = opened(at=10.0)
    breaker.answered(9.0, 16.0)
    assert breaker.state(16.0) == "half_open"
    fail(breaker, 16.0, started_at=9.0)
    assert breaker.state(16.0) == "half_open"


def test_a_clock_that_went_back_belongs_to_another_loop_and_counts_anew():
    assert opened(at=1e6).state(5.0) == "closed"


def test_a_probe_that_was_mute_for_too_long_is_a_failed_one_and_a_short_one_says_nothing():
    breaker = opened()
    breaker.claim(5.0)
    breaker.stopped(5.0, 5.2, overdue=False)
    assert breaker.state(5.2) == "half_open"
    breaker.claim(6.0)
    breaker.stopped(6.0, 8.0, overdue=True)
    assert breaker.rest("s", 8.0) == CoolDown("s", "failures", "server", 4, 10.0)


def test_outside_a_probe_being_overdue_is_no_failure():
    breaker = Breaker()
    for n in range(10):
        breaker.stopped(n, n + 5.0, overdue=True)
    assert breaker.state(20.0) == "closed"


# ---------------------------------------------------------------------- any pattern

kinds = st.sampled_from([*COUNTED, *REFUSALS, *SILENT, "rate_limit", "stopped", "overdue", None])
retry_afters = st.none() | st.floats(0.0, 300.0)
steps = st.lists(
    st.tuples(st.floats(0.0, 20.0), kinds, retry_afters, st.booleans(), st.floats(0.0, 40.0)), max_size=200
)


def play(sequence):
    """Times, kinds (None: an answer), claims; yields (breaker, time, whether it opened just now, retry_after)."""
    breaker, now = Breaker(), 0.0
    for wait_s, kind, retry_after_s, claims, took_s in sequence:
        now += wait_s
        if claims:
            breaker.claim(now)
        before = breaker._opened_at
        if kind is None:
            breaker.answered(now - took_s, now)
        elif kind in ("stopped", "overdue"):
            breaker.stopped(now - took_s, now, overdue=kind == "overdue")
        else:
            fail(breaker, now, kind, started_at=now - took_s, retry_after_s=retry_after_s)
        opens = breaker._opened_at is not None and breaker._opened_at != before
        yield breaker, now, opens, retry_after_s if kind == "rate_limit" else None


@given(steps)
def test_it_does_not_flap_whatever_the_pattern(sequence):
    """Each opening of a row without a healthy while between them rests longer, so they are few."""
    openings = [now for _, now, opens, asked in play(sequence) if opens and asked is None]
    for first in openings:
        row = [at for at in openings if first <= at < first + P.healthy_s]
        # 2 + 4 + 8 + 16 + 32 s are more than the minute: at most five rests and the one that outlasts it.
        assert len(row) <= math.log2(P.healthy_s / P.absent_s + 1) + 1


@given(steps)
def test_no_two_openings_are_nearer_than_the_shortest_rest(sequence):
    openings = [now for _, now, opens, _ in play(sequence) if opens]
    for first, second in itertools.pairwise(openings):
        assert second - first >= P.shortest_s - 1e-6


@given(steps)
def test_a_server_that_asks_to_be_left_alone_is_left_alone(sequence):
    asked_until = -math.inf
    for breaker, now, opens, asked in play(sequence):
        if opens and asked is not None:
            asked_until = now + asked
        if now < asked_until - 1e-6:
            assert breaker.state(now) == "open"
            assert breaker.claim(now) is None


@given(steps)
def test_there_is_always_a_next_probe_even_if_the_last_was_lost(sequence):
    """Nobody withdraws here, and many claims never report: no probe blocks for longer than its time."""
    breaker, now = Breaker(), 0.0
    for breaker, now, _, _ in play(sequence):  # noqa: B007
        pass
    later = now + 301.0 + P.longest_s + P.probe_s
    assert breaker.state(later) in ("closed", "half_open")


@given(steps, st.integers(2, 5))
def test_one_probe_at_a_time(sequence, crowd):
    for breaker, now, _, _ in play(sequence):
        claims = [breaker.claim(now) for _ in range(crowd)]
        assert sum(claim is not None for claim in claims) <= 1


def test_a_probe_that_says_nothing_makes_room_when_it_is_over_and_no_late_one_takes_the_next_ones_place():
    breaker = opened()
    first = breaker.claim(5.0)
    assert breaker.rest("s", 6.0) == CoolDown("s", "probed", "server", 3)
    breaker.withdraw(first)
    second = breaker.claim(7.0)
    breaker.withdraw(first)
    assert breaker.claim(8.0) is None
    breaker.withdraw(second)
    assert breaker.claim(9.0) is not None


# ---------------------------------------------------------------------- a client's endpoints


def failure(kind, retry_after_s=None):
    return EndpointFailure(FailureKind(kind), RuntimeError(), retry_after_s=retry_after_s)


def test_a_rate_limit_is_one_models_and_a_dead_server_is_dead_for_all():
    health = Health()
    small, large = (health.watch({"s": "address"}, model) for model in ("small", "large"))
    small.failed("s", failure("rate_limit", 20.0), 0.0, 0.0)
    assert small.look(1.0)[0]["s"] == CoolDown("s", "rate_limit", "rate_limit", 1, 19.0)
    assert large.look(1.0) == ({}, set())
    for _ in range(2):
        large.failed("s", failure("connection"), 1.0, 1.0)
    assert large.look(1.0)[0]["s"].reason == "failures"
    assert small.look(2.0)[0]["s"].reason == "failures"


def test_another_server_under_the_same_name_starts_with_a_clean_sheet():
    health = Health()
    old, new = health.watch({"s": "here"}, "m"), health.watch({"s": "there"}, "m")
    for _ in range(3):
        old.failed("s", failure("server"), 0.0, 0.0)
    assert old.look(0.0)[0]
    assert new.look(0.0) == ({}, set())


# ---------------------------------------------------------------------- what the plan makes of it

DEVICE = Candidate("device", "device", rates=Rates(1e-9, 1e-9), continues=True, parks=True)
SERVER = Candidate("server", "any", rates=Rates(1e-7, 1e-6), continues=True, overhead_s=1.5)
BACKUP = Candidate("backup", "any", rates=Rates(1e-8, 1e-8), continues=True, standby=True)
DEAR = replace(BACKUP, name="dear", rates=Rates(1e-5, 1e-5))
ALL = (DEVICE, SERVER, BACKUP, DEAR)


def plan(candidates, policy="server_only", resting=(), probing=(), **more):
    one = Dispatcher(
        Preset(dispatch={"policy": policy}),
        lengths=Lengths.from_samples([10] * 8 + [20] * 4 + [400]),
        ttft=Empirical.from_samples([0.3, 0.5, 4.0]),
        rng=np.random.default_rng(0),
    )
    rests = {name: CoolDown(name, "failures", "server", 3, 4.0) for name in resting}
    return one.plan(Features(900), candidates, {}, resting=rests, probing=probing, **more)


def test_who_rests_is_not_started_while_somebody_else_may_serve_and_stays_the_last_resort():
    made = plan([DEVICE, SERVER], resting=["server"])
    assert made.starts == (Start("device"),)
    assert made.fallbacks == ("server",)
    assert [r.endpoint for r in made.deprioritised] == ["server"]


def test_when_all_rest_the_request_is_tried_as_always():
    made = plan([DEVICE, SERVER], resting=["server", "device"])
    assert made == replace(plan([DEVICE, SERVER]), migrations={})
    assert plan([SERVER], resting=["server"]).starts == (Start("server"),)


def test_the_cheapest_backup_takes_the_first_servers_place_and_no_other_time():
    assert plan(ALL).starts == (Start("server"),)
    assert plan(ALL).fallbacks == ("device", "backup", "dear")
    made = plan(ALL, resting=["server"])
    assert made.starts == (Start("backup"),)
    assert made.fallbacks == ("device", "dear", "server")
    assert plan(ALL, resting=["server", "backup"]).starts == (Start("dear"),)


def test_no_answer_is_moved_on_purpose_to_who_rests_is_probed_or_stands_by():
    assert plan([DEVICE, SERVER]).migrations == {"server": Migration("device")}
    assert plan([DEVICE, SERVER], resting=["device"]).migrations == {}
    assert plan([DEVICE, SERVER], probing=["device"]).migrations == {}
    dear = replace(DEVICE, rates=Rates(1.0, 1.0))
    assert plan([dear, SERVER, BACKUP]).migrations == {"device": Migration("server", keep_prefill=False)}
    assert plan([dear, SERVER, BACKUP], resting=["server"]).migrations == {
        "device": Migration("backup", keep_prefill=False)
    }


def test_a_probe_does_not_start_alone_and_is_joined_once_it_is_slow():
    assert plan([DEVICE, SERVER], probing=["server"]).starts == (Start("server"), Start("device", 1.5))
    assert plan([SERVER, BACKUP], probing=["server"]).starts == (Start("server"), Start("backup", 1.5))
    assert plan([SERVER], probing=["server"]).starts == (Start("server"),)


def test_a_probe_costs_nothing_where_both_start_anyway_or_a_budget_forbids_it():
    assert plan([DEVICE, SERVER], "race", probing=["server"]) == plan([DEVICE, SERVER], "race")
    background = {"probing": ["device"], "budget_class": "background"}
    assert plan([DEVICE, SERVER], "race", **background).starts == (Start("device"),)
    # The budget counts the server's tokens, and this request is the device's.
    made = Dispatcher(
        Preset(dispatch={"policy": "length_threshold", "budget": 0.0}),
        lengths=Lengths.from_samples([10]),
        ttft=Empirical.from_samples([0.3]),
        rng=np.random.default_rng(0),
    ).plan(Features(5), [DEVICE, SERVER], {}, probing=["device"])
    assert made.starts == (Start("device"),)


names = st.sampled_from([c.name for c in ALL])
policies = st.sampled_from(
    ["auto", "race", "random", "device_only", "server_only", "wait_time", "length_threshold"]
)
classes = st.sampled_from(["background", "standard", "urgent"])


@given(st.sets(names, min_size=1), st.sets(names), st.sets(names), policies, classes)
def test_a_plan_still_names_everybody_once_and_rests_come_last(there, resting, probing, policy, budget_class):
    candidates = [c for c in ALL if c.name in there]
    probing -= resting
    made = plan(candidates, policy, resting, probing, budget_class=budget_class)
    named = [s.endpoint for s in made.starts] + list(made.fallbacks)
    assert sorted(named) == sorted(there)
    well = there - resting
    rested = {r.endpoint for r in made.deprioritised}
    assert rested == (there & resting if well else set())
    assert not rested & {s.endpoint for s in made.starts}
    assert set(made.fallbacks[len(made.fallbacks) - len(rested) :]) == rested
    assert not {m.target for m in made.migrations.values()} & (resting | probing)
