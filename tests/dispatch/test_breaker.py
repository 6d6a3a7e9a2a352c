"""The breaker: a hiccup does not open it, it does not flap, one probes at a time, and one always will."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.dispatch.breakers.circuit_breaker import Breaker, BreakerConfig
from disco.dispatch.breakers.endpoint_health import Health
from disco.errors import EndpointFailure, FailureKind
from disco.plan import CoolDown

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


def patterns():
    """Kinds with the times of failures (None: an answer) after which the endpoint is not left alone."""
    yield from ((kind, [0.0]) for kind in COUNTED)  # one failure is a hiccup
    yield from ((kind, [n * 0.1 for n in range(50)]) for kind in (*SILENT, *REFUSALS))  # no fault of its own
    yield "server", [n * P.window_s / 2 for n in range(20)]  # old failures are forgotten
    yield "now and then", [n * 0.1 for n in range(300)]
    yield "overdue", [float(n) for n in range(10)]  # outside a probe


@pytest.mark.parametrize(
    ("kind", "times"), list(patterns()), ids=lambda value: value if type(value) is str else ""
)
def test_what_does_not_open_it(kind, times):
    breaker = Breaker()
    for n, at in enumerate(times):
        if kind == "overdue":
            breaker.stopped(at - 5.0, at, overdue=True)
        elif kind == "now and then" and n % 3:
            breaker.answered(at, at)
        else:
            fail(breaker, at, "server" if kind == "now and then" else kind)
    assert breaker.state(times[-1]) == "closed"


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


def test_a_rate_limit_opens_it_at_once_for_as_long_as_the_server_says_and_no_later_word_shortens_that():
    breaker = Breaker()
    fail(breaker, 1.0, "rate_limit", retry_after_s=10.0)
    assert breaker.rest("s", 1.0) == CoolDown("s", "rate_limit", "rate_limit", 1, 10.0)
    fail(breaker, 2.0, "rate_limit", started_at=-1.0, retry_after_s=30.0)
    fail(breaker, 3.0, "rate_limit", started_at=-1.0, retry_after_s=1.0)
    assert breaker.state(31.9) == "open"
    assert breaker.state(32.0) == "half_open"


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


@settings(max_examples=300)
@given(steps, st.integers(2, 5))
def test_whatever_the_pattern_it_does_not_flap_and_one_probe_is_always_next(sequence, crowd):
    """Many probes here never report, and none is withdrawn."""
    breaker, now, asked_until = Breaker(), 0.0, -math.inf
    openings: list[tuple[float, bool]] = []
    for breaker, now, opens, asked in play(sequence):
        if opens:
            openings.append((now, asked is None))
            asked_until = asked_until if asked is None else now + asked
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
    assert breaker.state(now + 301.0 + P.longest_s + P.probe_s) in ("closed", "half_open")


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
