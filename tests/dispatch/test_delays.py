"""Policies keep their budget on long sequences, and decide on many requests at once as one after the other."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.dispatch import (
    Candidate,
    DeviceOnly,
    Features,
    LengthThreshold,
    OptimalWait,
    Race,
    RandomSplit,
    ServerOnly,
    Start,
    WaitTime,
)
from disco.profiles import Empirical, Lengths
from disco.replay.vector.arm_delays import delays

DEVICE, SERVER = Candidate("d", "device", prefill_tps=40.0, overhead_s=0.1), Candidate("s", "any")
# Few distinct values, so that requests tie at a boundary again and again.
TOKENS = st.lists(st.sampled_from([0, 1, 5, 7, 30, 400]) | st.integers(0, 50), min_size=1, max_size=60)
TIMES = st.lists(
    st.sampled_from([0.05, 0.2, 0.25, 1.0, 3.0]) | st.floats(0.01, 60.0), min_size=1, max_size=30
)
SHARES = st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0])

MAKERS = {
    "device_only": lambda lengths, ttft, **how: DeviceOnly(),
    "server_only": lambda lengths, ttft, **how: ServerOnly(),
    "race": lambda lengths, ttft, **how: Race(),
    "stoch-s": lambda lengths, ttft, *, tail, **how: RandomSplit(constrained="server", **how),
    "stoch-d": lambda lengths, ttft, *, tail, **how: RandomSplit(constrained="device", **how),
    "length_threshold": lambda lengths, ttft, *, tail, **how: LengthThreshold.fitted(lengths, **how),
    "wait_time": WaitTime.fitted,
    "wait_time, slope": partial(WaitTime.fitted, form="slope"),
    "optimal_wait": lambda lengths, ttft, **how: OptimalWait(lengths, ttft, DEVICE, **how),
    "optimal_wait, mean": lambda lengths, ttft, *, tail, **how: OptimalWait(lengths, ttft, DEVICE, **how),
}
CERTAIN = {"device_only": [Start("d")], "server_only": [Start("s")], "race": [Start("d"), Start("s")]}


def one_by_one(policy, tokens):
    after = {"d": [], "s": []}
    for n in tokens:
        starts = {start.endpoint: start.after_s for start in policy.starts(Features(n), DEVICE, SERVER)}
        for name, waits in after.items():
            waits.append(starts.get(name, float("inf")))
    return after["d"], after["s"]


@pytest.mark.parametrize("name", MAKERS)
@given(
    seen=TOKENS.filter(any),
    times=TIMES,
    budget=SHARES,
    tail=SHARES,
    tokens=TOKENS,
    more=TOKENS,
    seed=st.integers(0, 9),
)
@settings(max_examples=30)
def test_the_same_as_one_after_the_other_and_what_one_side_alone_does(
    name, seen, times, budget, tail, tokens, more, seed
):
    """Also when decisions were made before, one by one or together."""

    def fresh():
        known = Lengths.from_samples(seen), Empirical.from_samples(times)
        return MAKERS[name](*known, budget=budget, tail=tail, rng=np.random.default_rng(seed))

    at_once, alone = fresh(), fresh()
    for piece in (tokens, [], more):
        many = delays(at_once, np.array(piece, dtype=np.int64))
        assert many.device_s.dtype == many.server_s.dtype == np.float64
        assert (many.device_s.tolist(), many.server_s.tolist()) == one_by_one(alone, piece)
    assert one_by_one(at_once, more) == one_by_one(alone, more)
    starts = alone.starts(Features(more[0]), DEVICE, SERVER)
    assert {type(start.after_s) for start in starts} == {float}  # numpy scalars would leak into records
    assert list(starts) == CERTAIN.get(name, list(starts))
    assert alone.starts(Features(1), DEVICE, None) == (Start("d"),)
    assert alone.starts(Features(1), None, SERVER) == (Start("s"),)
    with pytest.raises(ValueError, match="device or a server"):
        alone.starts(Features(1), None, None)


RNG = np.random.default_rng(11)
SKEWED = np.clip(RNG.lognormal(4.0, 1.0, 30_000), 1, 8_000).astype(np.int64)
LUMPY = RNG.choice([7, 7, 7, 30, 1_900], 30_000)
HEAVY = 0.25 + 0.15 * RNG.pareto(2.2, 30_000)
ROUNDED = np.round(HEAVY, 1)  # a log with one decimal: big atoms


@pytest.mark.parametrize(
    ("name", "lengths", "times", "budget"),
    [
        ("stoch-s", SKEWED, HEAVY, 0.3),
        ("stoch-d", SKEWED, HEAVY, 0.3),
        ("length_threshold", LUMPY, HEAVY, 0.5),
        ("wait_time", LUMPY, ROUNDED, 0.6),
        ("wait_time, slope", LUMPY, ROUNDED, 0.9),
        ("optimal_wait", SKEWED, ROUNDED, 0.1),
        ("optimal_wait, mean", SKEWED, ROUNDED, 0.4),
    ],
)
def test_budget_holds_on_30_000_requests(name, lengths, times, budget):
    """With each request's wait as decided and the chance of that wait being too short, not one draw of T."""
    ttft = Empirical.from_samples(times)
    how = {"budget": budget, "tail": 0.05, "rng": np.random.default_rng(5)}
    policy = MAKERS[name](Lengths.from_samples(lengths), ttft, **how)
    order = np.random.default_rng(6).permutation(lengths)
    many = delays(policy, order)
    if name in ("stoch-s", "length_threshold"):  # these spare the server
        use = np.isfinite(many.server_s)
    else:
        use = np.where(many.device_s <= 0.0, 1.0, ttft.survival(many.device_s))
    owed = 0.01 if name.startswith("stoch") else order.max() / order.sum()  # less than the longest prompt
    assert order @ use / order.sum() == pytest.approx(budget, abs=owed)
