"""Sweeps: every executor, and any size of chunk, gives the same figures; errors say where they happened."""

from __future__ import annotations

import concurrent.futures
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay.sweeps.pairs import LENGTHS, scenarios

from disco.cost import ExchangeRate
from disco.dispatch.policies.policy_registry import BUILT_IN
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError, FailureKind
from disco.profiles import Lengths, load_device, load_lengths, load_server
from disco.replay.formats import write_trace
from disco.replay.metrics.per_seed import RELATIVE_ERROR
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.executors import open_executor, run_all, share, shared_value
from disco.replay.sweeps.sweep import errors_named, is_budgetless, run_sweep, sweep
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.scenario import Arm, resolve, scenario_for
from disco.replay.workload.synthetic import synthetic_trace
from disco.replay.workload.trace import Trace
from disco.replay.workload.trace_survey import _Thinning, survey

ARMS = [Arm("auto", 0.3), Arm("random", 0.7), Arm("server_only", 1.0), Arm("device_only", 0.0)]


def made(n: int = 500) -> Trace:
    """Requests with log-normal lengths; the server's TTFTs are left to the scenario."""
    rng = np.random.default_rng([0, 99])
    return Trace.of(
        arrival_s=np.cumsum(rng.exponential(30.0, n)),
        prompt_tokens=np.clip(rng.lognormal(4.0, 1.0, n), 1, 2000).astype(np.int64),
        output_tokens=np.clip(rng.lognormal(4.0, 1.0, n), 1, 400).astype(np.int64),
    )


# ---------------------------------------------------------------------- what comes out


def test_the_oracle_has_no_regret_and_regrets_can_be_left_out():
    oracle, other = sweep(made(), scenarios()[:1], [Arm("oracle", 0.5), Arm("random", 0.5)])
    assert oracle.regret_mean_s is oracle.regret_p99_s is None
    assert other.regret_mean_s.mean > 0
    assert other.regret_mean_s.mean == other.summary.ttft_mean_s.mean - oracle.summary.ttft_mean_s.mean
    (bare,) = sweep(made(), scenarios()[:1], [Arm("random", 0.5)], oracle=False)
    assert (bare.regret_mean_s, bare.summary) == (None, other.summary)
    assert (bare.regime, bare.evaluator, bare.summary.requests) == ("server-constrained", "vectorised", 500)
    # Nothing is lost or mixed up between the evaluator and the cell.
    outcome = evaluate(resolve(made(), scenarios()[0], seed=0), scenarios()[0], Arm("random", 0.5), seed=0)
    found = bare.summary.ttft_mean_s, bare.summary.cost_usd, bare.summary.budget_used
    wanted = outcome.ttft_s.mean(), outcome.cost_usd.mean(), outcome.budget_used("server")
    assert [figure.mean for figure in found] == pytest.approx(wanted, rel=1e-12)


QUANTILES = ("mean", "p50", "p90", "p99")
REQUESTS = st.tuples(st.integers(1, 300), st.sampled_from([0.1, 0.2, 0.5, 3.0]) | st.floats(0.01, 20.0))


@pytest.mark.parametrize("evaluator", ["vectorised", "events"])
@given(data=st.data())
@settings(max_examples=20)
def test_nothing_beats_the_oracle(evaluator, data):
    rows = data.draw(st.lists(REQUESTS, min_size=1, max_size=60 if evaluator == "vectorised" else 5))
    tokens, ttft_s = zip(*rows, strict=True)
    trace = Trace.of(
        arrival_s=np.arange(len(rows)) * 3.0,
        prompt_tokens=tokens,
        output_tokens=[9] * len(rows),
        ttft_s=ttft_s,
    )
    where = data.draw(st.sampled_from(scenarios()))
    if evaluator == "events":
        slots, unload = data.draw(st.sampled_from([(None, None), (1, None), (1, 5.0)]))
        loading = where.device.model_copy(update={"load_s": 2.0})
        where = replace(where, device=loading, device_slots=slots, idle_unload_s=unload)
    budgets = data.draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=2, unique=True))
    moves = (False, True) if evaluator == "events" else (False,)
    arms = [Arm(policy, b, migrate=m) for policy in BUILT_IN for b in budgets for m in moves]
    arms += [Arm("oracle", b) for b in budgets]
    cells = sweep(trace, [where], arms, seeds=(data.draw(st.integers(0, 9)),), evaluator=evaluator)
    shown = {cell.arm.budget: cell.summary for cell in cells if cell.arm.policy == "oracle"}
    for cell in cells:
        if cell.arm.policy == "oracle":
            continue
        assert min(cell.regret_mean_s.mean, cell.regret_p99_s.mean) >= -1e-9, cell.arm
        if not is_budgetless(cell.arm.policy):
            for name in (f"ttft_{figure}_s" for figure in QUANTILES):
                best, own = (getattr(one, name).mean for one in (shown[cell.arm.budget], cell.summary))
                assert best <= own + 1e-9, (cell.arm, name)
            # The distance is that to the line which the table shows.
            row_s = shown[cell.arm.budget].ttft_p99_s.mean
            assert cell.regret_p99_s.mean == pytest.approx(cell.summary.ttft_p99_s.mean - row_s, abs=1e-9)


