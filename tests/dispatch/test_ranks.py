"""Selecting near a rank: the same values as sorting all, and the same waits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.dispatch.planners import rank_selection
from disco.dispatch.planners.wait_quantiles import SampleWaits

# Few distinct values, so that ties are the rule; or many.
SAMPLES = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.2000001, 0.5, 3.0]), min_size=1, max_size=60) | st.lists(
    st.floats(0.0, 60.0), min_size=1, max_size=300
)
RNG = np.random.default_rng(5)
HEAVY = 0.25 + 0.15 * RNG.pareto(2.2, 20_000)
# The part that sets the bounds is every 27th value: here it knows nothing of the rest.
MISLEADING = np.where(np.arange(20_000) % 27 == 0, 100.0 * HEAVY, HEAVY)
HALF_AT_0 = np.where(RNG.random(20_000) < 0.5, 0.0, HEAVY)
LARGE = [HEAVY, np.sort(HEAVY)[::-1], np.round(HEAVY, 1), HALF_AT_0, np.full(20_000, 0.5), MISLEADING]


@given(values=SAMPLES, share=st.floats(0.0, 1.0, exclude_max=True), use=st.floats(0.0, 1.0))
def test_a_stretch_is_a_stretch_of_the_sorted_sample_and_gives_the_same_waits(values, share, use):
    values = np.array(values)
    rank, expected = int(share * len(values)), SampleWaits(values).split(use)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_selection, "_SELECT_FROM", 4)
        order = rank_selection.Ranks(values)
        stretch, skipped = order.near(rank)
        assert SampleWaits(values).split(use) == expected
    ordered = np.sort(values)
    assert skipped <= rank < skipped + len(stretch)
    assert (stretch == ordered[skipped : skipped + len(stretch)]).all()
    assert not np.isin(stretch, ordered[:skipped]).any()
    assert not np.isin(stretch, ordered[skipped + len(stretch) :]).any()
    assert order.beyond(values[0]) == (ordered > values[0]).sum()
    lower = ordered[ordered < values[0]]
    assert order.before(values[0]) == (lower[-1] if lower.size else None)


def test_many_samples_give_the_same_waits_as_when_all_are_sorted(monkeypatch):
    uses = (1e-5, 0.05, 0.5, 0.99999)
    selected = [SampleWaits(values).split(use) for values in LARGE for use in uses]
    monkeypatch.setattr(rank_selection, "_SELECT_FROM", 1 << 30)
    assert [SampleWaits(values).split(use) for values in LARGE for use in uses] == selected


def test_of_many_samples_few_are_sorted_unless_the_bounds_miss():
    """What makes it cost the same on machines that sort slowly."""
    for rank in (10_000, 19_000):
        assert len(rank_selection.Ranks(HEAVY).near(rank)[0]) < 3_000
    stretch, skipped = rank_selection.Ranks(MISLEADING).near(10_000)
    assert (skipped, len(stretch)) == (0, len(MISLEADING))
