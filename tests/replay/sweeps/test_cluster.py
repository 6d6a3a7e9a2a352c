"""A real Dask cluster of two worker processes gives the figures of one process."""

from __future__ import annotations

import json
import os
import socket
import time
from functools import partial

import pytest
from replay.sweeps.pairs import LENGTHS, scenarios

from disco.cli import main
from disco.errors import ConfigurationError
from disco.replay.formats import write_trace
from disco.replay.sweeps.executors import open_executor, run_all
from disco.replay.sweeps.sweep import run_sweep, sweep
from disco.replay.workload.scenario import Arm
from disco.replay.workload.synthetic import synthetic_trace

pytestmark = pytest.mark.real

distributed = pytest.importorskip("distributed")

SCENARIOS = scenarios()


def made(seed: int, requests: int = 200):
    return synthetic_trace(requests=requests, seed=seed, prompts=LENGTHS)


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as cluster:
        yield cluster


@pytest.fixture
def executor(cluster):
    with open_executor(scheduler=cluster.scheduler_address) as executor:
        yield executor


def test_the_cluster_gives_the_figures_of_one_process_token_by_token(executor):
    arms = [Arm("server_only", 1.0, migrate=True), Arm("auto", 0.5)]
    calls = []
    how = {"scenarios": SCENARIOS, "arms": arms, "evaluator": "events"}
    here = run_sweep(lambda seed: made(seed, 10), **how)
    there = run_sweep(
        lambda seed: made(seed, 10), **how, executor=executor, progress=lambda *at: calls.append(at)
    )
    assert there.cells == here.cells
    assert there.example.to_dict() == here.example.to_dict()
    assert calls == [(i, 6) for i in range(1, 7)]


def test_the_work_is_done_by_both_workers_and_not_here(executor):
    def who() -> int:
        time.sleep(0.2)
        return os.getpid()

    workers = set(run_all(executor, who, [()] * 6, None))
    assert len(workers) == 2
    assert os.getpid() not in workers


def test_a_mistake_on_a_worker_is_raised_as_itself(executor):
    with pytest.raises(ConfigurationError, match=r"seed 0: requests must be at least 1"):
        sweep(partial(made, requests=0), SCENARIOS[:1], [Arm("race")], executor=executor)


def test_the_command_gives_the_same_figures_with_a_scheduler(cluster, tmp_path):
    path = tmp_path / "trace.csv"
    write_trace(made(3), path)
    options = ["replay", str(path), "--budget", "0.3", "--policy", "random", "--policy", "auto"]
    assert main([*options, "--json", str(tmp_path / "here.json")]) == 0
    scheduler = ["--scheduler", cluster.scheduler_address]
    assert main([*options, *scheduler, "--json", str(tmp_path / "there.json")]) == 0
    here, there = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("here", "there"))
    assert here["cells"] == there["cells"]


def test_a_scheduler_that_does_not_answer_is_given_up_on():
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for address in (where, f"tcp://{where}"):
            with (
                pytest.raises(ConfigurationError, match="no Dask scheduler answers at"),
                open_executor(scheduler=address, connect_s=0.5),
            ):
                pass


@pytest.mark.parametrize("address", ["127.0.0.1", "tcp://host", "somewhere", "tcp://host:port"])
def test_an_address_without_a_port_is_none(address):
    with pytest.raises(ConfigurationError, match="is host:port"), open_executor(scheduler=address):
        pass


def test_a_scheduler_without_workers_would_never_do_anything():
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1") as empty,
        pytest.raises(ConfigurationError, match="has no workers"),
        open_executor(scheduler=empty.scheduler_address),
    ):
        pass
