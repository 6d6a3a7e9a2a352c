"""The breaker: a hiccup does not open it, it does not flap, one probes at a time, and one always will."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.dispatch.breakers.circuit_breaker import Breaker, BreakerConfig
from disco.dispatch.breakers.endpoint_health import Asked, Health
from disco.errors import EndpointFailure, FailureKind
from disco.plan import CoolDown, Plan, Start

P = BreakerConfig()
SILENT = ("seam", "unserved")  # say nothing about the endpoint
REFUSALS = ("bad_request", "content_filter", "context_length")
AT_ONCE = ("rate_limit", "account", "model")
COUNTED = ("connection", "timeout", "stalled", "server", "garbage", "incomplete", "crashed")


def fail(breaker, at, kind="server", *, started_at=None, retry_after_s=None):
    started_at = at if started_at is None else started_at
    breaker.failed(FailureKind(kind), started_at, at, retry_after_s=retry_after_s)


def test_refusals_silence_hiccups_and_old_failures_do_not_open_it():
    for kind in FailureKind:
        breaker, times = Breaker(), [0.0] if kind in COUNTED else [n * 0.1 for n in range(50)]
        for at in times:
            fail(breaker, at, kind)
        assert breaker.state(times[-1]) == ("open" if kind in AT_ONCE else "closed"), kind
    breaker = Breaker()
    for n in range(20):
        fail(breaker, n * P.window_s / 2)
    assert breaker.state(10 * P.window_s) == "closed"
    for _ in range(3):
        fail(breaker, 1e6)
    assert breaker.state(1e6) == "open"
    assert breaker.state(5.0) == "closed"  # a clock that went back belongs to another loop


@pytest.mark.parametrize("asked_s", [1e9, 1e300])
def test_a_server_may_ask_for_a_rest_of_a_day_and_no_longer(asked_s):
    breaker = Breaker()
    for at in (0.0, 1.0):  # opens, and is told once more while it is open
        fail(breaker, at, "rate_limit", retry_after_s=asked_s)
    assert breaker.state(86_400.0) == "open"
    assert breaker.state(86_402.0) == "half_open"


kinds = st.sampled_from([*COUNTED, *REFUSALS, *SILENT, *AT_ONCE, "stopped", "overdue", None])
retry_afters = st.none() | st.floats(0.0, 300.0)
steps = st.lists(
    st.tuples(st.floats(0.0, 20.0), kinds, retry_afters, st.booleans(), st.floats(0.0, 40.0)), max_size=100
)


@settings(max_examples=200)
@given(steps, st.integers(2, 5))
def test_whatever_the_pattern_it_does_not_flap_and_one_probe_is_always_next(sequence, crowd):
    """Many probes here never report, and none is withdrawn."""
    breaker, now, asked_until = Breaker(), 0.0, -math.inf
    openings: list[tuple[float, bool]] = []
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
        if breaker._opened_at is not None and breaker._opened_at != before:
            asked = kind in AT_ONCE and retry_after_s is not None
            openings.append((now, not asked))
            rest_s = retry_after_s if asked else 0.0
            asked_until = max(now + rest_s, asked_until)
        if now < asked_until - 1e-6:  # a server that asks to be left alone is left alone
            assert breaker.state(now) == "open"
            assert breaker.claim(now) is None
        assert sum(breaker.claim(now) is not None for _ in range(crowd)) <= 1
    for (first, _), (second, _) in itertools.pairwise(openings):
        assert second - first >= P.shortest_s - 1e-6
    # Each opening of a row without a healthy while between them rests longer, so they are few:
    # 2 + 4 + 8 + 16 + 32 s are more than the minute, so at most five rests and the one that outlasts it.
    own = [at for at, unasked in openings if unasked]
    for first in own:
        row = [at for at in own if first <= at < first + P.healthy_s]
        assert len(row) <= math.log2(P.healthy_s / P.absent_s + 1) + 1
    assert breaker.state(now + 301.0 + P.longest_refused_s + P.probe_s) in ("closed", "half_open")


def test_a_rate_limit_is_one_models_a_dead_server_dead_for_all_and_another_under_its_name_another():
    def failure(kind, retry_after_s=None):
        return EndpointFailure(FailureKind(kind), RuntimeError(), retry_after_s=retry_after_s)

    health = Health()
    small, large = (health.watch({"s": Asked("address", model)}) for model in ("small", "large"))
    elsewhere = health.watch({"s": Asked("there", "large")})
    small.failed("s", failure("rate_limit", 20.0), 0.0, 0.0)
    assert small.look(1.0)[0]["s"] == CoolDown("s", "rate_limit", "rate_limit", 1, 19.0)
    assert large.look(1.0) == ({}, set())
    for _ in range(2):
        large.failed("s", failure("connection"), 1.0, 1.0)
    assert large.look(1.0)[0]["s"].reason == small.look(2.0)[0]["s"].reason == "failures"
    assert elsewhere.look(1.0) == ({}, set())


def test_a_refused_account_rests_for_every_model_and_a_missing_model_alone_and_neither_for_another_key():
    """Five minutes at first, twice as long after each probe that fails, an hour at most."""
    for kind, shared in (("account", True), ("model", False)):
        health, failure = Health(), EndpointFailure(FailureKind(kind), RuntimeError())
        watch = health.watch({"s": Asked("address", "small", "key")})
        now, rests = 0.0, []
        for _ in range(6):
            watch.claim(Plan((Start("s"),)), now)
            watch.failed("s", failure, now, now)
            (rest,) = watch.look(now)[0].values()
            assert (rest.reason, rest.failure) == ("failures", kind)
            rests.append(rest.for_s)
            now += rest.for_s
            assert watch.look(now - 0.001)[0]
            assert watch.look(now) == ({}, {"s"})
        assert rests == [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]
        other_model = health.watch({"s": Asked("address", "large", "key")})
        assert bool(other_model.look(now - 1.0)[0]) == shared
        for asked in (
            Asked("address", "small", "other key"),
            Asked("address", "small"),
            Asked("there", "small"),
        ):
            assert health.watch({"s": asked}).look(now - 1.0) == ({}, set())
        watch.answered("s", now, now)
        assert watch.look(now) == ({}, set())
