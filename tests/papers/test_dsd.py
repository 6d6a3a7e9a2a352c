"""The DSD paper's evaluation: printed figures as they are, the calibration, and a small run of all tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from papers.dsd import dsd_page, dsd_tables, run_dsd
from papers.dsd.__main__ import main
from papers.dsd.calibrate import calibrate, loop_tokens
from papers.dsd.calibrated import ADMISSION, DATA
from papers.dsd.dsd_claims import claims, crossover_ms
from papers.dsd.dsd_run import (
    ALONE,
    DISTRIBUTED,
    DRAFTERS,
    FUSED,
    LOADS,
    ONE_WAY,
    OPTIMAL,
    ROUND_TRIPS_MS,
    Point,
)
from papers.dsd.paper_fleets import paper_fleet
from papers.dsd.printed_values import (
    ADAPTIVE,
    CONFIGURATIONS,
    DATASETS,
    STATIC,
    WINDOWS,
    Cell,
    printed,
)
from papers.dsd.steady_state import SPAN, Span, steady_point
from papers.fleet.fleet_simulator import Simulation
from papers.fleet.fleet_topology import expand

from disco.errors import ConfigurationError

SCALE = {"share": 0.03}


@pytest.fixture(scope="module")
def small():
    """All points, with answers of 17 to 33 tokens; what a run of this size shows says nothing about the paper."""
    return run_dsd(**SCALE)


def test_the_printed_table_has_the_papers_own_gains():
    """The note's recomputed TPOT and throughput of AWC against static, %, of all twelve columns."""
    gains = {
        part: [
            round(
                100
                * (
                    getattr(printed(data, number, ADAPTIVE), part)
                    / getattr(printed(data, number, STATIC), part)
                    - 1
                ),
                1,
            )
            for data in DATASETS
            for number in CONFIGURATIONS
        ]
        for part in Cell._fields
    }
    assert gains["tpot_ms"] == [-9.7, -6.6, -6.4, -7.9, -8.9, -6.5, -7.1, -5.7, -6.8, -6.5, -6.2, -9.3]
    assert gains["requests_per_s"] == [9.7, 2.9, 3.9, 4.2, 6.2, 4.6, 0.9, 3.1, 5.0, 4.1, 3.3, 4.3]
    assert gains["ttft_ms"] == [-1.4, -1.6, -4.1, -3.1, -0.5, -3.0, -1.6, -3.1, -2.1, -2.5, -0.9, -2.0]


def test_the_length_of_answers_is_that_of_the_closed_loop_in_one_column():
    for name, data in DATA.items():
        assert data.output_tokens == round(loop_tokens(name))
        cell = printed(name, 1, STATIC)
        assert 600 / (cell.ttft_ms + loop_tokens(name) * cell.tpot_ms) * 1e3 == pytest.approx(
            cell.requests_per_s
        )


@pytest.mark.slow
def test_the_calibration_finds_its_constants_again():
    """The wait before the server within the noise of two runs' TTFT."""
    (fixed_ms, token_ms), found = calibrate()
    for name, data in DATA.items():
        noise_ms = 0.08 * printed(name, 1, STATIC).ttft_ms
        assert fixed_ms + token_ms * data.prompt_tokens == pytest.approx(data.admission_ms, abs=noise_ms)
        assert found[name].acceptance == pytest.approx(data.acceptance, abs=0.011)


@pytest.mark.slow
def test_the_calibrated_column_is_met_and_nothing_else_was_fitted():
    result = run_dsd()
    for name in DATASETS:
        ours, paper = result.table2[name, 1, STATIC].cell, printed(name, 1, STATIC)
        assert ours.tpot_ms == pytest.approx(paper.tpot_ms, rel=0.04)
        assert ours.requests_per_s == pytest.approx(paper.requests_per_s, rel=0.05)
    assert result.table2["GSM8K", 1, STATIC].cell.ttft_ms == pytest.approx(352, rel=0.05)


def test_the_paper_fleet_is_one_family_of_three():
    scenario = paper_fleet(DATA["GSM8K"], drafters=600, rtt_ms=10, until_ms=1e4)
    topology = expand(scenario)
    assert (len(topology.targets), len(topology.drafters)) == (6, 180)
    assert sorted({one.pool.hardware for one in topology.targets}) == ["a100", "a6000", "h100"]
    assert scenario.window == {"name": "static", "n": 4}
    assert scenario.arrivals.think_ms == pytest.approx(ADMISSION[0] + 70 * ADMISSION[1])


