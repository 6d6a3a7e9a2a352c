"""Chunk by chunk is as good as all at once, and never holds more than a chunk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replay.sweeps.pairs import LENGTHS, scenarios

from disco.errors import ConfigurationError
from disco.profiles import Lengths
from disco.replay.formats import write_trace
from disco.replay.metrics.running_tally import RELATIVE_ERROR
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.executors import open_executor
from disco.replay.sweeps.sweep import sweep
from disco.replay.workload.scenario import Arm
from disco.replay.workload.synthetic import synthetic_trace
from disco.replay.workload.trace import Trace
from disco.replay.workload.trace_survey import KEPT, _Thinning, survey

N = 5000
SCENARIOS = scenarios()
ARMS = [
    *(Arm(policy, 0.4) for policy in ("wait_time", "length_threshold", "optimal_wait", "random")),
    Arm("server_only", 1.0),
    Arm("server_only", 0.5),
]


@pytest.fixture(scope="module")
def trace() -> Trace:
    made = synthetic_trace(requests=N, seed=5, prompts=LENGTHS)
    known = np.random.default_rng(1).exponential(0.8, N)
    known[::5] = np.nan  # one in five is drawn, so that the draws are seen to go on across chunks
    return replace(made, ttft_s=known)


@pytest.fixture(scope="module", params=["parquet", "csv"])
def path(request, trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / f"trace.{request.param}"
    write_trace(trace, path)
    return path


def same(chunked, whole):
    """Sums to the last few bits (they are added in another order), quantiles as far as the tally promises."""
    assert len(chunked) == len(whole)
    for one, other in zip(chunked, whole, strict=True):
        assert (one.scenario, one.arm) == (other.scenario, other.arm)
        exact = dict.fromkeys(("ttft_mean_s", "cost_usd", "budget_used", "device_won", "failed"), 1e-12)
        rough = dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "ttft_p99_s"), 1.01 * RELATIVE_ERROR)
        for name, error in {**exact, **rough}.items():
            mine, theirs = getattr(one.summary, name).mean, getattr(other.summary, name).mean
            assert mine == pytest.approx(theirs, rel=error), (one.arm, name)
        assert one.summary.cost_by == pytest.approx(other.summary.cost_by, rel=1e-12)


@pytest.mark.parametrize("chunk_rows", [137, N, 10 * N])
def test_any_size_of_chunk_gives_what_the_whole_trace_gives(path, trace, chunk_rows):
    """Draws, and what a policy's rounding owes, go on from chunk to chunk."""
    chunked = sweep_chunks(path, SCENARIOS, ARMS, chunk_rows=chunk_rows, seeds=2)
    same(chunked, sweep(trace, SCENARIOS, ARMS, seeds=2, oracle=False))


def test_lengths_of_a_scenario_come_before_the_traces(path, trace):
    own = [replace(SCENARIOS[0], lengths=Lengths.from_samples([10, 20, 3000]))]
    chunked = sweep_chunks(path, own, ARMS, chunk_rows=900)
    same(chunked, sweep(trace, own, ARMS, oracle=False))


def test_processes_give_the_figures_of_one_and_progress_counts_chunks(trace, tmp_path):
    path = tmp_path / "trace.parquet"
    write_trace(trace, path)
    calls = []
    here = sweep_chunks(
        path, SCENARIOS, ARMS, chunk_rows=2000, seeds=1, progress=lambda *at: calls.append(at)
    )
    assert calls == [(i, 6) for i in range(1, 7)]
    with open_executor(2) as executor:
        assert sweep_chunks(path, SCENARIOS, ARMS, chunk_rows=2000, seeds=1, executor=executor) == here


@pytest.mark.parametrize(
    ("arm", "said"),
    [(Arm("oracle", 0.5), "must see all requests"), (Arm("random", 0.5, migrate=True), "--events")],
)
def test_what_cannot_be_had_in_chunks_is_refused(tmp_path, trace, arm, said):
    write_trace(trace.take(0, 5), tmp_path / "trace.csv")
    with pytest.raises(ConfigurationError, match=said):
        sweep_chunks(tmp_path / "trace.csv", SCENARIOS, [arm], chunk_rows=100)


def test_a_bad_row_names_file_line_and_column(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,2,2\n2,-3,3\n")
    with pytest.raises(ConfigurationError, match=r"bad\.csv, line 4, column prompt_tokens"):
        sweep_chunks(path, SCENARIOS, ARMS, chunk_rows=2)
    cells = sweep_chunks(path, SCENARIOS, ARMS, chunk_rows=2, skip_invalid=True)
    assert {cell.summary.requests for cell in cells} == {2}


# ---------------------------------------------------------------------- the first pass


def test_a_survey_knows_the_whole_trace(path, trace):
    found = survey(path, chunk_rows=333)
    whole = Lengths.from_samples(trace.prompt_tokens)
    assert found.requests == N
    assert np.array_equal(found.lengths.lengths, whole.lengths)
    assert np.array_equal(found.lengths.p, whole.p)
    assert found.output_tokens == pytest.approx(trace.output_tokens.mean())
    assert found.lasts_s == pytest.approx(trace.arrival_s[-1])
    assert found.ttft_known == pytest.approx(0.8)
    assert found.ttft.mean() == pytest.approx(np.nanmean(trace.ttft_s), rel=1e-9)
    assert not found.skipped


def test_times_that_few_requests_know_are_not_planned_on(tmp_path, trace):
    known = np.where(np.arange(N) % 3 == 0, trace.ttft_s, np.nan)
    write_trace(replace(trace, ttft_s=known), tmp_path / "few.parquet")
    assert survey(tmp_path / "few.parquet", chunk_rows=1000).ttft is None


@pytest.mark.parametrize("sizes", [[1] * 50, [7, 0, 13, 64, 3, 200], [1000], [999, 1]])
def test_thinning_keeps_every_kth_value(sizes, monkeypatch):
    monkeypatch.setattr("disco.replay.workload.trace_survey.KEPT", 16)
    kept = _Thinning()
    values = np.arange(sum(sizes), dtype=np.float64)
    start = 0
    for size in sizes:
        kept.add(values[start : start + size])
        start += size
    assert kept.values().tolist() == values[:: kept.stride].tolist()
    assert kept.values().size <= 16 < KEPT
