"""The HAT paper's evaluation: printed figures, the bound, the calibration, and a small run of all tables."""

from __future__ import annotations

import json
import re

import pytest
from papers.hat import hat_page, hat_tables, run_hat
from papers.hat.__main__ import main
from papers.hat.bandwidth_bound import bound_ms, cells, mark
from papers.hat.first_experiments import parts
from papers.hat.hat_calibration import calibrate, drafter_for, tree_for
from papers.hat.hat_claims import claims, contradictions
from papers.hat.hat_fleets import (
    DATA,
    MAKESPAN,
    SLOWNESS,
    paper_arm,
    paper_fleet,
    paper_requests,
)
from papers.hat.hat_printed import (
    ABLATION,
    ARM_NAMES,
    CNN_DM,
    DATASETS,
    HAT,
    SPEC_BENCH,
    TABLE_4,
    TABLE_5,
    TTFT_AT,
    U_MEDUSA,
    U_SHAPE,
)
from papers.hat.hat_run import ARMS, OURS, RATES, REPLIES
from papers.hat.split_requests import Drafts, accept_length

from disco.errors import ConfigurationError


@pytest.fixture(scope="module")
def small():
    """All points with 6 requests each; what a run of this size shows says little about the paper."""
    return run_hat(share=0.02)


def changes(values: tuple[float, ...]) -> list[float]:
    """HAT against the others, %."""
    return [round(100 * (values[0] / other - 1), 1) for other in values[1:]]


def test_the_printed_figures_have_the_papers_own_gains():
    """The notes' recomputed TTFT against U-Sarathi, U-Medusa and U-shape; and what PD adds behind SD+PC."""
    assert changes(TTFT_AT["6", SPEC_BENCH]) == [-36.9, -40.4, -40.5]
    assert changes(TTFT_AT["7", CNN_DM]) == [-41.3, -53.6, -52.0]
    table = TABLE_5[SPEC_BENCH]
    assert round(100 * (table["all"][1] / table["none"][1] - 1), 1) == -49.5
    assert round(100 * (table["all"][1] / table["SD+PC"][1] - 1)) == -14


def test_the_bound_is_that_of_the_notes_and_marks_what_cannot_be():
    assert [round(value, 1) for value in bound_ms(SPEC_BENCH)] == [398.8, 383.6, 287.7]
    assert round(bound_ms(CNN_DM).fastest) == 1061
    assert [round(value) for value in bound_ms(CNN_DM, down=True)] == [2332, 2264, 1769]
    marked = {(cell.where, cell.dataset): mark(cell) for cell in cells()}
    assert marked["Figure 6, hat", SPEC_BENCH] == "impossible with rates spread evenly"
    assert marked["Figure 7, hat", CNN_DM] == "impossible, even if every device had the fastest link"
    assert marked["Table V, none", CNN_DM] == "impossible at the mean rate"
    assert marked["Table V, none", SPEC_BENCH] == ""
    assert len(marked) == len(cells()) == 24
    assert sum(map(bool, marked.values())) == 13


def test_accept_lengths_are_taken_over_from_the_paper():
    for name, data in DATA.items():
        accepted = {arm: TABLE_4[name][arm][0] for arm in (HAT, U_MEDUSA)}
        assert accept_length(data.drafter, 0.6, 12) == pytest.approx(accepted[HAT], abs=0.02)
        assert sum(data.tree**level for level in range(5)) == pytest.approx(accepted[U_MEDUSA], abs=0.01)
        assert drafter_for(name) == pytest.approx(data.drafter.mean, abs=0.005)
        assert tree_for(name) == pytest.approx(data.tree, abs=0.005)
    assert accept_length(Drafts(0.6), 0.0, 3) == pytest.approx(1 + 0.6 + 0.36 + 0.216, abs=0.02)


@pytest.mark.slow
def test_the_calibration_finds_its_constants_again():
    slowness, rate, links = calibrate()
    assert slowness == pytest.approx(SLOWNESS, abs=0.03)
    assert rate == pytest.approx(DATA[CNN_DM].rate, abs=0.05)
    assert links == {name: pytest.approx(data.link_factor, rel=0.01) for name, data in DATA.items()}


@pytest.mark.slow
def test_the_calibrated_row_is_met():
    result = run_hat()
    for name in DATASETS:
        point, (ttft_ms, tbt_ms) = result.ablation[name, "all", "none"], TABLE_5[name]["none"]
        assert point.ttft_ms == pytest.approx(ttft_ms, rel=0.01)
        assert point.tbt_ms == pytest.approx(tbt_ms, rel=0.01)


