"""From outcomes to figures: exact on known data, and the same in chunks."""

from __future__ import annotations

import math
import pickle
import sys
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.cost import Phase
from disco.errors import ConfigurationError
from disco.playback import reader_metrics
from disco.replay.metrics.outcome import Outcome, Reading
from disco.replay.metrics.over_seeds import CDF_LEVELS, Figure, figure, figures_of, regret, summarise
from disco.replay.metrics.per_seed import RELATIVE_ERROR, SeedFigures, Sketch, Tally

NAN = math.nan


def outcome(ttft_s, *, seed: int = 0, reading: bool = False) -> Outcome:
    times = np.array(ttft_s, dtype=np.float64)
    n, rng = times.size, np.random.default_rng(seed)
    prompt, cost, moved = rng.integers(1, 100, n), rng.random(n), rng.random(n) < 0.5
    device = prompt * (rng.random(n) < 0.7)
    late = rng.integers(0, 9, n).astype(np.float64)
    read = Reading(
        **{name: rng.random(n) for name in ("stall_ratio", "qoe", "fluidity")},
        late_tokens=late,
        handover_late_tokens=np.where(moved, np.floor(late / 2), 0.0),
        moved=moved,
        failed_over=rng.random(n) < 0.1,
        tbt_s=rng.exponential(0.2, 5 * n),
        moved_tbt_s=rng.exponential(0.2, n),
    )
    return Outcome(
        ttft_s=times,
        device_won=rng.random(n) < 0.4,
        prompt_tokens=prompt,
        device_prompt_tokens=device,
        server_prompt_tokens=prompt - device,
        cost_usd=cost,
        cost_by={("device", Phase.ANSWER): float(cost.sum()) / 4, ("server", Phase.RACE_LOSER): 0.5},
        failed=np.isnan(times),
        reading=read if reading else None,
    )


# ---------------------------------------------------------------------- one seed


def test_figures_of_four_requests_by_hand():
    one = Outcome(
        ttft_s=np.array([0.4, 0.1, NAN, 0.2]),
        device_won=np.array([True, False, False, False]),
        prompt_tokens=np.array([10, 20, 30, 40]),
        device_prompt_tokens=np.array([10, 0, 30, 0]),
        server_prompt_tokens=np.array([10, 20, 0, 40]),
        cost_usd=np.array([1.0, 2.0, 3.0, 6.0]),
        cost_by={("device", Phase.ANSWER): 4.0, ("server", Phase.ANSWER): 8.0},
        failed=np.array([False, False, True, False]),
        reading=Reading(  # over the answers there were
            late_tokens=np.array([3.0, 0.0, 100.0, 9.0]),
            handover_late_tokens=np.array([2.0, 0.0, 100.0, 4.0]),
            stall_ratio=np.array([0.1, NAN, NAN, 0.3]),
            qoe=np.array([1.0, 0.5, NAN, 0.0]),
            fluidity=np.array([1.0, 1.0, NAN, 0.4]),
            moved=np.array([True, False, True, True]),
            failed_over=np.array([False, True, True, False]),
            tbt_s=np.array([0.3, 0.1, 0.2]),
            moved_tbt_s=np.array([0.3, 0.1]),
        ),
    )
    found = figures_of(one, "device")
    quantiles = found.ttft_quantiles_s
    assert (quantiles[0], quantiles[-1], len(quantiles), len(CDF_LEVELS)) == (0.1, 0.4, 202, 202)
    times = (found.ttft_mean_s, found.ttft_p50_s, found.ttft_p90_s, found.ttft_p99_s)
    assert times == pytest.approx((0.7 / 3, 0.2, 0.2 + 0.8 * 0.2, 0.2 + 0.98 * 0.2))
    assert (found.requests, found.device_won, found.failed) == (4, 0.25, 0.25)
    assert (found.budget_used, figures_of(one, "server").budget_used) == (0.4, 0.7)
    assert (found.cost_usd, found.cost_by) == (3.0, {"device/answer": 1.0, "server/answer": 2.0})
    assert asdict(found.reading) == pytest.approx(
        {
            "tbt_mean_s": 0.2,
            "tbt_p50_s": 0.2,
            "tbt_p99_s": 0.298,
            "moved_tbt_p99_s": 0.298,
            "late_tokens": 4.0,
            "handover_late_tokens": 3.0,
            "handover_late_p99": 3.98,
            "stall_ratio": 0.2,
            "qoe": 0.5,
            "fluidity": 0.8,
            "moved": 2 / 3,
            "failed_over": 1 / 3,
        }
    )


def test_figures_of_what_did_not_happen():
    """Without moves there are none of moves; when no request was answered, times are unknown."""
    one = outcome([0.1, 0.2], reading=True)
    still = replace(one.reading, moved=np.zeros(2, dtype=bool), moved_tbt_s=np.empty(0))
    reading = figures_of(replace(one, reading=still), "device").reading
    assert (reading.moved_tbt_p99_s, reading.handover_late_tokens, reading.handover_late_p99) == (None,) * 3
    assert reading.moved == 0.0
    found = figures_of(outcome([NAN, NAN], reading=True), "server")
    assert np.isnan([found.ttft_mean_s, found.ttft_p99_s, found.reading.late_tokens]).all()
    assert found.failed == 1.0
    assert found.cost_usd > 0


# ---------------------------------------------------------------------- over seeds