def test_the_oracle_has_the_p99_of_the_policies():
    """Its time was the smallest that one per cent exceed; theirs is between that and the next one."""
    lengths = load_lengths("lengths-azure-conv-2023")
    phone, server = load_device("xiaomi14-qwen1.5-0.5b"), load_server("gpt-4o-mini-2024")
    where = scenario_for(phone, server, exchange_rate=ExchangeRate(usd_per_mflop=4e-12))
    trace = synthetic_trace(requests=500, seed=0, prompts=lengths)
    own, best = sweep(trace, [where], [Arm("length_threshold", 0.7), Arm("oracle", 0.7)])
    assert own.regret_p99_s.mean > 0  # it was below by 0.111 s
    assert best.summary.ttft_p99_s.mean == own.summary.ttft_p99_s.mean - own.regret_p99_s.mean


def test_an_arm_that_spends_more_is_compared_with_an_oracle_that_may_too():
    """And who leaves requests unanswered is not compared: the oracle answers all."""
    spender, shown = sweep(made(60), scenarios()[:1], [Arm("random", 0.5), Arm("oracle", 0.5)], seeds=(1,))
    assert spender.summary.budget_used.mean > 0.6
    assert shown.summary.budget_used.mean >= spender.summary.budget_used.mean
    broken = Fault(after_tokens=0, kind=FailureKind.SERVER)
    failing = replace(scenarios()[0], server_fault=broken, device_fault=broken)
    (silent,) = sweep(made(3), [failing], [Arm("random", 0.5)], evaluator="events")
    assert silent.summary.failed.mean == 1.0
    assert silent.regret_mean_s is silent.regret_p99_s is None


def test_seeds_are_drawn_apart_and_give_an_interval():
    def mean_of(seeds):
        (cell,) = sweep(made(), scenarios()[:1], [Arm("random", 0.5)], seeds=seeds, oracle=False)
        return cell.summary.ttft_mean_s

    together = mean_of(3)
    apart = [mean_of((seed,)).mean for seed in range(3)]
    assert len(set(apart)) == 3
    assert together.mean == pytest.approx(sum(apart) / 3)
    assert together.low < together.mean < together.high


# ---------------------------------------------------------------------- the same everywhere


@pytest.mark.parametrize(
    ("evaluator", "n", "units"),
    [("vectorised", 500, 2 * 2 * 2), ("events", 15, 2 * 2 * 4)],  # arms (apart with events), then the oracles
)
def test_the_order_in_which_work_is_done_does_not_show(evaluator, n, units, monkeypatch):
    def backwards(futures):
        concurrent.futures.wait(futures)
        return reversed(list(futures))

    monkeypatch.setattr("disco.replay.sweeps.executors.as_completed", backwards)
    calls = []
    arms = [*ARMS[:2], Arm("server_only", 1.0, migrate=evaluator == "events")]
    how = {"seeds": 2, "evaluator": evaluator, "progress": lambda *at: calls.append(at)}
    here = run_sweep(made(n), scenarios(), arms, **how)
    assert calls == [(i, units) for i in range(1, units + 1)]
    with ThreadPoolExecutor(2) as threads:
        there = run_sweep(made(n), scenarios(), arms, **how, executor=threads)
    assert there.cells == here.cells
    assert [(c.scenario, c.arm) for c in here.cells if c.arm in arms] == [
        (s.name, a) for s in scenarios() for a in arms
    ]
    assert calls[units:] == calls[:units]
    if evaluator == "events":
        moving, staying = here.cells[2].summary.reading.moved, here.cells[0].summary.reading.moved
        assert moving.mean > staying.mean == 0.0
        assert here.cells[2].regret_mean_s is not None
        assert here.example.migrations
    examples = [None if e is None else e.to_dict() for e in (here.example, there.example)]
    assert examples[0] == examples[1]


# ---------------------------------------------------------------------- errors


def test_errors_are_named_and_those_that_cannot_travel_become_one_that_can():
    """An error that cannot be pickled would break the process pool, and say nothing."""

    class StayingError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} {two}")

    def source(seed: int) -> Trace:
        if seed == 1:
            raise ConfigurationError("no such trace")
        return made(10)

    with pytest.raises(ConfigurationError, match=r"xiaomi14.* × gpt-4o-mini-2024, seed 1: no such trace"):
        sweep(source, scenarios(), ARMS, seeds=2)
    with pytest.raises(ZeroDivisionError) as raised, errors_named(scenarios()[0], 3):
        raise ZeroDivisionError
    assert raised.value.__notes__ == ["while replaying xiaomi14-qwen1.5-0.5b × gpt-4o-mini-2024, seed 3"]
    assert pickle.loads(pickle.dumps(raised.value)).__notes__
    with pytest.raises(RuntimeError, match=r"seed 3: StayingError: a b"), errors_named(scenarios()[0], 3):
        raise StayingError("a", "b")


