"""Scenarios, traces and sweeps: what is read and written, and what mistakes are called."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers.fleet.__main__ import main
from papers.fleet.fleet_scenario import MadeUp
from papers.fleet.fleet_sweep import points_of, sweep_fleets
from papers.fleet.fleet_toml import load_scenario, scenario_from
from papers.fleet.fleet_topology import expand
from papers.fleet.made_up_requests import made_up_requests
from papers.fleet.shipped_fleets import fleet_path, shipped_fleets

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest, open_executor, read_drafts, write_drafts

SMALL = """
seed = 3

[[targets]]
name = "t"
count = 2
steps_ms = [[1, 10], [64, 40]]

[[drafters]]
name = "d"
count = 4
steps_ms = [[1, 3]]

[[links]]
rtt_ms = 10
jitter_ms = 1

[requests]
trace = "requests.jsonl"

[arrivals]
kind = "closed_loop"
requests = 30
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A scenario's file, and the trace beside it."""
    write_drafts(
        tmp_path / "requests.jsonl",
        [DraftedRequest(20 + n, 10 + 5 * n, bytes([1, 1, 0, 1, n % 2]), n / 100, n) for n in range(6)],
    )
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


REQUESTS = st.builds(
    DraftedRequest,
    prompt_tokens=st.integers(1, 5000),
    output_tokens=st.integers(1, 60),
    accepts=st.lists(st.integers(0, 1), min_size=1, max_size=80).map(bytes),
    arrival_s=st.floats(0, 1e6),
    drafter=st.integers(0, 1000),
)


@given(st.lists(REQUESTS, min_size=1, max_size=5))
def test_a_trace_comes_back_as_it_was(tmp_path_factory, requests):
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_drafts(path, requests)
    for found, request in zip(read_drafts(path), requests, strict=True):
        assert found.arrival_s == pytest.approx(request.arrival_s)
        assert (found.prompt_tokens, found.output_tokens, found.accepts, found.drafter) == (
            *(request.prompt_tokens, request.output_tokens, request.accepts, request.drafter),
        )


@given(REQUESTS)
def test_runs_count_the_right_tokens_from_each_position_to_the_answers_end(request):
    repeated = request.accepts * (request.output_tokens // len(request.accepts) + 1)
    truth = repeated[: request.output_tokens]
    for place, run in enumerate(request.runs):
        assert truth[place : place + run] == bytes([1]) * run
        assert place + run == request.output_tokens or not truth[place + run]


def test_the_papers_own_record_is_read(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"prompt_length": 27, "output_length": 94, "acceptance_seq": [1, 0, 1], "arrival_time_ms": 5.3, '
        '"drafter_id": 38}\n'
    )
    assert read_drafts(path) == [DraftedRequest(27, 94, b"\1\0\1", 0.0053, 38)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1:"),
        ("[]", "must be an object"),
        ('{"prompt_lenght": 3}', "no field 'prompt_lenght'. Did you mean 'prompt_length'"),
        (
            '{"prompt_length": 0, "output_length": 1, "acceptance_seq": [1]}',
            "prompt_length must be a whole number",
        ),
        ('{"prompt_length": 1, "output_length": 1, "acceptance_seq": [2]}', "only 0 and 1"),
        ('{"prompt_length": 1, "output_length": 1, "acceptance_seq": []}', "at least one entry"),
        (
            '{"prompt_length": 1, "output_length": 1, "acceptance_seq": [1], "arrival_time_ms": -1}',
            "arrival_time_ms must be a number from 0 on",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigurationError) as caught:
        read_drafts(path)
    assert message in str(caught.value)
    assert "line 1" in str(caught.value)


def test_made_up_requests_have_the_figures_they_were_given():
    figures = MadeUp(
        count=400,
        prompt_tokens={"mean": 80, "sd": 30},
        output_tokens={"mean": 300, "sd": 60},
        acceptance=0.7,
        correlation=0.4,
        spread=0.1,
    )
    requests = made_up_requests(figures, Random(1))
    assert sum(one.prompt_tokens for one in requests) / 400 == pytest.approx(80, rel=0.05)
    assert sum(one.output_tokens for one in requests) / 400 == pytest.approx(300, rel=0.05)
    rates = [sum(one.accepts) / len(one.accepts) for one in requests]
    assert sum(rates) / 400 == pytest.approx(0.7, abs=0.02)
    after = [b for one in requests for a, b in zip(one.accepts, one.accepts[1:], strict=False) if a]
    assert (
        sum(after) / len(after) > 0.7 + 0.3 * 0.4
    )  # neighbours agree more often than independent ones would


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batching.max_bach=3", "batching.max_bach: there is no such key. Did you mean 'max_batch'"),
        ("batching.max_batch=0", "batching.max_batch: Input should be greater than or equal to 1, not 0"),
        ("window.name=statik", "there is no window 'statik'. Did you mean 'static'"),
        ("window.m=3", "has no setting 'm'. Known: n."),
        ("targets.t.gpu=3", "targets.t.gpu: there is no such key. Did you mean 'gpus'"),
        ("targets.u.gpus=3", "there is no 'u' here. Known: t."),
        ("targets.t.hardware=a100", "exactly one of hardware"),
        ("targets.t.share=1", "needs either count or share"),
        ("mode=fused", 'mode = "fused" needs draft_model or draft_steps_ms'),
        ("mode=fusd", "mode: Input should be 'distributed', 'fused' or 'alone', not 'fusd'"),
        ("arrivals.requests=0", "a closed loop needs arrivals.requests or until_ms"),
        ("requests.trace=gone.jsonl", "gone.jsonl; check the path"),
        ("drafters.d.vocabulary=x", "no target has the vocabulary 'x'"),
        ("links=[]", "no link between drafters.d and targets.t"),
        ("links.0.rtt_is=both", "links.0.rtt_is: Input should be 'round' or 'one_way', not 'both'"),
        ("batching", "a setting is KEY=VALUE"),
        ("seed.x=1", "seed is a value, not a table"),
    ],
)
def test_a_mistake_in_a_scenario_is_named_with_its_remedy(small, capsys, setting, message):
    assert main(["run", str(small), "--set", setting]) == 2
    assert message in capsys.readouterr().err


