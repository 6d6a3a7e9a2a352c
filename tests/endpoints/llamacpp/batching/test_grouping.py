"""Which windows share a pass, and the curve that says so."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.llamacpp.batching.grouping import grouped
from disco.endpoints.llamacpp.batching.slots import shared_length
from disco.endpoints.llamacpp.batching.verify_curve import VerifyCurve, measured_curve

curves = st.lists(st.floats(0.1, 10), min_size=2, max_size=2).map(
    lambda s: VerifyCurve([(1, s[0]), (17, s[0] + s[1])], 32)
)


def partitions(slots):
    if not slots:
        yield []
    for end in range(1, len(slots) + 1):
        for rest in partitions(slots[end:]):
            yield [slots[:end], *rest]


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 20), min_size=1, max_size=6), curves, st.integers(0, 40)
)
def test_no_other_way_of_sharing_takes_less_time(windows, curve, room):
    groups = grouped(windows, curve.s, most=32, room=lambda slot: 40 if slot in windows else room)
    members = [slot for group in groups for slot in range(group.first, group.last + 1) if slot in windows]
    assert sorted(members) == sorted(windows)
    assert all(one.last < other.first for one, other in pairwise(groups))
    for group in groups:
        count = group.last - group.first + 1
        assert count * group.rows <= 32
        assert group.rows == max(windows.get(slot, 0) for slot in range(group.first, group.last + 1))
        assert all(group.rows <= room for slot in range(group.first, group.last + 1) if slot not in windows)
    took = sum(curve.s((group.last - group.first + 1) * group.rows) for group in groups)
    for parts in partitions(sorted(windows)):
        boxes = [(part[-1] - part[0] + 1, max(windows[slot] for slot in part)) for part in parts]
        holes = [rows for part, (count, rows) in zip(parts, boxes, strict=True) if count > len(part)]
        if all(count * rows <= 32 for count, rows in boxes) and all(rows <= room for rows in holes):
            assert took <= sum(curve.s(count * rows) for count, rows in boxes) + 1e-9


def test_the_curve_is_measured_by_its_shortest_times_and_never_falls():
    now = 0.0
    times = {1: [9.0, 1.0, 2.0, 1.0], 2: [3.0, 4.0, 3.0], 3: [2.0, 2.5, 2.0], 5: [5.0, 5.0, 5.0]}

    def compute(rows):
        nonlocal now
        now += times[rows].pop(0) / 100

    curve = measured_curve(compute, 6, clock=lambda: now)
    points = [(rows, round(seconds, 9)) for rows, seconds in curve.points]
    assert points == [(1, 0.01), (2, 0.03), (3, 0.03), (5, 0.05)]
    assert [round(curve.s(rows), 9) for rows in (1, 2, 4, 6, 12)] == [0.01, 0.03, 0.04, 0.06, 0.12]
    assert not any(times.values())


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30), st.integers(0, 30))
def test_the_length_that_two_lists_share(one, other, common):
    other = [*one[:common], *other]
    shared = shared_length(one, other)
    assert one[:shared] == other[:shared]
    assert shared == min(len(one), len(other)) or one[shared] != other[shared]


def test_a_curve_is_that_of_the_model_although_the_machine_was_busy_at_first():
    now, calls = 0.0, 0

    def compute(rows):
        nonlocal now, calls
        calls += 1
        held_up = 0.02 / (calls % 7 + 1) if calls < 30 and rows > 1 else 0.0  # never the same
        now += 0.001 + 0.0001 * rows + held_up

    curve = measured_curve(compute, 17, repeats=4, clock=lambda: now)
    assert [round(curve.s(rows), 6) for rows in (1, 2, 9)] == [0.0011, 0.0012, 0.0019]
    assert calls < 17 * 6, "not more often than it takes"
