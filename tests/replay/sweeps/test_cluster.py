"""A real Dask cluster of two worker processes gives the figures of one process."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest
from replay.sweeps.pairs import LENGTHS, scenarios

from disco.cli import main
from disco.errors import ConfigurationError
from disco.replay.formats import write_trace
from disco.replay.sweeps.executors import open_executor, run_all
from disco.replay.sweeps.sweep import run_sweep
from disco.replay.workload.scenario import Arm
from disco.replay.workload.synthetic import synthetic_trace

pytestmark = pytest.mark.real

distributed = pytest.importorskip("distributed")


def made(seed: int, requests: int = 200):
    return synthetic_trace(requests=requests, seed=seed, prompts=LENGTHS)


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as cluster:
        yield cluster


@pytest.mark.slow
def test_both_workers_and_nobody_else_give_the_figures_of_one_process_token_by_token(cluster):
    arms = [Arm("server_only", 1.0, migrate=True), Arm("auto", 0.5)]
    calls = []
    how = {"scenarios": scenarios(), "arms": arms, "evaluator": "events"}
    here = run_sweep(lambda seed: made(seed, 10), **how)

    def who() -> int:
        time.sleep(0.2)
        return os.getpid()

    with open_executor(scheduler=cluster.scheduler_address) as executor:
        how["progress"] = lambda *at: calls.append(at)
        there = run_sweep(lambda seed: made(seed, 10), **how, executor=executor)
        workers = set(run_all(executor, who, [()] * 6, None))
    assert there.cells == here.cells
    assert there.example.to_dict() == here.example.to_dict()
    assert calls == [(i, 6) for i in range(1, 7)]
    assert len(workers - {os.getpid()}) == len(workers) == 2


def test_the_command_gives_the_same_figures_with_a_scheduler(cluster, tmp_path):
    path = tmp_path / "trace.csv"
    write_trace(made(3), path)
    options = ["replay", str(path), "--budget", "0.3", "--policy", "random", "--policy", "auto"]
    assert main([*options, "--json", str(tmp_path / "here.json")]) == 0
    scheduler = ["--scheduler", cluster.scheduler_address]
    assert main([*options, *scheduler, "--json", str(tmp_path / "there.json")]) == 0
    here, there = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("here", "there"))
    assert here["cells"] == there["cells"]


def test_a_scheduler_that_cannot_be_had_is_refused():
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1") as empty,
        socket.socket() as taken,  # bound and not listening: nobody else gets the port meanwhile
    ):
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        for address, said in (
            (nobody, "no Dask scheduler answers at"),
            (f"tcp://{nobody}", "no Dask scheduler answers at"),
            (empty.scheduler_address, "has no workers"),
            *((address, "is host:port") for address in ("127.0.0.1", "tcp://host", "tcp://host:port")),
        ):
            with (
                pytest.raises(ConfigurationError, match=said),
                open_executor(scheduler=address, connect_s=0.5),
            ):
                pass