def test_every_point_is_there_and_the_same_figures_come_again(small):
    asked = {
        (data, number, arm) for data in DATASETS for number in CONFIGURATIONS for arm in (*WINDOWS, ALONE)
    }
    asked |= {(data, number, ONE_WAY) for data in DATASETS for number in (3, 4)}
    assert small.table2.keys() == asked | {(data, 1, OPTIMAL) for data in DATASETS}
    assert len(small.modes) == len(LOADS) * (len(ROUND_TRIPS_MS) + 2)
    assert len(small.policies) == 3 * len(DRAFTERS)
    # A longer way costs time.
    near, far = (small.modes[DISTRIBUTED, 200, rtt].cell.tpot_ms for rtt in (0, 100))
    assert far > near + 15
    again = steady_point(DATA["GSM8K"], SPAN, drafters=600, rtt_ms=10, seed=1, **SCALE)
    assert small.table2["GSM8K", 1, STATIC] == again
    for point in small.table2.values():
        assert point.cell.requests_per_s > 0
        assert 0 <= point.alone <= 1
    assert {small.table2[key].alone for key in small.table2 if key[2] == ALONE} == {1.0}


def test_what_is_under_way_at_the_beginning_comes_once(monkeypatch):
    made = []

    class Watched(Simulation):
        def __init__(self, scenario, topology, requests):
            super().__init__(scenario, topology, requests)
            made.append((self, requests))

    monkeypatch.setattr("papers.dsd.steady_state.Simulation", Watched)
    steady_point(DATA["GSM8K"], Span(15, 5), drafters=100, rtt_ms=0, seed=1, share=0.03, mode="fused")
    ((simulation, requests),) = made
    assert len(simulation.begun) < len(requests)
    begun = [answer.request.prompt_tokens for answer in simulation.begun]
    assert (begun[:30], begun[30:].count(1)) == ([1] * 30, 0)


def test_where_curves_cross(small):
    def at(tpot_ms: float) -> Point:
        return Point(Cell(1, 1, tpot_ms), 0, 4, 0.5)

    modes = {(DISTRIBUTED, 200, rtt): at(20 + rtt / 2) for rtt in ROUND_TRIPS_MS}
    crossed = {}
    for flat in (10.0, 45.0, 500.0):
        made = replace(small, modes=modes | {(FUSED, 200, 0): at(flat)})
        crossed[flat] = crossover_ms(made, 200, FUSED)
    assert crossed == {10.0: -1.0, 45.0: pytest.approx(50), 500.0: None}


def test_tables_are_whole(small):
    tables = dsd_tables(small)
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
    titles = [table.title for table in tables]
    assert titles[-1] == "Calibrated and assumed constants"
    assert sum(title.startswith("Table 2") for title in titles) == 3
    gsm = next(table for table in tables if table.title.startswith("Table 2, GSM8K"))
    assert re.fullmatch(r"40\.1  \d+\.\d \([+-]\d+ %\)", gsm.rows[0][4])
    assert len(claims(small)) == 11


def test_the_page_has_all_plots_and_loads_nothing(small):
    text = dsd_page(small)
    assert re.findall(r'class="plot" id="([^"]+)"', text) == [
        "table2",
        "modes",
        "policies-tpot",
        "policies-requests",
    ]
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)
    assert "://" not in own
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["plots"][0]["frames"]) == 3


def test_the_command_prints_the_tables_and_writes_its_figures(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("papers.dsd.__main__.run_dsd", lambda **_given: small)
    out, page = tmp_path / "dsd.json", tmp_path / "dsd.html"
    assert main(["--quick", "--jobs", "1", "--json", str(out), "--html", str(page)]) == 0
    assert "Figure 6" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert len(figures["table2"]) == len(small.table2)
    assert figures["assumed"][0]["source"].startswith("calibrated")
    assert "DSD" in page.read_text()


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ConfigurationError, match="choose a larger share"):
        steady_point(DATA["GSM8K"], Span(1, 0.1), drafters=20, rtt_ms=10, seed=1, share=0.003)
    for wrong in ({"runs": 0}, {"share": 0}, {"share": 1.5}):
        with pytest.raises(ConfigurationError, match="share above 0 and at most 1"):
            run_dsd(**wrong)
