"""The RecServe paper's evaluation: what its printed rows say, and a small run of all tables, as JSON and as a page."""

import json
import re
from dataclasses import replace
from html import escape

import pytest
from made_ladders import label_trace
from papers.ladder.answer_trace import load_answer_trace
from papers.ladder.ladder_evaluation import EXACT, FIXED, RANDOM, SHARE_ARMS
from papers.recserve import (
    Material,
    cut_for_tuning,
    recserve_page,
    recserve_tables,
    run_recserve,
)
from papers.recserve.__main__ import main
from papers.recserve.ladder_material import DATA
from papers.recserve.printed_readings import blind_quality, claims, derived, readings
from papers.recserve.printed_tables import CLASSES, ROWS, SEQUENCES

from disco.errors import ConfigurationError

SHARES = (0.1, 0.3, 0.5)


@pytest.fixture(scope="module")
def material() -> Material:
    return cut_for_tuning(replace(label_trace(300), name="made <up>"), "SST-2")


@pytest.fixture(scope="module")
def small(material):
    return run_recserve(runs=2, shares=SHARES, materials=[material])


def test_all_rows_are_there_and_their_sums_fit():
    assert len(ROWS) == 9 * len(CLASSES + SEQUENCES)
    every = derived()
    assert all(one.sums_fit for one in every)
    # One row by hand: SST-2, RecServe .3.
    (one,) = (d for d in every if (d.row.dataset, d.row.label) == ("SST-2", "RecServe .3"))
    assert one.p2 == pytest.approx(10.80 / 29.76)
    assert one.p1 == pytest.approx(29.76 / 89.80)
    assert one.ratio == pytest.approx(81.12 / 179.60)
    assert one.theory == pytest.approx(0.39)
    # Chained shares give the ratio again, where every text has one size on both links.
    assert one.p1 * (1 + one.p2) == pytest.approx(one.ratio, abs=0.001)


def test_readings_and_claims_are_what_the_rows_say():
    fits = [(one.fits, one.rows) for one in readings()]
    assert fits == [(72, 72), (14, 16), (1, 16), (9, 10), (6, 6), (0, 32), (0, 6), (0, 2)]
    assert [(one.held, one.cases) for one in claims()] == [
        *((5, 8), (5, 5), (7, 8), (8, 8), (5, 8), (16, 16), (14, 16), (13, 16), (1, 3), (7, 8)),
    ]
    not_both = claims()[2]
    assert not_both.but == ("Rotten Tomatoes",)  # 90.62 < 90.71
    # Halfway between EndServe and ColServe .2 of IMDB.
    assert blind_quality("IMDB", 14.65 / 60.82 / 2) == pytest.approx((90.92 + 91.32) / 2)


def test_a_run_has_every_arm_and_both_scores(small, material):
    (ladder,) = small.ladders
    assert ladder.rows == len(material.trace) == 240
    assert len(material.tuning) == 60
    for raw in (False, True):
        labels = [arm.arm for arm in (ladder.raw if raw else ladder.arms)]
        assert labels == ["EndServe", "EdgeServe", "CloudServe", *SHARE_ARMS * len(SHARES)]
    for arm in ladder.arms:
        assert arm.quality.low < arm.quality.mean < arm.quality.high
        assert arm.nodes[0] + (arm.nodes[2] if arm.nodes[1] else 0) == pytest.approx(
            arm.nodes[1] or arm.nodes[0]
        )
    assert ladder.arm(EXACT, 0.3).lead.mean > 0
    assert ladder.arm(RANDOM, 0.3).lead.mean == 0
    assert {one.capacity for one in ladder.histories} == {10, 30, 100, 300, 1_000, 3_000, 10_000}
    assert ladder.compute(ladder.arm("CloudServe"), "flops") == 1.0
    areas = [one.auroc for one in ladder.lengths]
    assert 0.5 < areas[0].mean < areas[1].mean < areas[2].mean < 1.0
    assert all(area.low < area.mean < area.high for area in areas)
    mine, blind, expected = ladder.arm(EXACT, 0.3), ladder.arm(RANDOM, 0.5), ladder.expected
    assert expected.of_bytes == pytest.approx(mine.ratio / blind.ratio)
    assert expected.lead.mean == pytest.approx(mine.quality.mean - blind.quality.mean)
    assert expected.met == (expected.lead.mean > 0 and expected.of_bytes <= 0.55)
    with pytest.raises(KeyError):
        ladder.arm(FIXED, 0.2)


def test_a_run_is_the_same_again_and_for_shares_in_any_order(small, material):
    again = run_recserve(runs=2, shares=SHARES[::-1], materials=[material]).to_dict()
    assert again | {"took_s": 0} == small.to_dict() | {"took_s": 0}


def test_tables_name_what_they_compare_with(small):
    tables = recserve_tables(small)
    titles = [table.title for table in tables]
    assert "Table II on made <up>, beside the printed SST-2: accuracy %, bytes in K" in titles
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
    (arms,) = (table for table in tables if table.title.startswith("Table II on"))
    printed = {row[0]: row[-2:] for row in arms.rows if row[-2] != "–"}
    assert printed["RecServe exact .3"] == ("95.30", "0.452")
    assert printed["CasServe .1"] == ("93.35", "0.151")  # its lower setting
    assert any("Expected" in note for note in arms.notes)
    assert titles[-1] == "Not reproduced"


def test_the_page_has_both_plots_and_loads_nothing(small):
    text = recserve_page(small)
    assert re.findall(r'class="plot" id="([^"]+)"', text) == ["accuracy-bytes", "accuracy-bytes-printed"]
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)
    assert "://" not in own
    assert "made <up>" not in own
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    (frame,) = data["plots"][0]["frames"].values()
    assert {trace["legendgroup"] for trace in frame} == {*SHARE_ARMS, "oracle", "one tier"}
    for plot in data["plots"]:
        for trace in plot["frames"]["0"]:
            if "%{text}" in trace.get("hovertemplate", ""):
                assert len(trace["text"]) == len(trace["x"])
    for note in (note for table in recserve_tables(small) for note in table.notes):
        assert escape(note) in own


def test_the_command_writes_what_it_printed(small, material, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("papers.recserve.recserve_run.shipped_materials", lambda: [material])
    answers = load_answer_trace(DATA / "xquad-en.csv.gz")
    few = replace(answers, rows=answers.rows[:60])
    monkeypatch.setattr("papers.recserve.sequences.load_answer_trace", lambda _path: few)
    out = tmp_path / "out.json"
    assert main(["--quick", "--jobs", "1", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["setup"] == {"runs": 2, "shares": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
    (mine,) = small.to_dict()["ladders"]
    assert document["ladders"][0]["arms"][:3] == json.loads(json.dumps(mine["arms"][:3]))
    printed = capsys.readouterr().out
    assert "Which rows fit which reading" in printed


def test_numbers_out_of_range_are_refused(material):
    with pytest.raises(ConfigurationError, match="runs must be at least 1"):
        run_recserve(runs=0, materials=[material])
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        run_recserve(shares=(1.0,), materials=[material])
    trace = material.trace
    two = replace(trace, tiers=trace.tiers[:2], scores=trace.scores[:, :2])
    with pytest.raises(ConfigurationError, match="3 tiers"):
        run_recserve(materials=[replace(material, trace=two)])