def test_an_interval_on_known_data_and_one_seed_that_needs_no_scipy(monkeypatch):
    """t(0.975, 4) = 2.776445, from any table."""
    half = 2.7764451 * math.sqrt(2.5 / 5)
    ends = pytest.approx(3.0 - half, rel=1e-7), pytest.approx(3.0 + half, rel=1e-7)
    assert figure([1.0, 2.0, 3.0, 4.0, 5.0]) == Figure(3.0, *ends)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert figure([0.3]) == Figure(0.3, 0.3, 0.3)
    with pytest.raises(ConfigurationError, match=r"disco-llm\[replay\]"):
        figure([0.3, 0.4])


def test_a_summary_is_the_mean_over_its_seeds():
    seeds = [figures_of(outcome(np.arange(1.0, 9.0) * k, seed=k, reading=True), "device") for k in (1, 2, 3)]
    found = summarise(seeds)
    assert (found.requests, found.seeds) == (8, 3)
    apart = {"requests", "seeds", "ttft_quantiles_s", "cost_by", "reading", "ttft_known"}
    for name in {f.name for f in fields(SeedFigures)} - apart:
        assert getattr(found, name) == figure([getattr(one, name) for one in seeds]), name
    assert found.failed == Figure(0.0, 0.0, 0.0)
    expected = np.mean([one.ttft_quantiles_s for one in seeds], axis=0)
    assert found.ttft_quantiles_s == pytest.approx(tuple(expected))
    assert found.cost_by["server/race_loser"] == pytest.approx(0.5 / 8)
    assert found.reading.qoe == figure([one.reading.qoe for one in seeds])


def test_what_only_some_seeds_have():
    """A charge counts as nothing in the others; a time of moves is the mean of the seeds in which something moved."""
    moved = figures_of(outcome(np.arange(1.0, 9.0), reading=True), "device")
    none = dict.fromkeys(("moved_tbt_p99_s", "handover_late_tokens", "handover_late_p99"))
    still = replace(moved, reading=replace(moved.reading, **none), cost_by={"device/answer": 3.0})
    both = summarise([replace(moved, cost_by={"server/answer": 1.0}), still])
    assert both.cost_by == {"device/answer": 1.5, "server/answer": 0.5}
    assert both.reading.moved_tbt_p99_s == figure([moved.reading.moved_tbt_p99_s])
    assert summarise([still, still]).reading.moved_tbt_p99_s is None
    with pytest.raises(ConfigurationError, match="at least one seed"):
        summarise([])
    with pytest.raises(ConfigurationError, match="different evaluators"):
        summarise([moved, replace(moved, reading=None)])


def test_a_regret_is_paired():
    """Seeds differ by far more than the arm from the oracle; the interval does not see it."""
    base = figures_of(outcome([1.0]), "device")
    luck = [1.0, 5.0, 30.0]
    seeds = [replace(base, ttft_mean_s=t + 0.5, ttft_p99_s=2 * t + 1.0) for t in luck]
    found = [asdict(one) for one in regret(seeds, luck, [2 * t for t in luck])]
    ends = ("mean", "low", "high")
    assert found == [pytest.approx(dict.fromkeys(ends, value), abs=1e-12) for value in (0.5, 1.0)]
    with pytest.raises(ValueError, match="shorter"):
        regret(seeds, luck[:2], luck)


# ---------------------------------------------------------------------- chunks


@pytest.mark.parametrize("chunk", [1, 97, 1000])
def test_chunks_give_what_the_whole_gives_in_memory_that_does_not_grow(chunk):
    rng = np.random.default_rng(3)
    times = 0.2 + 0.3 * rng.pareto(1.5, 300)
    times[rng.random(300) < 0.02] = NAN
    whole = outcome(times)
    tally, sizes = Tally("device"), []
    for start in range(0, 300, chunk):
        rows = slice(start, start + chunk)
        columns = {f.name: getattr(whole, f.name) for f in fields(Outcome)}
        part = {name: v[rows] for name, v in columns.items() if isinstance(v, np.ndarray)}
        share = part["ttft_s"].size / 300
        tally.add(replace(whole, **part, cost_by={key: usd * share for key, usd in whole.cost_by.items()}))
        sizes.append(len(pickle.dumps(tally)))
    assert sizes[-1] < min(sizes[0] + 100, 1_000_000)
    exact, found = asdict(figures_of(whole, "device")), asdict(tally.figures())
    assert exact.pop("reading") is found.pop("reading") is None
    for name, value in exact.items():
        error = RELATIVE_ERROR * (1 + 1e-9) if "_p" in name or "quantiles" in name else 1e-12
        assert found[name] == pytest.approx(value, rel=error, abs=1e-15), name


values = st.floats(1e-6, 1e7) | st.just(0.0) | st.sampled_from([1.0, 2.0, 0.5])


@settings(max_examples=150, deadline=None)
@given(st.lists(values, min_size=1, max_size=80), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
def test_a_sketch_is_off_by_no_more_than_it_says(drawn, levels):
    sketch = Sketch()
    sketch.add(np.array(drawn))
    for q, found in zip(levels, sketch.quantiles(levels), strict=True):
        exact = reader_metrics.quantile(drawn, q)
        assert abs(found - exact) <= RELATIVE_ERROR * exact * (1 + 1e-9) + 1e-15
    outside, empty = Sketch(), Sketch()
    outside.add(np.array([1e-9, 1e9, NAN]))
    assert outside.quantiles((0.0, 1.0)) == [1e-9, 1e9]
    assert np.isnan(empty.quantiles((0.0, 0.5))).all()
