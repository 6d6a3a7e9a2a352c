"""Chunk by chunk is as good as all at once, and never holds more than a chunk."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from replay.sweeps.pairs import LENGTHS, scenarios

from disco.errors import ConfigurationError
from disco.profiles import Lengths
from disco.replay.formats import write_trace
from disco.replay.metrics.running_tally import RELATIVE_ERROR
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.sweep import sweep
from disco.replay.workload.scenario import Arm
from disco.replay.workload.synthetic import synthetic_trace
from disco.replay.workload.trace import Trace
from disco.replay.workload.trace_survey import _Thinning, survey

N = 2000
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


@pytest.fixture(scope="module")
def path(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.parquet"
    write_trace(trace, path)
    return path


def same(chunked, whole):
    """Sums to the last few bits (they are added in another order), quantiles as far as the tally promises."""
    assert [(cell.scenario, cell.arm) for cell in chunked] == [(cell.scenario, cell.arm) for cell in whole]
    exact = dict.fromkeys(("ttft_mean_s", "cost_usd", "budget_used", "device_won", "failed"), 1e-12)
    rough = dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "ttft_p99_s"), 1.01 * RELATIVE_ERROR)
    for one, other in zip(chunked, whole, strict=True):
        for name, error in {**exact, **rough}.items():
            mine, theirs = getattr(one.summary, name).mean, getattr(other.summary, name).mean
            assert mine == pytest.approx(theirs, rel=error), (one.arm, name)
        assert one.summary.cost_by == pytest.approx(other.summary.cost_by, rel=1e-12)


@pytest.mark.parametrize("chunk_rows", [137, 10 * N])
def test_any_size_of_chunk_gives_what_the_whole_trace_gives(path, trace, chunk_rows):
    """Draws and what a policy's rounding owes go on from chunk to chunk; a scenario's lengths come first."""
    both = [SCENARIOS[0], replace(SCENARIOS[1], lengths=Lengths.from_samples([10, 20, 3000]))]
    chunked = sweep_chunks(path, both, ARMS, chunk_rows=chunk_rows, seeds=2)
    same(chunked, sweep(trace, both, ARMS, seeds=2, oracle=False))


class Pickling(ThreadPoolExecutor):
    """Gives work away as a pool of processes does."""

    def submit(self, *work):
        return super().submit(*pickle.loads(pickle.dumps(work)))


def test_workers_give_the_figures_of_one_and_progress_counts_chunks(path):
    calls = []
    how = {"chunk_rows": 800, "seeds": 1, "progress": lambda *at: calls.append(at)}
    here = sweep_chunks(path, SCENARIOS, ARMS, **how)
    assert calls == [(i, 6) for i in range(1, 7)]
    with Pickling(2) as executor:
        assert sweep_chunks(path, SCENARIOS, ARMS, **how, executor=executor) == here


@pytest.mark.parametrize(
    ("arm", "said"),
    [(Arm("oracle", 0.5), "must see all requests"), (Arm("random", 0.5, migrate=True), "--events")],
)
def test_what_cannot_be_had_in_chunks_is_refused(path, arm, said):
    with pytest.raises(ConfigurationError, match=said):
        sweep_chunks(path, SCENARIOS, [arm], chunk_rows=100)


def test_a_bad_row_names_file_line_and_column(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,2,2\n2,-3,3\n")
    with pytest.raises(ConfigurationError, match=r"bad\.csv, line 4, column prompt_tokens"):
        sweep_chunks(path, SCENARIOS, ARMS, chunk_rows=2)
    cells = sweep_chunks(path, SCENARIOS, ARMS, chunk_rows=2, skip_invalid=True)
    assert {cell.summary.requests for cell in cells} == {2}


# ---------------------------------------------------------------------- the first pass


def test_a_survey_knows_the_whole_trace(path, trace, tmp_path):
    found, whole = survey(path, chunk_rows=333), Lengths.from_samples(trace.prompt_tokens)
    assert (found.requests, bool(found.skipped)) == (N, False)
    assert np.array_equal([found.lengths.lengths, found.lengths.p], [whole.lengths, whole.p])
    means = found.output_tokens, found.lasts_s, found.ttft_known, found.ttft.mean()
    wanted = trace.output_tokens.mean(), trace.arrival_s[-1], 0.8, np.nanmean(trace.ttft_s)
    assert means == pytest.approx(wanted, rel=1e-9)
    # Times that few requests know are not planned on.
    known = np.where(np.arange(N) % 3 == 0, trace.ttft_s, np.nan)
    write_trace(replace(trace, ttft_s=known), tmp_path / "few.parquet")
    assert survey(tmp_path / "few.parquet", chunk_rows=1000).ttft is None


@pytest.mark.parametrize("sizes", [[1] * 50, [7, 0, 13, 64, 3, 200], [1000], [999, 1]])
def test_thinning_keeps_every_kth_value(sizes, monkeypatch):
    monkeypatch.setattr("disco.replay.workload.trace_survey.KEPT", 16)
    kept, values = _Thinning(), np.arange(sum(sizes), dtype=np.float64)
    for piece in np.split(values, np.cumsum(sizes)[:-1]):
        kept.add(piece)
    assert kept.values().tolist() == values[:: kept.stride].tolist()
    assert 0 < kept.values().size <= 16
