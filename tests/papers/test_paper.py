"""The paper's evaluation: its set-up, a small run of all five items, and the sentences below their tables."""

import json
import pickle
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from papers.disco_paper import PaperResult, paper_tables, run_paper
from papers.disco_paper.paper_requests import Requests, read_lengths
from papers.disco_paper.paper_setup import SERVERS, pairs

from disco.errors import ConfigurationError
from disco.profiles import load_server

BUDGETS = (0.0, 0.5, 1.0)
# P99 of so many is a request's own time, not a point between two: what the oracle for P99 makes small.
REQUESTS = 101


@pytest.fixture(scope="module")
def small() -> PaperResult:
    return run_paper(runs=2, requests=REQUESTS, budgets=BUDGETS, event_requests=3)


@pytest.fixture(scope="module")
def tables(small):
    """By the first word or two of their titles."""
    return {table.title.split(":")[0]: table for table in paper_tables(small)}


def test_every_pair_runs_as_labelled_and_only_one_label_contradicts_its_prices():
    chosen = pairs()
    assert len(chosen) == len({(p.device, p.server, p.regime) for p in chosen}) == 24
    for pair in chosen:
        server_constrained = pair.regime == "server-constrained"
        assert pair.scenario.constrained == ("server" if server_constrained else "device")
        assert pair.policy == ("length_threshold" if server_constrained else "wait_time")
        assert (pair.scenario.max_tokens, pair.scenario.pace_tps) == (128, 4.8)
        assert pair.scenario.device_slots is None
    contradicting = [(p.device, p.server, p.regime) for p in chosen if p.prices_say != p.regime]
    assert contradicting == [("Q-0.5B", "Command", "device-constrained")]
    assert all(load_server(server.profile).stands_for is not None for server in SERVERS)
    # A server can be replaced by one's own.
    other = load_server("gpt-4o-mini-2024")
    assert [p.server for p in pairs({"GPT": other}) if p.scenario.server_name == other.name] == ["GPT"] * 6
    with pytest.raises(ConfigurationError, match=r"no server called 'Gemini'.*GPT, LLaMA"):
        pairs({"Gemini": other})


def test_budgets_are_kept_and_nothing_beats_the_oracle(small):
    prompts = [Requests(REQUESTS)(seed).prompt_tokens for seed in (0, 1)]
    one_prompt = max(int(p.max()) for p in prompts) / min(int(p.sum()) for p in prompts)
    for curves in small.curves:
        if curves.pair.policy == "length_threshold":
            assert (curves.used["disco"] <= np.array(BUDGETS) + one_prompt).all()
        kept = curves.used["disco"] <= np.array(BUDGETS) + 1e-9
        for times_s in (curves.mean_s, curves.p99_s):
            assert (times_s["oracle"] <= times_s["disco"] + 1e-9)[kept].all()


def test_a_cut_is_against_stochastic_dispatch_and_a_move_against_staying(small):
    curves = small.curves[0]
    assert np.array_equal(curves.p99_s["disco"][:, 0], curves.p99_s["stoch"][:, 0])
    by_hand = 100 * (1 - curves.p99_s["disco"] / curves.p99_s["stoch"])
    assert curves.tail_cut("disco").mean == pytest.approx(by_hand.mean())
    assert curves.tail_cut("disco", inner=True).mean == pytest.approx(by_hand[:, 1].mean())
    # Moves are compared on the same answers: in three orders, every second of three budgets, without 0.
    assert (len(small.migrations), {(m.budget, m.answers) for m in small.migrations}) == (72, {(1.0, 3)})
    for move in small.migrations:
        assert move.saved_percent <= move.bound_percent + 1e-9
        assert move.clairvoyant_percent <= move.bound_percent + 1e-9
        if move.order != "break_before_make":  # which may be late, and save more by that
            assert move.saved_percent <= move.clairvoyant_percent + 1e-9
            assert not move.late_tokens.any()
        assert move.late_tokens.size or move.cost_usd == pytest.approx(move.staying_usd)


