"""Made-up workloads have the mean, burstiness and lengths they were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.errors import ConfigurationError
from disco.profiles import Lengths, load_lengths
from disco.replay.workload.synthetic import alpaca_like, lognormal_lengths, synthetic_trace

SHORT = Lengths.from_counts([5, 50], [3, 1])
LONG = Lengths.from_counts([100, 200], [1, 1])


def made(**options):
    return synthetic_trace(**{"requests": 20_000, "seed": 1, "prompts": SHORT, "answers": LONG, **options})


@pytest.mark.parametrize("cv", [None, 0.0, 0.5, 3.0])
def test_intervals_have_the_mean_and_the_coefficient_of_variation_asked_for(cv):
    """None: a Poisson process, whose coefficient is 1."""
    gamma = {} if cv is None else {"arrivals": "gamma", "cv": cv}
    trace = made(**gamma, mean_interval_s=2.0)
    intervals = np.diff(trace.arrival_s)
    assert trace.arrival_s[0] == 0
    assert intervals.mean() == pytest.approx(2.0, rel=0.06)
    assert intervals.std() / intervals.mean() == pytest.approx(1.0 if cv is None else cv, rel=0.06, abs=1e-6)
    if cv is None:
        assert (intervals > 2.0).mean() == pytest.approx(np.exp(-1), abs=0.01)
        assert (made(seed=2, mean_interval_s=2.0).arrival_s != trace.arrival_s)[1:].all()
    np.testing.assert_array_equal(trace.prompt_tokens, made().prompt_tokens)


def test_clients_have_processes_of_their_own():
    trace = made(requests=60_000, arrivals="per-client", clients=5, cv=3.0, mean_interval_s=2.0)
    client = trace.features["client"]
    assert set(client.tolist()) == set(range(5))
    assert np.diff(trace.arrival_s).mean() == pytest.approx(2.0, rel=0.06)
    busiest = np.diff(trace.arrival_s[client == np.bincount(client).argmax()])
    assert busiest.std() / busiest.mean() == pytest.approx(3.0, rel=0.1)
    assert np.bincount(client).max() > 2 * np.bincount(client).min()
    even = made(requests=60_000, arrivals="per-client", clients=5, cv=1.0, spread=0.0).features["client"]
    assert np.bincount(even).max() < 1.1 * np.bincount(even).min()


def test_a_longer_trace_of_clients_begins_with_the_shorter_one():
    """No client is cut off early: drawing more changes nothing of what was there."""
    short = made(requests=500, arrivals="per-client", clients=20, spread=2.0)
    long = made(requests=5_000, arrivals="per-client", clients=20, spread=2.0)
    np.testing.assert_allclose(short.arrival_s, long.arrival_s[:500])
    np.testing.assert_array_equal(short.features["client"], long.features["client"][:500])


@given(
    arrivals=st.sampled_from(["poisson", "gamma", "per-client"]),
    seed=st.integers(0, 2**32),
    requests=st.integers(1, 50),
    clients=st.integers(1, 8),
    cv=st.floats(0, 4),
)
@settings(max_examples=40)
def test_same_seed_same_trace_in_order_from_zero(arrivals, seed, requests, clients, cv):
    options = {"requests": requests, "seed": seed, "arrivals": arrivals, "clients": clients, "cv": cv}
    one, two = made(**options), made(**options)
    assert (len(one), one.arrival_s[0]) == (requests, 0)
    for column in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert getattr(one, column).tobytes() == getattr(two, column).tobytes()
    one.check()


def test_lengths_come_from_the_distributions_given():
    trace = made()
    assert (set(trace.prompt_tokens.tolist()), set(trace.output_tokens.tolist())) == ({5, 50}, {100, 200})
    assert (trace.prompt_tokens == 5).mean() == pytest.approx(0.75, abs=0.02)
    assert abs(np.corrcoef(trace.prompt_tokens, trace.output_tokens)[0, 1]) < 0.03
    profile, published = load_lengths("lengths-azure-conv-2023"), alpaca_like(200_000, 3)
    shipped = synthetic_trace(requests=20_000, seed=0, prompts=profile)
    for trace, prompt, answer in (
        (shipped, profile.prompt_tokens.mean, profile.output_tokens.mean),
        (published, 16.8, 142.5),
    ):
        means = trace.prompt_tokens.mean(), trace.output_tokens.mean()
        assert means == pytest.approx((prompt, answer), rel=0.05 if trace is shipped else 0.01)
    assert np.quantile(published.prompt_tokens, 0.99) == pytest.approx(69, rel=0.03)
    assert (published.source.split(":")[0], published.name) == ("stand-in for Alpaca", "alpaca-like")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requests": 0}, "requests must be at least 1"),
        ({"clients": 0, "arrivals": "per-client"}, "clients must be at least 1"),
        ({"mean_interval_s": -1.0}, "mean_interval_s must be 0 or more"),
        ({"mean_interval_s": 0.0, "arrivals": "per-client"}, "above 0"),
        ({"cv": float("nan")}, "cv must be 0 or more"),
        ({"cv": 1e200}, "cv must be at most 100"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"arrivals": "poison"}, "Did you mean 'poisson'"),
        ({"answers": None}, "give answers, too"),
    ],
)
def test_what_cannot_be_made(options, said):
    with pytest.raises(ConfigurationError, match=said):
        made(**options)
    lengths = lognormal_lengths(100, 500)
    assert lengths.mean() == pytest.approx(100, rel=0.03)
    assert lengths.p[lengths.lengths > 501].sum() < 0.0105
    assert lengths.p[lengths.lengths > 499].sum() > 0.0095
    for mean, p99 in ((10, 10), (10, 1000), (0, 5), (10, -1)):
        with pytest.raises(ConfigurationError, match="no log-normal"):
            lognormal_lengths(mean, p99)
