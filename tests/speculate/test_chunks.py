"""Chunk sizes, the recursion, and drafting ahead, against an event-by-event simulation and closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from disco.speculate.chunks import (
    CloudMonitor,
    PassTimes,
    SplitPath,
    ahead_steps,
    equation3,
    even_pass,
    makespan_chunk,
    prompt_s,
)
from disco.speculate.seen import VerifyCurve


@dataclass(frozen=True)
class Line:
    """A straight line, down to 0 rows."""

    base_s: float
    row_s: float

    def s(self, rows: int, /) -> float:
        return self.base_s + self.row_s * rows


SECONDS = st.floats(0.0, 0.2)
CURVES = st.one_of(
    st.builds(Line, SECONDS, st.floats(0.0, 0.002)),
    st.lists(st.tuples(st.integers(1, 600), SECONDS), min_size=1, max_size=6).map(VerifyCurve),
)
PATHS = st.builds(
    SplitPath,
    up_bps=st.floats(1e5, 1e8),
    down_bps=st.floats(1e5, 1e8),
    rtt_s=st.floats(0.0, 0.3),
    state_bytes=st.sampled_from([1152, 8192, 10240]),
    device_s=CURVES,
    cloud_s=CURVES,
    load=st.one_of(st.just(0.0), st.floats(0.0, 100.0)),
    pipeline=st.integers(1, 4),
)
REPLIES = st.sampled_from(["last", "all"])
PAPER = SplitPath(7.5e6, 12.5e6, 0.0, 8192, Line(0.001, 2e-5), Line(0.025, 2e-5), pipeline=4)


def played_s(path: SplitPath, prompt_tokens: int, chunk: int, reply: str) -> float:
    """Play every chunk through every station on a heap: a station serves one chunk at a time, first come first."""
    sizes = [min(chunk, prompt_tokens - at) for at in range(0, prompt_tokens, chunk)]

    def cloud_s(rows: int) -> float:
        low = int(path.load)
        below, above = path.cloud_s.s(low + rows), path.cloud_s.s(low + rows + 1)
        return below + (path.load - low) * (above - below)

    wait_s = min(1.0, path.load) * cloud_s(0) / path.pipeline / 2
    names = ["device", "up", *(f"gpu {number}" for number in range(path.pipeline)), "down"]
    took = {
        "device": lambda k: path.device_s.s(sizes[k]),
        "up": lambda k: sizes[k] * path.state_bytes / path.up_bps,
        "down": lambda k: sizes[k] * path.state_bytes / path.down_bps,
    }
    events = [(0.0, k, 0) for k in range(len(sizes))]
    free = dict.fromkeys(names, 0.0)
    home_s = 0.0
    while events:
        now, k, place = heappop(events)
        if place == len(names):
            home_s = max(home_s, now)
            continue
        name = names[place]
        if name == "down" and reply == "last":
            if k == len(sizes) - 1:
                heappush(events, (now + path.state_bytes / path.down_bps, k, place + 1))
            continue
        if free[name] > now:
            heappush(events, (free[name], k, place))
            continue
        free[name] = now + (took[name](k) if name in took else cloud_s(sizes[k]) / path.pipeline)
        heappush(events, (free[name] + (path.rtt_s / 2 + wait_s if name == "up" else 0.0), k, place + 1))
    return home_s + path.rtt_s / 2


@given(PATHS, st.integers(1, 300), st.integers(1, 400), REPLIES)
def test_the_recursion_is_what_happens_event_by_event(path, prompt, chunk, reply):
    assert prompt_s(path, prompt, chunk, reply=reply) == pytest.approx(
        played_s(path, prompt, chunk, reply), rel=1e-9, abs=1e-12
    )


@given(PATHS, st.integers(1, 2048), REPLIES)
def test_our_chunk_is_never_slower_than_the_papers_nor_than_none(path, prompt, reply):
    ours = makespan_chunk(path, prompt, reply=reply)
    assert 1 <= ours <= prompt
    took_s = prompt_s(path, prompt, ours, reply=reply)
    assert took_s <= prompt_s(path, prompt, equation3(path, prompt), reply=reply)
    assert took_s <= prompt_s(path, prompt, prompt, reply=reply)


@given(PATHS, st.integers(1, 128), REPLIES)
def test_short_prompts_get_the_best_of_all_chunks(path, prompt, reply):
    best_s = min(prompt_s(path, prompt, chunk, reply=reply) for chunk in range(1, prompt + 1))
    assert prompt_s(path, prompt, makespan_chunk(path, prompt, reply=reply), reply=reply) == best_s


@given(PATHS, st.integers(1, 2048), st.sets(st.integers(1, 512), min_size=1), REPLIES)
def test_only_sizes_that_are_given_are_chosen(path, prompt, sizes, reply):
    assert makespan_chunk(path, prompt, sizes=sizes, reply=reply) in {min(size, prompt) for size in sizes}


@given(
    st.floats(0.001, 0.1), st.floats(1e-6, 1e-3), st.floats(1e5, 1e8), st.floats(0, 200), st.integers(1, 8)
)
def test_equation_3_has_its_closed_form_on_a_straight_line(base_s, row_s, up_bps, load, pipeline):
    path = replace(PAPER, up_bps=up_bps, cloud_s=Line(base_s, row_s), load=load, pipeline=pipeline)
    rest_s = pipeline * path.state_bytes / up_bps - row_s
    assume(rest_s > 1e-7)
    wanted = 2 * (base_s + row_s * load) / rest_s
    assume(abs(wanted - round(wanted)) > 1e-6)
    assert equation3(path, 4096) == min(4096, ceil(wanted))


@given(st.floats(0.0, 0.1), st.floats(1.001, 5.0), st.integers(1, 2048))
def test_an_uplink_faster_than_the_cloud_makes_one_chunk(base_s, times, prompt):
    row_s = times * PAPER.pipeline * PAPER.state_bytes / PAPER.up_bps
    assert equation3(replace(PAPER, cloud_s=Line(base_s, row_s)), prompt) == prompt
    assert equation3(replace(PAPER, up_bps=inf), prompt) == prompt


def test_the_papers_chunks_on_the_stand_in_are_those_of_the_notes():
    """2 x 24 ms / (4 x 8,192 B / 7.5 MB/s), about 11 tokens on SpecBench."""
    assert equation3(replace(PAPER, cloud_s=VerifyCurve([(1, 0.0245), (128, 0.0285)])), 351) == 12


def test_a_prompt_takes_at_least_its_time_on_the_uplink():
    """351 x 8,192 B / 7.5 MB/s = 383.4 ms: the paper prints 384.2 ms and leaves nothing to the cloud."""
    bound_s = 351 * 8192 / 7.5e6
    for reply in ("last", "all"):
        chunk = makespan_chunk(PAPER, 351, reply=reply)
        assert bound_s + 0.02 < prompt_s(PAPER, 351, chunk, reply=reply) < bound_s + 0.05


def test_a_baseline_that_downloads_every_row_takes_that_much_longer():
    all_s, last_s = (prompt_s(PAPER, 351, 351, reply=reply) for reply in ("all", "last"))
    assert all_s - last_s == pytest.approx(350 * 8192 / 12.5e6)
    assert last_s == pytest.approx(351 * 8192 / 7.5e6 + 0.001 + 0.025 + 351 * 4e-5 + 8192 / 12.5e6)


def test_drafting_ahead_as_printed_and_as_it_is():
    path = replace(PAPER, up_bps=8.192e6, down_bps=8.192e6, rtt_s=0.02, cloud_s=Line(0.01, 0.001))
    assert ahead_steps(path, 4, 0.003, rtt=False) == 6  # (4 + 10 + 4) / 3
    assert ahead_steps(path, 4, 0.003) == 15  # (5 + 20 + 15 + 5) / 3
    assert ahead_steps(path, 0, 0.01, rtt=False) == 1
    assert ahead_steps(replace(path, load=10.5), 1, 0.0005, rtt=False) == 45  # (1 + 20.5 + 1) / 0.5


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0.0, 1.0)), min_size=1, max_size=60))
def test_the_monitor_keeps_moving_averages(batches):
    monitor = CloudMonitor()
    assert monitor.load == 0
    assert monitor.curve() is None
    load = float(batches[0][0])
    for number, (rows, seconds) in enumerate(batches):
        load = 0.8 * load + 0.2 * rows if number else load
        monitor.batch(rows, seconds)
    assert monitor.load == pytest.approx(load)
    assert monitor.batches == len(batches)
    curve = monitor.curve()
    least, most = (f(s for _, s in batches) for f in (min, max))
    for rows, _ in curve.points:
        assert least - 1e-12 <= curve.s(rows) <= most + 1e-12


def test_the_monitor_interpolates_between_rows_that_it_saw_and_forgets_slowly():
    monitor = CloudMonitor()
    for _ in range(40):
        monitor.batch(1, 0.010, load=0)
        monitor.batch(9, 0.026)
    assert monitor.curve().s(5) == pytest.approx(0.018)
    monitor.batch(9, 0.076)
    assert monitor.curve().s(9) == pytest.approx(0.036)
    assert 0 < monitor.load < 9
    for rows in range(17, 100_000, 7):
        monitor.batch(rows, 0.1)
    assert len(monitor.curve().points) < 130


def test_numbers_out_of_range_are_refused():
    for wrong in ({"up_bps": 0}, {"down_bps": -1}, {"rtt_s": inf}, {"load": -1}, {"pipeline": 0}):
        with pytest.raises(ValueError, match="a path needs"):
            replace(PAPER, **wrong)
    for call in (
        lambda: equation3(PAPER, 0),
        lambda: prompt_s(PAPER, 5, 0),
        lambda: makespan_chunk(PAPER, 0),
    ):
        with pytest.raises(ValueError, match="at least 1 token"):
            call()
    for sizes in ([], [0, 4]):
        with pytest.raises(ValueError, match="at least one size"):
            makespan_chunk(PAPER, 10, sizes=sizes)
    with pytest.raises(ValueError, match="last or all"):
        prompt_s(PAPER, 5, 1, reply="some")
    with pytest.raises(ValueError, match="a draft has"):
        ahead_steps(PAPER, 1, 0.0)
    with pytest.raises(ValueError, match="old average"):
        CloudMonitor(old_share=1)
    with pytest.raises(ValueError, match="at least 1 row"):
        CloudMonitor().batch(0, 0.1)


def test_times_of_passes_may_fall():
    times = PassTimes([(64, 0.2), (1, 0.02), (63, 0.9)])
    assert [times.s(rows) for rows in (1, 63, 64, 128)] == [0.02, 0.9, 0.2, 0.4]


@given(st.integers(1, 5000), st.integers(1, 600))
def test_a_long_chunk_takes_even_passes(rows, most):
    left, passes = rows, []
    while left:
        passes.append(even_pass(left, most))
        left -= passes[-1]
    assert len(passes) == ceil(rows / most)
    assert max(passes) <= most
    assert max(passes) - min(passes) <= 1
    times = PassTimes([(1, 1.0), (600, 600.0)], pass_rows=most)
    assert rows <= times.s(rows) < rows + len(passes)


def test_a_chunk_just_above_a_pass_is_known_to_take_two():
    times = PassTimes([(1, 0.02), (63, 0.9), (64, 0.25), (256, 0.9)], pass_rows=256)
    assert times.s(256) == 0.9
    assert times.s(268) == pytest.approx(2 * times.s(134))
    with pytest.raises(ValueError, match="at least 1 row, not 0"):
        PassTimes([(1, 1.0)], pass_rows=0)