def test_the_fleet_is_that_of_the_set_up():
    fleet = paper_fleet(DATA[SPEC_BENCH], paper_arm("u_sarathi", DATA[SPEC_BENCH]))
    assert {pool.name: pool.count for pool in fleet.pools} == {"xavier": 20, "orin": 10}
    xavier, orin = fleet.pools
    assert xavier.most == pytest.approx(10 * orin.least)
    assert fleet.arm.server_rows == 128
    assert paper_arm("u_sarathi", DATA[CNN_DM]).server_rows == 256
    assert paper_arm("u_shape", DATA[CNN_DM]).server_rows == 0
    one, other = (paper_requests(SPEC_BENCH, tree=tree, parts=(50,)) for tree in (False, True))
    assert [each.prompt_tokens for each in one] == [each.prompt_tokens for each in other]


def test_the_first_experiments_have_the_papers_parts():
    """2,048 tokens: 0.09 s on the device, 3.20 s of communication at rates within the printed range."""
    found = parts(2048)
    assert found.device == pytest.approx(0.09, abs=0.01)
    assert found.cloud == pytest.approx(0.28, rel=0.2)
    assert 2.8 < found.up + found.down < 5.0


def test_every_point_is_there_and_both_replies(small):
    assert small.loads.keys() == {
        (d, r, a, rate) for d in DATASETS for r in REPLIES for a in ARMS for rate in RATES[d]
    }
    assert small.single.keys() == {(d, r, a) for d in DATASETS for r in REPLIES for a in ARMS}
    names = {column.name for column in ABLATION} | {
        column.name + OURS for column in ABLATION if column.chunks
    }
    assert small.ablation.keys() == {(d, r, name) for d in DATASETS for r in REPLIES for name in names}
    assert small.alone.keys() == {(d, a) for d in DATASETS for a in (HAT, U_MEDUSA, U_SHAPE)}
    for dataset in DATASETS:
        for arm in ARM_NAMES:
            whole, last = (small.loads[dataset, reply, arm, RATES[dataset][0]].ttft_ms for reply in REPLIES)
            assert whole > last > bound_ms(dataset).spread / DATA[dataset].link_factor
        assert small.alone[dataset, U_SHAPE].accept_length == 1
    # The same run under another name: U-shape is the column "none", and HAT is all of Table V.
    for reply in REPLIES:
        assert small.ablation[SPEC_BENCH, reply, "none"] == small.loads[SPEC_BENCH, reply, U_SHAPE, 6.0]
        assert small.ablation[SPEC_BENCH, reply, "all"] == small.loads[SPEC_BENCH, reply, HAT, 6.0]
    chunked = small.loads[CNN_DM, "all", MAKESPAN, 1.0], small.loads[CNN_DM, "all", HAT, 1.0]
    assert 1 < chunked[0].chunk < chunked[1].chunk


def test_tables_are_whole(small):
    tables = hat_tables(small)
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
    titles = [table.title for table in tables]
    assert titles[-1] == "Calibrated, taken over and assumed constants"
    for named in (
        "Figure 1",
        "Figure 6",
        "Figure 7",
        "Figure 8",
        "Figure 9",
        "Figure 10",
        "Figure 12",
        "Table IV",
        "Table V",
    ):
        assert any(title.startswith(named) for title in titles), named
    spec = next(table for table in tables if table.title.startswith("Table V, SpecBench"))
    assert re.fullmatch(r"656  \d+ \([+-]\d+ %\)", spec.rows[0][1])
    assert len(claims(small)) == 18
    assert len(contradictions(small)) == 6


def test_the_page_has_all_plots_and_loads_nothing(small):
    text = hat_page(small)
    assert re.findall(r'class="plot" id="([^"]+)"', text) == ["ttft-all", "ttft-last", "tbt", "table5"]
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)
    assert "://" not in own
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    names = [trace["name"] for trace in data["plots"][0]["frames"]["0"]]
    assert "bound of the uplink" in names


def test_the_command_prints_the_tables_and_writes_its_figures(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("papers.hat.__main__.run_hat", lambda **_given: small)
    out, page = tmp_path / "hat.json", tmp_path / "hat.html"
    assert main(["--quick", "--jobs", "1", "--json", str(out), "--html", str(page)]) == 0
    assert "(input)" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert len(figures["ablation"]) == len(small.ablation)
    assert figures["assumed"][0]["source"].startswith("calibrated")
    assert "HAT" in page.read_text()


def test_numbers_out_of_range_are_refused(capsys):
    for wrong in ({"runs": 0}, {"share": 0}, {"share": 1.5}):
        with pytest.raises(ConfigurationError, match="share above 0 and at most 1"):
            run_hat(**wrong)