def test_json_and_tables_hold_ours_beside_the_printed(small, tables):
    shapes = {"Set-up": 4, "Table 2": 24, "Figure 6": 24, "Table 3": 24, "Figure 7": 24}
    found = {name: len(table.rows) for name, table in tables.items()}
    assert list(found.items()) == list({**shapes, "Figure 9": len(small.planning)}.items())
    assert all(len(row) == len(table.header) for table in tables.values() for row in table.rows)
    plain = json.loads(json.dumps(small.to_dict(), allow_nan=False))
    first = plain["table_2"][0]
    assert (first["server"], first["device"], first["printed_percent"]) == ("GPT", "B-1.1B", 23.85)
    (mislabelled,) = plain["setup"]["mislabelled"]
    assert list(mislabelled.values()) == ["Q-0.5B", "Command", "device-constrained", "server-constrained"]
    assert {row["printed_ms"] for row in plain["figure_9"]} >= {0.128, 14.856}


def test_same_seed_same_figures_on_any_executor_and_progress_reaches_its_end():
    seen, results = [], []
    with ThreadPoolExecutor(2) as threads:
        for how in ({}, {"executor": threads, "progress": lambda *at: seen.append(at)}):
            plain = run_paper(runs=1, requests=5, budgets=(0.5,), event_requests=1, **how).to_dict()
            timings = [row.pop("ours_ms") for row in plain["figure_9"]]
            results.append({**plain, "took_s": None, "timings": len(timings)})
    assert results[0] == results[1]
    assert seen == [(done, len(seen)) for done in range(1, len(seen) + 1)]


# ---------------------------------------------------------------------- sentences


def test_table_2_is_counted_with_its_other_cells_named_and_figure_6s_range_is_that_of_its_rows(tables):
    table = tables["Table 2"]
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    counted, *others, inner = table.notes
    verdicts = Counter(row["where we stand"] for row in rows)
    said = re.match(rf"Of {len(rows)} cells: (.+?)\. Out of reach", counted)[1]
    assert said == ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    assert others == [
        f"{row['device']} × {row['server']} {row['']}: {row['where we stand']}; printed {row['printed']} %, ours "
        f"{row['ours'].split('±')[0]} %, the oracle {row['oracle']} %."
        for row in rows
        if row["where we stand"] != "ahead"
    ]
    changes = [float(row["inner b"]) - float(row["ours"].split("±")[0]) for row in rows]
    low, high = map(float, re.search(r"cut is ([+-][\d.]+) to ([+-][\d.]+) points", inner).groups())
    assert (low, high) == (pytest.approx(min(changes), abs=0.11), pytest.approx(max(changes), abs=0.11))
    ranges = [
        re.fullmatch(r"(-?\d+) to (-?\d+)", row[-1]) for row in tables["Figure 6"].rows if row[-1] != "–"
    ]
    low, high = min(int(found[1]) for found in ranges), max(int(found[2]) for found in ranges)
    assert f"Mean TTFT lies {low} to {high} % below stochastic dispatch" in tables["Figure 6"].notes[1]


# ---------------------------------------------------------------------- options and lengths


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "runs must be at least 1"),
        ({"requests": 0}, "requests must be at least 1"),
        ({"budgets": [1.5]}, "shares between 0 and 1"),
        ({"budgets": []}, "at least one"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_a_number_that_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        run_paper(**options)


def test_own_lengths_are_drawn_prompt_with_answer(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("index,prompt_tokens,output_tokens\n0,10,100\n1,20,200\n2,30,0\n")
    sample = read_lengths(file)
    trace = Requests(200, sample)(0)
    drawn = set(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    assert drawn == {(10, 100), (20, 200), (30, 0)}
    assert "lengths.csv" in Requests(200, sample).what
    # Where there are enough for a run, each is drawn once; by the run's seed, in another process too.
    file.write_text("prompt_tokens,output_tokens\n" + "".join(f"{n},1\n" for n in range(1, 51)))
    source = pickle.loads(pickle.dumps(Requests(50, read_lengths(file))))
    assert len(set(source(0).prompt_tokens.tolist())) == 50
    assert np.array_equal(source(3).prompt_tokens, source(3).prompt_tokens)
    assert not np.array_equal(source(3).prompt_tokens, source(4).prompt_tokens)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt_tokens\n1\n", "no column output_tokens"),
        ("prompt_tokens,output_tokens\n", "has no lengths below its first line"),
        ("prompt_tokens,output_tokens\n5,6\n0,6\n", "line 3, column prompt_tokens: .* at least 1"),
        ("prompt_tokens,output_tokens\n5\n", "line 2, column output_tokens"),
        ("prompt_tokens,output_tokens\n5.5,6\n", "line 2, column prompt_tokens"),
    ],
)
def test_a_file_of_lengths_that_is_not_one_is_refused_with_its_place(tmp_path, text, message):
    file = tmp_path / "lengths.csv"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_lengths(file)
