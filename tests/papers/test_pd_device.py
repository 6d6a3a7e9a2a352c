"""The P/D-Device paper's evaluation: its formulas, the drawn requests, the queues, and a small run of all tables."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.pd_device import pd_page, pd_tables, run_pd
from papers.pd_device.__main__ import main
from papers.pd_device.assist_play import CONSISTENT, LEXICAL, OURS, PARALLEL, PRINTED, SEAM_ARMS
from papers.pd_device.assumptions import CLOUD, NPU, SLOWEST_S, devices
from papers.pd_device.capacity import SLOTS, _one_pool, _queue, _two_pools, greatest_rate
from papers.pd_device.mask_bytes import mask_rows
from papers.pd_device.measured_tables import measured_tables
from papers.pd_device.paper_forms import PaperCase, speedup
from papers.pd_device.request_mix import Requests, _of, shipped_mix, summarise
from papers.pd_device.session_runs import SESSION_ARMS, SESSION_SEAM
from papers.pd_device.ttft_runs import ASSIST, DEVICE, SERVER, run_situation, servers
from papers.refinement import RefineRow, RefineTable, save_refine_table

from disco.dispatch.assist_solver import NoShare
from disco.errors import ConfigurationError

EIGHT_K = PaperCase(8_192, 0.25, CLOUD, NPU)


@pytest.fixture(scope="module")
def small():
    return run_pd(requests=100, arrivals=400, sessions=10)


def test_the_papers_formulas_by_hand():
    # 0.05 s of round trip, 0.15 s of prefill and 0.15 s of refinement; 2,048 tokens at 800 a second.
    assert EIGHT_K.cloud_token_s == pytest.approx(0.35)
    assert EIGHT_K.prefill_s == pytest.approx(2.56)
    assert EIGHT_K.device_token_s == pytest.approx(2.92)
    assert EIGHT_K.smooth_s(35) == pytest.approx(0.035 + 2.21 / 34)
    assert EIGHT_K.consistent_smooth_s(41) == pytest.approx(0.035 + 2.57 / 40)
    assert EIGHT_K.share_bounds(SLOWEST_S) == pytest.approx((35, 52.4))
    assert (EIGHT_K.least_tokens(SLOWEST_S), EIGHT_K.consistent_least_tokens(SLOWEST_S)) == (35, 41)
    phone = PaperCase(500, 0.25, CLOUD, devices()[-1])  # TPOT_d + TPOT_c is above tau
    assert phone.least_tokens(SLOWEST_S) is phone.consistent_least_tokens(SLOWEST_S) is None
    assert speedup(4.6, 1.0, 10, 200) == pytest.approx(203.6 / 13.6)


@settings(max_examples=50)
@given(st.integers(200, 40_000), st.floats(0.05, 1.0), st.integers(2, 300))
def test_the_display_of_eq_4_stands_still_for_the_time_before_the_device_began(prompt, kept, tokens):
    case = PaperCase(prompt, kept, CLOUD, NPU)
    began_s = case.cloud_token_s + CLOUD.decompress_s
    assert case.seam_stall_s(tokens) == pytest.approx(began_s)
    # Eq. 1: with the device reading from the request on, both would be at token L at the same time.
    device_s = case.prefill_s + NPU.tpot_s * (tokens - 1)
    assert device_s == pytest.approx(case.cloud_token_s + case.smooth_s(tokens) * (tokens - 1))
    if (
        case.smooth_s(tokens) >= CLOUD.tpot_s
    ):  # else the display waits for the cloud's tokens, and the seam comes later
        assert SEAM_ARMS[PRINTED](case, tokens).stall_s == pytest.approx(began_s)


def test_neither_the_consistent_form_nor_ours_stalls(small):
    assert [row.prompt_tokens for row in small.seams] == [500, 1_000, 2_000, 4_096, 8_192, 16_384, 32_768]
    for row in small.seams:
        assert row.stall_s[CONSISTENT] == pytest.approx(0, abs=1e-9)
        assert row.stall_s[OURS] == pytest.approx(0, abs=1e-9)
        assert (
            row.stall_s[SESSION_SEAM] < 0.01
        )  # its pace changes a little, so the pace before the seam is a mean
        assert (
            row.longest_gap_s[SESSION_SEAM] <= 2 * SLOWEST_S + 1e-9
        )  # a word of two tokens is shown at once
        assert max(row.longest_gap_s[CONSISTENT], row.longest_gap_s[OURS]) <= SLOWEST_S + 1e-9


def test_the_shares_of_the_tables(small):
    cell = {(r.device, r.kept, r.prompt_tokens): r for r in small.lengths}
    npu = cell[NPU.name, 0.25, 8_192]
    # 10.24 s less 0.2 s to hide, at 0.09875 s a token, and 2 tokens lost.
    assert (npu.tokens[PARALLEL], npu.tokens[LEXICAL]) == (104, 26)
    assert cell[devices()[-1].name, 0.25, 500].tokens[PARALLEL] == 236
    assert cell[devices()[-1].name, 0.25, 32_768].tokens[LEXICAL] is NoShare.TOO_MANY


def test_drawn_requests_keep_the_arrivals_and_the_means():
    mix = shipped_mix()
    drawn = mix.draw(3)
    assert len(drawn) == 19_366
    assert (np.bincount(drawn.arrival_s.astype(int)) == mix.per_second).all()
    assert drawn.prompt_tokens.mean() == pytest.approx(1154.7, rel=0.03)
    assert drawn.answer_tokens.mean() == pytest.approx(211.1, rel=0.03)
    assert len(mix.draw(3, 50)) == 50


def test_a_table_of_a_trace_draws_its_own_lengths():
    n = 700
    prompts = np.repeat([10, 2_000], n // 2)
    made = summarise(
        np.linspace(0, 620, n), prompts, np.where(prompts == 10, 5, 90), source="made up", licence="none"
    )
    drawn = _of(json.loads(json.dumps(made))).draw(0)
    assert len(drawn) == n
    # A group that the border between both kinds divides has a mean of its own.
    pairs = list(zip(drawn.prompt_tokens.tolist(), drawn.answer_tokens.tolist(), strict=True))
    assert sum(pair in ((10, 5), (2_000, 90)) for pair in pairs) > 0.9 * n
    assert drawn.prompt_tokens.mean() == pytest.approx(1_005, rel=0.02)
    first = drawn.prompt_tokens[drawn.arrival_s < 300]
    assert (first == 10).mean() > 0.9  # a span has the lengths of its own time


def test_queues_serve_in_order_of_arrival():
    arrival_s, work_s = np.array([0.0, 0.0, 1.0, 10.0]), np.array([4.0, 2.0, 1.0, 1.0])
    assert _queue(arrival_s, work_s, 1).tolist() == [0, 4, 6, 10]
    assert _queue(arrival_s, work_s, 2).tolist() == [0, 0, 2, 10]
    # Two pools: the second request's next token waits for the one decode slot, longer than for its first token.
    served = _two_pools(np.array([1.0, 1.0]), np.full(2, 100.0))(np.array([0.0, 0.0]))
    assert served == pytest.approx([1.05, 2.05])


def test_the_greatest_rate_is_that_of_the_slots():
    n = 20_000
    even = Requests(np.arange(1, n + 1, dtype=float), np.full(n, 100), np.full(n, 100))
    # Even arrivals at a rate just above the slots' build up a queue; just below, nobody waits.
    rate = greatest_rate(even, _one_pool(np.zeros(n), np.full(n, 2.0)))
    assert rate == pytest.approx(SLOTS / 2.0, rel=0.01)
    assert greatest_rate(even, _one_pool(np.full(n, 2.0), np.zeros(n))) == 0.0  # the first token takes 2 s


def test_more_tokens_of_the_server_leave_less_room(small):
    for name in ("formula", "fixed_rps", "real_rps", "pools_rps", "refining_rps"):
        figures = [getattr(row, name) for row in small.capacity]
        assert figures == sorted(figures, reverse=True)
    first = small.capacity[0]
    assert first.refining_rps < first.pools_rps < first.real_rps


def test_masks_of_whole_sentences_are_small():
    for row in mask_rows():
        assert row.raw == row.prompt_tokens / 8
        assert row.sentence_bits < row.by_sentence < row.pooled < row.single < row.raw + 30
    at_8k = {row.kept: row.by_sentence for row in mask_rows() if row.prompt_tokens == 8_192}
    assert max(at_8k, key=at_8k.__getitem__) == 0.5
    assert 120 < at_8k[0.25] < 300


def test_only_a_server_faster_than_planned_makes_a_device_late(small):
    for one in (*small.situations, *small.quantiles):
        assert one.late_though_slow == 0
        assert one.ttft_s[ASSIST][20] <= min(one.ttft_s[SERVER][20], one.ttft_s[DEVICE][20] + 1e-9)
        assert 0 < one.server_tokens <= 1
    lazy = [one.late for one in small.quantiles if one.server == "deepseek-v3-2025"]
    assert lazy[0] == 0 < lazy[-1]


def test_other_arms_take_the_place_of_the_closed_forms():
    requests = shipped_mix().draw(0, 100)

    def sessions(situation, chosen):
        assert len(chosen) == len(situation.requests) == 100
        return dict.fromkeys((SERVER, DEVICE, ASSIST, "paper's TTFT_d"), np.full(100, 7.0))

    one = run_situation(servers()[1], NPU, requests, arms=sessions)
    assert {*one.mean_s.values()} == {7.0}


def test_tables_are_whole_and_name_what_is_missing(small):
    tables = pd_tables(small)
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
    titles = [table.title for table in tables]
    assert titles[-2:] == ["Assumed constants", "Not reproduced"]
    assert any("infeasible: > 1,000" in row for table in tables for row in table.rows)


def test_measured_tables_are_read_where_they_are(tmp_path):
    assert [table.rows[0][0] for table in measured_tables(tmp_path, tmp_path)] == ["not measured yet"] * 2
    row = RefineRow("lexical", 0.4, 0, 33, *[2.5] * 20)
    made = replace(row, over_random=math.nan)
    save_refine_table(RefineTable("made up", "here", "none", "no model", (made,)), tmp_path / "made.csv")
    table, _ = measured_tables(tmp_path, tmp_path)
    assert table.rows[0][:5] == ("lexical", "0.4", "0", "33", "2.50 [2.50, 2.50]")
    assert table.rows[0][6] == "–"


def test_the_page_has_all_plots_and_loads_nothing(small):
    text = pd_page(small)
    plots = ["seam", "pace", "least-share", "ttft", "capacity", "masks"]
    assert re.findall(r'class="plot" id="([^"]+)"', text) == plots
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)
    assert "://" not in own
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["plots"][3]["frames"]) == 12  # each server with each device
    shown = {trace["legendgroup"] for trace in data["plots"][0]["frames"][""]}
    assert shown == {PRINTED, CONSISTENT, OURS, SESSION_SEAM}


def test_the_command_writes_its_figures(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("papers.pd_device.__main__.QUICK", {"requests": 100, "arrivals": 400, "sessions": 10})
    out = tmp_path / "pd.json"
    assert main(["--quick", "--jobs", "1", "--json", str(out)]) == 0
    assert "Assumed constants" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert len(figures["situations"]) == 36
    assert figures["assumed"][0]["what"] == "cloud: prefill k_c"
    # The same numbers give the same figures again.
    assert figures | {"took_s": 0} == json.loads(json.dumps(small.to_dict())) | {"took_s": 0}


def test_too_few_requests_are_refused():
    with pytest.raises(ConfigurationError, match="requests and arrivals must be at least 100"):
        run_pd(requests=99)


def test_the_session_does_what_the_closed_forms_say_and_other_arms_pay_the_server_more(small):
    assert len(small.sessions) == 4 * 2 * 6
    by_arm = {(one.server, one.device, one.arm): one for one in small.sessions}
    for one in small.session_assists:
        alone, device, race, unread, moved, assist = (
            by_arm[one.server, one.device, arm] for arm in SESSION_ARMS
        )
        assert (alone.server_tokens, alone.money, device.server_tokens) == (1, pytest.approx(1), 0)
        # The session's first tokens are those of the closed forms.
        assert (alone.mean_s, device.mean_s) == pytest.approx((one.mean_s[SERVER], one.mean_s[DEVICE]))
        assert race.mean_s <= min(alone.mean_s, device.mean_s) + 1e-9
        assert moved.server_tokens <= unread.server_tokens <= race.server_tokens <= 1
        assert moved.late_answers == 0
        # L is for one batch more that is unread, and the device may be early.
        assert assist.mean_s == pytest.approx(one.mean_s[ASSIST])
        assert assist.server_tokens == pytest.approx(one.server_tokens, abs=0.01)
        assert abs(assist.moved - one.handed_over) * one.requests <= 1.5
        assert assist.late_answers == one.late == 0
