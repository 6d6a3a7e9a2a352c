"""Fleets with a split model, beside the closed forms of `disco.speculate.chunks` and Lindley's recursion."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.fleet.pass_costs import PassCosts, step_costs
from papers.hat.split_figures import split_figures
from papers.hat.split_fleet import (
    ARMS,
    DevicePool,
    DeviceTimes,
    SplitArm,
    SplitFleet,
    SplitModel,
    arm_of,
)
from papers.hat.split_requests import Drafts, accept_length, lengths, placed, with_drafts
from papers.hat.split_simulator import cloud_curve, simulate_split, split_path

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest
from disco.speculate import equation3, prompt_s


class Made(SplitModel):
    """A model whose passes take 20 ms and 0.1 ms for each row, whatever is cached."""

    @property
    def costs(self) -> PassCosts:
        return COSTS


COSTS = step_costs([(1, 0.0201), (4001, 0.4201)])
MODEL = Made("made", "", 10, 10, 8192)
TIMES = DeviceTimes(0.004, 2e-5, 0.002, step_s=0.006, tree_s=0.003)
ALONE = SplitFleet(
    ARMS["u_shape"], MODEL, TIMES, (DevicePool("d", 1),), (5e6, 5e6), (1e7, 1e7), 1e-3, rtt_s=0.01
)
BUSY = replace(ALONE, pools=(DevicePool("x", 4, 1, 3), DevicePool("y", 2)), up=(5e6, 1e7), rate=8.0, groups=3)
NOTHING_RIGHT = bytes(1)


def one_answer(fleet: SplitFleet, request: DraftedRequest):
    (answer,) = simulate_split(fleet, [request]).answers
    return answer


def requests(count: int, output: int = 20, drafts: Drafts | float = Drafts(0.57)) -> list[DraftedRequest]:  # noqa: B008
    return with_drafts(lengths(200, 150, count, Random(1)), output, drafts, Random(2))


@settings(max_examples=40)
@given(
    st.integers(1, 400),
    st.sampled_from(["none", "equation3", "makespan"]),
    st.sampled_from(["last", "all"]),
    st.integers(1, 4),
    st.floats(1e6, 2e8),
)
def test_ttft_of_one_device_alone_is_that_of_the_recursion(prompt, chunks, reply, pipeline, up_bps):
    """Equal where no chunk waits in the cloud; where some do, a batch takes them together, which is not slower.

    Unless all rows come down: those of a batch do so together.
    """
    fleet = replace(
        ALONE, arm=SplitArm("a", chunks=chunks, reply=reply), pipeline=pipeline, up=(up_bps, up_bps)
    )
    answer = one_answer(fleet, DraftedRequest(prompt, 1, NOTHING_RIGHT))
    path = split_path(fleet, placed(fleet, [answer.request])[0], cloud_curve(MODEL))
    assert answer.path == replace(path, device_s=answer.path.device_s)
    if chunks == "equation3":
        assert answer.chunk == equation3(path, prompt)
    wanted_s = prompt_s(path, prompt, answer.chunk, reply=reply) + TIMES.head_s
    stage_s = path.cloud_s.s(answer.chunk) / pipeline
    comes_s = max(answer.chunk * 8192 / up_bps, path.device_s.s(answer.chunk))
    if stage_s <= comes_s or answer.chunk >= prompt:
        assert answer.ttft_s == pytest.approx(wanted_s, rel=1e-9)
    else:
        assert answer.ttft_s <= wanted_s * (1 + 1e-9 if reply == "last" else 1.1)


def test_a_token_without_drafts_takes_its_way_there_and_back():
    answer = one_answer(ALONE, DraftedRequest(50, 30, NOTHING_RIGHT))
    states_s = 8192 / 5e6 + 8192 / 1e7
    assert answer.tbt_s == pytest.approx(0.004 + 2e-5 + states_s + 0.01 + 0.0201 + 0.002)
    assert len(answer.token_s) == 30


def test_a_round_with_drafts_adds_its_steps_and_rows():
    """Two tokens are drafted, the second one unsure; one is right."""
    arm = replace(ARMS["hat"], parallel=False)
    request = DraftedRequest(50, 41, bytes([1, 1, 0]), confidence=(0.5, 0.9, 0.3))
    answer = one_answer(replace(ALONE, arm=arm), request)
    states_s = 3 * (8192 / 5e6 + 8192 / 1e7)
    round_s = 2 * 0.006 + 0.004 + 2e-5 + states_s + 0.01 + 0.0203 + 0.002
    figures = split_figures(simulate_split(replace(ALONE, arm=arm), [request]))
    # From token 1 on: drafts at 1 and 2 of which the first is right, then one at 0 of a draft of one (0.5).
    assert answer.token_s[1] - answer.token_s[0] == pytest.approx(round_s)
    assert answer.token_s[2] == answer.token_s[1]
    assert 1 < figures.accept_length <= 2


def test_a_branch_that_was_guessed_saves_its_steps():
    """Where every branch is right, nothing is drafted after a verdict; where none is, all of it."""
    request = DraftedRequest(50, 60, bytes([0]), confidence=(0.5,))
    arm = ARMS["hat"]
    never, always = (one_answer(replace(ALONE, arm=arm, branch_hits=hits), request) for hits in (0.0, 1.0))
    assert (never.hits, always.hits) == (0, 59)
    assert never.tbt_s - always.tbt_s == pytest.approx(0.006 * 58 / 59)
    # All right: the branch of the last token counts if it begins with the model's own.
    right = DraftedRequest(50, 60, bytes([1]), confidence=(0.5,))
    assert one_answer(replace(ALONE, arm=arm, branch_hits=0.0), right).hits > 25


def test_a_tree_sends_all_of_its_rows():
    answer = one_answer(replace(ALONE, arm=ARMS["u_medusa"]), DraftedRequest(50, 51, bytes([1])))
    states_s = 8 * (8192 / 5e6 + 8192 / 1e7)
    assert answer.token_s[1] - answer.token_s[0] == pytest.approx(
        0.003 + 0.004 + 16e-5 + states_s + 0.01 + 0.0208 + 0.002
    )
    assert answer.rounds == 10  # of 5 tokens: four levels and the model's own


def test_prompts_that_fill_a_pass_each_wait_as_lindley_says():
    """An M/D/1 queue: one GPU, one prompt in a pass, links without a limit."""
    service_s = COSTS.layers.at(100)
    fleet = replace(
        ALONE,
        arm=SplitArm("queue", server_rows=100, reply="last"),
        times=DeviceTimes(0, 0, 0),
        up=(1e15, 1e15),
        down=(1e15, 1e15),
        rtt_s=0.0,
        rate=0.8 / service_s,
    )
    answers = simulate_split(fleet, [DraftedRequest(100, 1, NOTHING_RIGHT)] * 1500).answers
    waits_s = [answer.ttft_s - service_s for answer in answers]
    wait_s = 0.0
    for (before, _), (answer, measured_s) in pairwise(zip(answers, waits_s, strict=True)):
        wait_s = max(0.0, wait_s + service_s - (answer.arrived_s - before.arrived_s))
        assert measured_s == pytest.approx(wait_s, abs=1e-6)
    assert fmean(waits_s) == pytest.approx(0.8 / (2 * 0.2) * service_s, rel=0.35)  # Pollaczek and Khinchine


@pytest.mark.parametrize("name", list(ARMS))
def test_every_arm_gives_whole_answers_and_the_same_bits_again(name):
    fleet = replace(BUSY, arm=arm_of(name), pipeline=2)
    runs = [simulate_split(fleet, requests(30)) for _ in range(2)]
    assert runs[0].passes == runs[1].passes
    for answer, again in zip(*(run.answers for run in runs), strict=True):
        assert answer.token_s == again.token_s
        assert len(answer.token_s) == 20
        assert answer.token_s == sorted(answer.token_s)
        assert answer.ttft_s > answer.request.prompt_tokens * 8192 / answer.up_bps  # the bound of the uplink
    other = simulate_split(replace(fleet, seed=2), requests(30))
    assert other.answers[0].token_s != runs[0].answers[0].token_s


@pytest.mark.parametrize("name", list(ARMS))
def test_a_reply_with_the_last_row_is_faster(name):
    asked = requests(30)
    ttft = [
        split_figures(simulate_split(replace(BUSY, arm=replace(arm_of(name), reply=reply)), asked)).ttft_ms
        for reply in ("last", "all")
    ]
    assert ttft[0] < ttft[1]


def test_a_server_that_cuts_prompts_keeps_its_passes_short():
    fleet = replace(BUSY, arm=ARMS["u_sarathi"], rate=40.0)
    whole, cut = (
        simulate_split(replace(fleet, arm=ARMS[name]), requests(30)) for name in ("u_shape", "u_sarathi")
    )
    assert max(rows for *_, rows in cut.passes) <= 128 < max(rows for *_, rows in whole.passes)
    for run in (whole, cut):
        assert sum(rows for *_, rows in run.passes) == sum(
            one.request.prompt_tokens + len(one.token_s) - 1 for one in run.answers
        )


def test_requests_of_a_device_wait_for_each_other_where_it_does_one_at_a_time():
    fleet = replace(BUSY, one_at_a_time=True, rate=100.0)
    answers = simulate_split(fleet, requests(24)).answers
    for device in range(6):
        own = [one for one in answers if one.device == device]
        for before, after in pairwise(own):
            assert after.began_s == max(after.arrived_s, before.token_s[-1])
    assert all(
        one.began_s == one.arrived_s
        for one in simulate_split(replace(fleet, one_at_a_time=False), requests(24)).answers
    )


def test_modes_links_and_lengths_are_drawn_as_described():
    coming = placed(BUSY, requests(120))
    for one in coming:
        low = 5e6 + 5e6 / 3 * (2 - one.device % 3)
        assert low <= one.up_bps <= low + 5e6 / 3 + 1
    first = [one.slowness for one in coming if one.device == 0]
    assert [len(set(first[at : at + 5])) for at in range(0, 20, 5)] == [1] * 4
    assert len(set(first)) == 4
    assert all(1 <= value <= 3 for value in first)
    found = lengths(1036.6, 511.8, 400, Random(3))
    assert fmean(found) == pytest.approx(1036.6, rel=0.001)
    assert sorted(found)[360] == pytest.approx(1772, rel=0.04)  # the printed P90


def test_accept_length_is_that_of_rounds():
    drafts = Drafts(0.57)
    arm = replace(ARMS["hat"], parallel=False)
    found = split_figures(simulate_split(replace(BUSY, arm=arm), requests(60, output=120, drafts=drafts)))
    assert found.accept_length == pytest.approx(accept_length(drafts, 0.6, 12), rel=0.03)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigurationError, match="no arm is called 'hatt'"):
        arm_of("hatt")
    for wrong, said in (
        ({"pipeline": 0}, "at least 1"),
        ({"eta": 2.0}, "from 0 to 1"),
        ({"up": (2.0, 1.0)}, "lowest, highest"),
        ({"pools": (DevicePool("z", 1, 2, 1),)}, "z: least"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            replace(ALONE, **wrong)
    with pytest.raises(ConfigurationError, match="two tokens"):
        split_figures(simulate_split(ALONE, [DraftedRequest(5, 1, NOTHING_RIGHT)]))