def test_shares_are_distributed_and_pools_take_turns():
    scenario = load_scenario(fleet_path("dsd-gsm8k"))
    topology = expand(scenario)
    assert (len(topology.targets), len(topology.drafters)) == (20, 600)
    pools = [one.pool.name for one in topology.drafters]
    assert {name: pools.count(name) for name in set(pools)} == dict.fromkeys(
        {p.name for p in scenario.drafters}, 100
    )
    assert len(set(pools[:6])) == 6
    for drafting in topology.drafters[:6]:
        assert {topology.targets[n].pool.vocabulary for n in drafting.targets} == {drafting.pool.vocabulary}


def test_every_shipped_scenario_can_be_expanded():
    assert "dsd-cnndm" in shipped_fleets()
    for name in shipped_fleets():
        assert expand(load_scenario(fleet_path(name))).targets
    with pytest.raises(ConfigurationError, match="Did you mean 'dsd-gsm8k'"):
        fleet_path("dsd-gsm")


def test_a_sweep_gives_the_same_figures_here_and_on_a_pool_of_processes(small):
    points = points_of(small, ["routing.policy=random"], ["window.n=1,4", "mode=alone,distributed"])
    assert [point.label for point in points] == [
        *("window.n=1 mode=alone", "window.n=1 mode=distributed"),
        *("window.n=4 mode=alone", "window.n=4 mode=distributed"),
    ]
    here = sweep_fleets(points, seeds=2)
    assert [run.seed for run in here] == [3, 4] * 4
    with open_executor(2) as pool:
        assert sweep_fleets(points, seeds=2, executor=pool) == here


@pytest.mark.real
def test_a_sweep_gives_the_same_figures_on_dask(small):
    distributed = pytest.importorskip("distributed")
    points = points_of(small, [], ["window.n=1,4"])
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=None,
            protocol="tcp",
            host="127.0.0.1",
        ) as cluster,
        open_executor(scheduler=cluster.scheduler_address) as dask,
    ):
        assert sweep_fleets(points, seeds=2, executor=dask) == sweep_fleets(points, seeds=2)


def test_the_command_prints_a_table_and_writes_figures_and_answers(small, tmp_path, capsys):
    figures, answers = tmp_path / "figures.json", tmp_path / "answers.jsonl"
    arguments = ["run", str(small), "--json", str(figures), "--answers", str(answers)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "TPOT ms" in shown
    (run,) = json.loads(figures.read_text())["runs"]
    lines: list[dict[str, Any]] = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == run["figures"]["requests"] == 30
    assert sum(len(line["windows"]) for line in lines) == run["figures"]["rounds"]
    assert main([*arguments, "--seeds", "2"]) == 2
    assert main(["run", str(small), "--vary", "window.n=2,4", "--seeds", "2", "--jobs", "1"]) == 0
    assert "±" in capsys.readouterr().out
    assert main(["show"]) == 0
    assert "dsd-humaneval" in capsys.readouterr().out
    assert main(["show", "one-pair"]) == 0
    assert scenario_from(tomllib.loads(capsys.readouterr().out)).name == "one-pair"
