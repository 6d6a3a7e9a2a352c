"""What holds in every fleet, whatever its settings; and what single settings do."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.fleet.fleet_figures import answer_record, fleet_figures
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_simulator import Finished, Simulation, requests_of, simulate_fleet
from papers.fleet.fleet_toml import scenario_from
from papers.fleet.fleet_topology import expand

from disco.replay import DraftedRequest, write_drafts

TARGET = {"steps_ms": [[1, 10], [8, 12], [64, 40]], "draft_steps_ms": [[1, 2], [8, 3]]}


def fleet(**changed: Any) -> FleetScenario:
    content: dict[str, Any] = {
        "name": "made",
        "targets": [{"name": "t", "count": 2, **TARGET}],
        "drafters": [{"name": "d", "count": 5, "steps_ms": [[1, 3]]}],
        "links": [{"rtt_ms": 12}],
        "requests": {
            "made_up": {
                "count": 7,
                "prompt_tokens": {"mean": 30, "sd": 20},
                "output_tokens": {"mean": 25, "sd": 15},
                "acceptance": 0.7,
                "correlation": 0.3,
                "spread": 0.1,
            }
        },
        "arrivals": {"kind": "closed_loop", "requests": 20},
    }
    return scenario_from(content | changed)


MODES = st.sampled_from(
    [("distributed", 1), ("distributed", 2), ("distributed", 3), ("fused", 1), ("alone", 1)]
)
WINDOWS = st.one_of(
    st.fixed_dictionaries({"name": st.just("static"), "n": st.integers(0, 9)}),
    st.sampled_from([{"name": "dynamic"}, {"name": "optimal"}, {"name": "optimal", "stabilised": False}]),
)
LINKS = st.fixed_dictionaries(
    {"rtt_ms": st.sampled_from([0, 1, 30]), "rtt_is": st.sampled_from(["round", "one_way"])},
    optional={"jitter_ms": st.sampled_from([0, 5]), "up_mbps": st.just(0.5), "down_mbps": st.just(0.5)},
)
BATCHING = st.fixed_dictionaries(
    {"max_batch": st.integers(1, 6)},
    optional={
        "order": st.sampled_from(["fifo", "length_aware"]),
        "max_rows": st.sampled_from([0, 8, 40]),
        "window_ms": st.sampled_from([0, 4]),
        "padded": st.booleans(),
    },
)
SCHEDULING = st.sampled_from([{}, {"continuous": False}, {"chunk_tokens": 16}])
ARRIVALS = st.sampled_from(
    [
        {"kind": "closed_loop", "requests": 15, "think_ms": 5, "ramp_ms": 100},
        {"kind": "poisson", "rate": 20, "requests": 15},
    ]
)
ROUTING = st.sampled_from(["random", "round_robin", "shortest_queue", "power_of_two"])


@settings(max_examples=50, deadline=None)
@given(MODES, WINDOWS, LINKS, BATCHING, SCHEDULING, ARRIVALS, ROUTING, st.integers(0, 3), st.integers(0, 99))
def test_every_request_gets_all_of_its_tokens_in_order_of_time(
    mode, window, link, batching, scheduling, arrivals, routing, slots, seed
):
    scenario = fleet(
        seed=seed,
        mode=mode[0],
        parallel=mode[1],
        window=window,
        links=[link],
        batching=batching | scheduling,
        arrivals=arrivals,
        routing={"policy": routing},
        targets=[{"name": "t", "count": 2, "slots": slots, **TARGET}],
    )
    simulation = Simulation(scenario, expand(scenario), requests_of(scenario))
    times: list[float] = []
    plan = simulation.schedule

    def watched(at_s: float, action: Any, subject: Any) -> None:
        assert at_s >= simulation.now
        plan(at_s, lambda now, what: (times.append(now), action(now, what)), subject)

    simulation.schedule = watched  # type: ignore[method-assign]
    for target in simulation.targets:
        target._schedule = watched
    run = simulation.run()
    assert times == sorted(times)
    assert len(run.answers) == 15
    assert run.unfinished == 0
    assert sorted(one.number for one in run.answers) == list(range(15))
    for one in run.answers:
        assert one.length == one.output == one.request.output_tokens
        assert one.arrived_s <= one.began_s <= one.first_s <= one.done_s
        assert 0 <= one.accepted <= one.drafted == sum(one.windows)
        assert len(one.windows) <= one.output - 1
        assert one.wait_prompt_s >= 0 <= one.wait_rounds_s
        if mode == ("distributed", 1):
            # Each round writes what was accepted and one token more; the last one may end the answer.
            assert one.accepted + len(one.windows) - (one.output - 1) in (0, 1)
    for target in run.targets:
        assert target.largest <= scenario.batching.max_batch
        assert target.unfinished == 0
        assert target.busy_s <= run.ended_s + 1e-9
    figures = fleet_figures(scenario, run)
    assert json.loads(json.dumps(figures.to_json()))["requests"] == 15
    assert figures.utilisation <= 1 + 1e-9


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones(parallel):
    def records(seed: int) -> list[str]:
        scenario = fleet(seed=seed, parallel=parallel, links=[{"rtt_ms": 12, "jitter_ms": 3}])
        return [json.dumps(answer_record(one)) for one in simulate_fleet(scenario).answers]

    assert records(1) == records(1) != records(2)


def one_request(accepts: bytes, **changed: Any) -> Finished:
    """One drafter (3 ms a token), one target (10 ms, whatever the rows), 6 ms one way; prompt of 10 tokens."""
    scenario = fleet(
        targets=[{"name": "t", "count": 1, "steps_ms": [[1, 10]]}],
        drafters=[{"name": "d", "count": 1, "steps_ms": [[1, 3]]}],
        arrivals={"kind": "closed_loop", "requests": 1},
        **changed,
    )
    return simulate_fleet(scenario, [DraftedRequest(10, len(accepts), accepts)])


def test_a_round_takes_what_its_parts_take():
    """Token 0 comes with the prompt; the window of 3 has 2 right; the next has 1 right and reaches the end."""
    run = one_request(bytes([1, 1, 1, 0, 1, 0]), window={"name": "static", "n": 3})
    (answer,) = run.answers
    assert answer.first_s == pytest.approx(0.006 + 0.010 + 0.006)
    assert answer.done_s == pytest.approx(answer.first_s + 2 * (3 * 0.003 + 0.006 + 0.010 + 0.006))
    assert (answer.windows, answer.drafted, answer.accepted) == ([3, 3], 6, 3)
    assert run.targets[0].passes == 3


def test_parallel_drafting_hides_the_network_and_breaks_off_at_a_wrong_token():
    """All right: after the first window (9 ms) the drafter goes on, so that windows come every 10 ms, not every 31."""
    right = bytes([1] * 40)
    in_turn, at_once = (
        one_request(right, window={"name": "static", "n": 3}, parallel=parallel).answers[0]
        for parallel in (1, 4)
    )
    assert in_turn.done_s - in_turn.first_s == pytest.approx(10 * 0.031)
    assert at_once.done_s - at_once.first_s == pytest.approx(0.031 + 12 * 0.010)
    assert at_once.windows == [3] * 13
    # Wrong everywhere: nothing is gained, and nothing lost but drafts; each verdict ends a streak.
    wrong = bytes([0] * 6)
    in_turn, at_once = (
        one_request(wrong, window={"name": "static", "n": 3}, parallel=parallel).answers[0]
        for parallel in (1, 4)
    )
    assert at_once.done_s == pytest.approx(in_turn.done_s)
    assert at_once.accepted == 0 < at_once.wasted


def test_the_target_alone_streams_without_the_network_between_tokens():
    (answer,) = one_request(bytes([1] * 11), mode="alone").answers
    assert answer.done_s - answer.first_s == pytest.approx(10 * 0.010)
    (answer,) = one_request(bytes([1] * 11), window={"name": "static", "n": 0}).answers
    assert answer.windows == [0] * 10
    assert answer.done_s - answer.first_s == pytest.approx(10 * 0.010)


def test_a_fused_server_drafts_itself_for_all_of_a_batch():
    scenario = fleet(
        mode="fused",
        targets=[{"name": "t", "count": 1, "steps_ms": [[1, 10]], "draft_steps_ms": [[1, 2]]}],
        window={"name": "static", "n": 4},
        arrivals={"kind": "closed_loop", "requests": 2},
        drafters=[{"name": "d", "count": 2, "steps_ms": [[1, 3]]}],
    )
    answers = simulate_fleet(scenario, [DraftedRequest(10, 11, bytes([1] * 11))]).answers
    for answer in answers:
        assert answer.done_s - answer.first_s == pytest.approx(2 * (4 * 0.002 + 0.010))


def test_length_aware_batches_keep_similar_lengths_together():
    requests = [DraftedRequest(tokens, 1, b"\1") for tokens in (10, 500, 11, 490)]
    passes = {}
    for order in ("fifo", "length_aware"):
        scenario = fleet(
            batching={"order": order, "max_batch": 2, "padded": True},
            targets=[{"name": "t", "count": 1, "steps_ms": [[1, 1], [1000, 1000]]}],
            drafters=[{"name": "d", "count": 4, "steps_ms": [[1, 3]]}],
            arrivals={"kind": "closed_loop", "requests": 4},
        )
        run = simulate_fleet(scenario, requests)
        passes[order] = run.targets[0].rows
    assert passes == {"fifo": 2 * 500 + 2 * 490, "length_aware": 2 * 11 + 2 * 500}


def test_chunks_bound_a_pass_and_a_time_window_fills_a_batch():
    loop = {"kind": "closed_loop", "requests": 1}
    chunked = fleet(batching={"chunk_tokens": 16}, arrivals=loop)
    run = simulate_fleet(chunked, [DraftedRequest(50, 1, b"\1")])
    assert sum(target.passes for target in run.targets) == 4
    assert sum(target.rows for target in run.targets) == 50
    whole = fleet(batching={"max_batch": 4})
    waits = [
        fleet_figures(one, simulate_fleet(one))
        for one in (whole, fleet(batching={"max_batch": 4, "window_ms": 30}))
    ]
    assert waits[1].batch > waits[0].batch
    assert waits[1].wait_round_ms.mean > waits[0].wait_round_ms.mean


def test_a_slot_is_held_until_the_answer_ends():
    scenario = fleet(
        targets=[{"name": "t", "count": 1, "slots": 1, **TARGET}],
        arrivals={"kind": "closed_loop", "requests": 10},
    )
    answers = sorted(simulate_fleet(scenario).answers, key=lambda one: one.first_s)
    for one, other in pairwise(answers):
        assert other.first_s >= one.settled_s


def test_a_device_writes_one_answer_at_a_time_and_messages_wait_only_where_bandwidth_is_given():
    scenario = fleet(
        drafters=[{"name": "d", "count": 1, "steps_ms": [[1, 3]]}],
        arrivals={"kind": "poisson", "rate": 100, "requests": 10},
    )
    run = simulate_fleet(scenario)
    for one, other in pairwise(run.answers):
        assert other.began_s >= one.done_s
    assert fleet_figures(scenario, run).wait_network_ms.mean == 0
    narrow = fleet(links=[{"rtt_ms": 12, "up_mbps": 0.1}], parallel=4, window={"name": "static", "n": 1})
    assert fleet_figures(narrow, simulate_fleet(narrow)).wait_network_ms.mean > 0


def test_requests_stay_within_their_vocabulary():
    scenario = fleet(
        targets=[
            {"name": "a", "count": 2, "vocabulary": "a", **TARGET},
            {"name": "b", "count": 2, "vocabulary": "b", **TARGET},
        ],
        drafters=[
            {"name": "a", "count": 3, "vocabulary": "a", "steps_ms": [[1, 3]]},
            {"name": "b", "count": 3, "vocabulary": "b", "steps_ms": [[1, 3]]},
        ],
        routing={"policy": "random"},
    )
    topology = expand(scenario)
    for answer in simulate_fleet(scenario).answers:
        pool = topology.drafters[answer.drafter].pool
        assert topology.targets[answer.target].pool.vocabulary == pool.vocabulary


def test_a_window_that_stops_by_confidence_needs_it_and_uses_it(tmp_path):
    trace = tmp_path / "trace.jsonl"
    request = DraftedRequest(10, 9, bytes([1] * 9), confidence=(0.9, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9))
    write_drafts(trace, [request])
    scenario = fleet(
        requests={"trace": str(trace)},
        window={"name": "confidence", "eta": 0.5, "most": 5},
        arrivals={"kind": "closed_loop", "requests": 1},
    )
    (answer,) = simulate_fleet(scenario).answers
    assert answer.windows == [3, 5]  # tokens 1, 2 and the unsure 3; then up to five
    with pytest.raises(ValueError, match="confidence_seq"):
        simulate_fleet(fleet(window={"name": "confidence"}))


def test_a_run_that_ends_early_says_how_many_are_unfinished():
    scenario = fleet(until_ms=100, arrivals={"kind": "closed_loop"})
    run = simulate_fleet(scenario)
    assert run.ended_s == pytest.approx(0.1)
    assert run.unfinished == 5 - sum(1 for _ in run.answers) + len(run.answers)
