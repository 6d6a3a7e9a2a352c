"""Planners under drift: the loop agrees with the vectorised evaluator, nobody sees the future but the oracle."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.drift import __main__ as command
from papers.drift import drift_tables, run_drift
from papers.drift.drift_planners import ADAPTIVE, PLANNERS, ROLLING, Planner
from papers.drift.drift_play import WARM, Setting, play, prompt_lengths, worst_window
from papers.drift.drift_run import TEN_USERS
from papers.drift.drift_workloads import (
    Times,
    made_up,
    read_times,
    shipped_traces,
    users_days,
)
from papers.drift.point_forecasts import FORECASTS, forecast

from disco.dispatch import WaitTime
from disco.errors import ConfigurationError
from disco.profiles import Empirical, Lengths, load_device
from disco.replay.vector.arm_delays import delays

SOURCES = {source.name: source for source in (*shipped_traces(), *users_days(), *made_up())}
BY_NAME = {planner.name: planner for planner in PLANNERS}


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.37])
def test_without_learning_and_without_the_rule_the_loop_is_the_vectorised_evaluator(budget):
    times, seed = SOURCES["step"](1), 1
    played = play(times, BY_NAME["offline once (paper), no rule"], Setting("device", budget), seed)
    tokens = prompt_lengths(times.ttft_s.size, seed)
    line = load_device("pixel7pro-bloom-1.1b").line
    policy = WaitTime.fitted(
        Lengths.from_samples(tokens),
        Empirical.from_samples(times.ttft_s[:WARM]),
        budget=budget,
        rng=np.random.default_rng([seed, 4]),
    )
    device_s, _ = delays(policy, tokens[WARM:])
    server_s = times.ttft_s[WARM:]
    assert played.used.tolist() == (device_s < server_s).tolist()
    device_at = device_s + tokens[WARM:] / (1 / line.k_s_per_token) + line.c_s
    assert played.ttft_s == pytest.approx(np.minimum(device_at, server_s))


@pytest.mark.parametrize("name", SOURCES)
def test_every_workload_has_times_in_order_and_the_same_for_the_same_seed(name):
    times, again, other = SOURCES[name](3), SOURCES[name](3), SOURCES[name](4)
    assert times.ttft_s.size == times.arrival_s.size > 2 * WARM
    assert (np.diff(times.arrival_s) >= 0).all()
    assert (times.ttft_s > 0).all()
    assert times.ttft_s.tolist() == again.ttft_s.tolist() != other.ttft_s.tolist()
    if name.startswith("user"):
        assert times.arrival_s[-1] <= 24 * 3600


@pytest.mark.parametrize("name", FORECASTS)
def test_a_forecast_knows_nothing_of_what_it_forecasts_nor_of_what_follows(name):
    ttft_s = SOURCES["gpt-4.1-nano-2026"](0).ttft_s[:700]
    known = forecast(name, ttft_s, 0)
    changed = ttft_s.copy()
    changed[620:] *= 7
    assert forecast(name, changed, 0)[:621].tolist() == known[:621].tolist()
    assert np.isfinite(known).all()
    assert np.abs(known[1:] - ttft_s[1:]).mean() < 0.7  # of a mean of 0.8 s


@pytest.mark.parametrize("planner", [p for p in PLANNERS if p.knows in ("rolling", "adaptive", "once")])
def test_no_planner_but_the_oracle_uses_times_that_are_still_to_come(planner):
    times = SOURCES["step"](0)
    times = Times(times.arrival_s[:700], times.ttft_s[:700])
    longer = Times(times.arrival_s, np.where(np.arange(700) < 500, times.ttft_s, 9.0))
    one, other = (play(each, planner, Setting("device", 0.1), 0) for each in (times, longer))
    assert one.ttft_s[: 500 - WARM].tolist() == other.ttft_s[: 500 - WARM].tolist()


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([p for p in PLANNERS if p.governed and p.knows not in FORECASTS]), st.integers(0, 99))
def test_under_the_rule_every_window_keeps_the_budget(planner, seed):
    for side in ("device", "server"):
        times = SOURCES["outages"](seed)
        times = Times(times.arrival_s[600:1100], times.ttft_s[600:1100])
        assert worst_window(play(times, planner, Setting(side, 0.1), seed), 0.1) <= 1 + 1e-9


def test_the_detector_finds_a_step_and_keeps_the_windows_near_the_budget():
    """Without the rule, what follows the change quickly exceeds the budget by less."""
    for seed in range(2):
        free = {
            knows: play(
                SOURCES["step"](seed), Planner(knows, knows, governed=False), Setting("device", 0.1), seed
            )
            for knows in ("rolling", "adaptive")
        }
        over = {knows: worst_window(played, 0.1) for knows, played in free.items()}
        assert over["adaptive"] < over["rolling"]
        assert 1 <= free["adaptive"].changes <= 4


SMALL = [SOURCES[name] for name in ("gpt-4.1-nano-2026", "user 1", "user 2")]
QUICK = [planner for planner in PLANNERS if planner.knows not in ("random forest", "boosted trees")]


def test_a_run_has_a_row_for_each_planner_and_tables_that_compare_ours_with_the_rolling_window():
    result = run_drift(runs=2, budgets=(0.1,), sources=SMALL, planners=QUICK)
    # The server's side: no users; adaptive with and without the rule, and two forecasts.
    assert len(result.rows) == len(SMALL) * len(QUICK) + 4
    pooled = result.find(TEN_USERS, "device", 0.1, ADAPTIVE)
    each = [result.find(f"user {n}", "device", 0.1, ADAPTIVE) for n in (1, 2)]
    assert pooled.mean_s[0] == pytest.approx(np.mean([row.mean_s[0] for row in each]))
    assert max(pooled.worst_prompts) == max(max(row.worst_prompts) for row in each) <= 1 + 1e-9
    titles = [table.title for table in drift_tables(result)]
    assert [title.split(":")[0] for title in titles] == [
        "Adaptive less rolling window, both under the budget's rule",
        "All planners",
        "All planners",
        "Errors of the point forecasts",
    ]
    cells = {row[0]: row for row in drift_tables(result)[0].rows}
    assert list(cells) == ["gpt-4.1-nano-2026", TEN_USERS, "user 1", "user 2"]
    ours, rolling = (result.find("user 1", "device", 0.1, name) for name in (ADAPTIVE, ROLLING))
    assert cells["user 1"][2].startswith(f"{np.mean(ours.mean_s) - np.mean(rolling.mean_s):+.3f}")
    again = run_drift(runs=2, budgets=(0.1,), sources=SMALL, planners=QUICK)
    assert again.rows == result.rows


def test_one_seed_is_no_verdict():
    table, *_ = drift_tables(run_drift(runs=1, budgets=(0.1,), sources=SMALL[:1], planners=QUICK))
    assert [row[4] for row in table.rows] == ["–"]
    assert "nothing is known of chance" in table.notes[0]


def test_without_scikit_learn_the_forests_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr("papers.drift.drift_run.has_sklearn", lambda: False)
    planners = [p for p in PLANNERS if p.knows in ("moving average", "random forest")]
    result = run_drift(runs=1, budgets=(0.1,), sources=SMALL[:1], planners=planners)
    assert {row.planner for row in result.rows} == {"moving average"}
    assert 'pip install "disco-llm[forecast]"' in result.notes[0]
    assert any(result.notes[0] in table.notes for table in drift_tables(result))


def test_the_command_replays_a_trace_of_ones_own_and_names_what_is_wrong_with_one(
    tmp_path, monkeypatch, capsys
):
    own = tmp_path / "server.csv"
    rows = [f"2025-01-11 04:{row // 60:02}:{row % 60:02},{1 + row % 7 / 10},\n" for row in range(500)]
    own.write_text("".join(["timestamp,ttft_s,error\n", *rows, "2025-01-11 05:00:00,,refused\n"]))
    source = read_times(own)
    assert source(0).arrival_s[-1] == 499
    assert source(0).ttft_s.size == 500
    few = partial(run_drift, sources=SMALL[:1], planners=QUICK[:6])
    monkeypatch.setattr(command, "run_drift", few)
    assert command.main(["--quick", "--trace-file", str(own), "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "server.csv: the file itself, 500 times." in told
    assert "All planners" in told
    wrong = {
        "": "no column ttft_s",
        "ttft_s\n1\n": "has 1 times; drift needs at least 400",
        "ttft_s\nsoon\n": "line 2: could not convert",
        "ttft_s\n-1\n": "line 2: ttft_s must be at least 0 s",
        "ttft_s,timestamp\n1,noon\n": "line 2: Invalid isoformat",
    }
    for text, message in wrong.items():
        own.write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            read_times(own)
    for bad in ({"runs": 0}, {"budgets": (0.0,)}, {"budgets": ()}, {"seed": -1}):
        with pytest.raises(ConfigurationError):
            run_drift(**bad)


@pytest.mark.slow
def test_the_quick_command_runs_whole(capsys):
    assert command.main(["--quick", "--runs", "1", "--jobs", "1"]) == 0
    assert "boosted trees" in capsys.readouterr().out