def test_the_first_error_cancels_what_has_not_begun():
    begun = []
    release = threading.Event()

    def work(i: int) -> None:
        begun.append(i)
        if i == 0:
            raise ValueError(i)
        release.wait(5)

    with ThreadPoolExecutor(1) as one:
        with pytest.raises(ValueError, match="0"):
            run_all(one, work, [(i,) for i in range(50)], None)
        release.set()
    assert len(begun) <= 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scenarios": []}, "at least one scenario"),
        ({"arms": []}, "at least one scenario and one arm"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": (-1,)}, "numbers from 0 on"),
        ({"evaluator": "event"}, "Did you mean 'events'"),
        ({"scenarios": scenarios()[:1] * 2}, "two scenarios are called 'xiaomi14"),
    ],
)
def test_nothing_to_do_is_a_mistake(changes, message):
    given = {"scenarios": scenarios(), "arms": ARMS, **changes}
    with pytest.raises(ConfigurationError, match=message):
        sweep(made(5), **given)


# ---------------------------------------------------------------------- executors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jobs": 0}, "at least 1"),
        ({"jobs": 2, "scheduler": "tcp://127.0.0.1:1"}, "not both"),
        ({"scheduler": "tcp://127.0.0.1:1"}, r'pip install "disco-llm\[cluster\]"'),
    ],
)
def test_workers_that_cannot_be_had_are_refused_and_one_job_needs_none(given, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigurationError, match=message), open_executor(**given):
        pass
    with open_executor(1) as executor:
        assert executor is None


def test_processes_read_a_shared_value_from_a_file_that_is_gone_afterwards():
    trace = made(50)
    with open_executor(2) as processes:
        with share(processes, trace) as handle:
            assert len(pickle.dumps(handle)) < 1000
            assert np.array_equal(shared_value(handle).prompt_tokens, trace.prompt_tokens)
            assert handle.path.exists()
        assert not handle.path.parent.exists()
    with ThreadPoolExecutor(1) as threads, share(threads, trace) as handle:
        assert handle is trace


# ---------------------------------------------------------------------- chunk by chunk

N = 2000
CHUNKED = [
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


@pytest.mark.parametrize("chunk_rows", [137, 10 * N])
def test_any_size_of_chunk_gives_what_the_whole_trace_gives(path, trace, chunk_rows):
    """Draws and what a policy's rounding owes go on from chunk to chunk; a scenario's lengths come first."""
    both = [scenarios()[0], replace(scenarios()[1], lengths=Lengths.from_samples([10, 20, 3000]))]
    chunked = sweep_chunks(path, both, CHUNKED, chunk_rows=chunk_rows, seeds=2)
    whole = sweep(trace, both, CHUNKED, seeds=2, oracle=False)
    assert [(cell.scenario, cell.arm) for cell in chunked] == [(cell.scenario, cell.arm) for cell in whole]
    # Sums to the last few bits (they are added in another order), quantiles as far as the tally promises.
    errors = dict.fromkeys(("ttft_mean_s", "cost_usd", "budget_used", "device_won", "failed"), 1e-12)
    errors |= dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "ttft_p99_s"), 1.01 * RELATIVE_ERROR)
    for one, other in zip(chunked, whole, strict=True):
        for name, error in errors.items():
            mine, theirs = getattr(one.summary, name).mean, getattr(other.summary, name).mean
            assert mine == pytest.approx(theirs, rel=error), (one.arm, name)
        assert one.summary.cost_by == pytest.approx(other.summary.cost_by, rel=1e-12)


class Pickling(ThreadPoolExecutor):
    """Gives work away as a pool of processes does."""

    def submit(self, *work):
        return super().submit(*pickle.loads(pickle.dumps(work)))


def test_workers_give_the_figures_of_one_and_progress_counts_chunks(path):
    calls = []
    how = {"chunk_rows": 800, "seeds": 1, "progress": lambda *at: calls.append(at)}
    here = sweep_chunks(path, scenarios(), CHUNKED, **how)
    assert calls == [(i, 6) for i in range(1, 7)]
    for arm, said in {Arm("oracle"): "must see all requests", Arm("race", migrate=True): "--events"}.items():
        with pytest.raises(ConfigurationError, match=said):
            sweep_chunks(path, scenarios(), [arm], chunk_rows=100)
    with Pickling(2) as executor:
        assert sweep_chunks(path, scenarios(), CHUNKED, **how, executor=executor) == here


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
