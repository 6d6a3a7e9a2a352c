"""The limit holds over processes: whoever reserves, settles, is killed or starts again, whatever the clock does."""

from __future__ import annotations

import gc
import itertools
import math
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cost.test_budget_limiter import LIMIT, Arrivals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test
from state.tally_machine import GRAIN_S, WINDOW_S, Machine, counter_of, tokens

from disco.cost.budget_limiter import BudgetLimiter, Limit, WindowCounter
from disco.cost.windows import BUCKETS, gone_until, piece_of
from disco.state import SharedBudgets, budget_tables, processes
from disco.state import database as database_module

ACCOUNTS = itertools.count()


@dataclass
class Job:
    """An attempt: where and when it ran, what it reserved and what it cost."""

    process: str
    amount: int  # of the limit that let it start
    ticket: int
    reserved: int
    start: float
    end: float = math.inf
    cost: int = 0

    @property
    def most(self) -> int:
        return self.reserved if self.end == math.inf else self.cost


class Processes(RuleBasedStateMachine):
    """Several processes with two limits on one tally; two clients in one of them. Checks every window at the end."""

    jobs = Bundle("jobs")
    path: Path

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(self.path)
        self.account = f"example {next(ACCOUNTS)}"
        self.limits = [self.limit(1000), self.limit(600)]
        self.handles: dict[str, list[SharedBudgets]] = {}
        self.limiters: dict[str, list[BudgetLimiter]] = {}
        self.names = itertools.count()
        self.slots: list[str] = []
        for _ in range(3):
            self.slots.append(self.begin())
        self.all: list[Job] = []

    def limit(self, amount: int) -> Limit:
        return Limit("server_tokens", "server", "tokens", amount, WINDOW_S, self.account)

    def begin(self) -> str:
        name = f"{self.account}, process {next(self.names)}"
        self.handles[name] = [self.machine.start(name) for _ in range(2)]
        self.limiters[name] = [BudgetLimiter(b.tally) for b in self.handles[name]]
        return name

    def counter(self, process: str, client: int, amount: int) -> WindowCounter:
        return self.limiters[process][client].counter(self.limit(amount))

    @property
    def now(self) -> float:
        return self.machine.elapsed_s

    @rule(
        target=jobs,
        slot=st.integers(0, 2),
        client=st.integers(0, 1),
        amount=st.sampled_from([1000, 600]),
        units=st.integers(1, 700),
    )
    def reserve(self, slot, client, amount, units):
        process = self.slots[slot]
        counter = self.counter(process, client, amount)
        left = counter.left(0.0)
        ticket = counter.reserve(units, 0.0)
        if ticket is None:
            assert units > left, "refused what was left"
            return None
        job = Job(process, amount, ticket, units, self.now)
        self.all.append(job)
        return (client, job)

    @rule(job=consumes(jobs), share=st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    def settle(self, job, share):
        if job is None or job[1].end < math.inf:
            return
        client, job = job
        job.cost, job.end = math.ceil(job.reserved * share), self.now
        self.counter(job.process, client, job.amount).settle(job.ticket, job.cost, 0.0)

    @rule(slot=st.integers(0, 2))
    def kill_and_start_again(self, slot):
        process = self.slots[slot]
        for budgets in self.handles[process]:
            self.machine.kill(process, budgets)
        for job in self.all:
            if job.process == process and job.end == math.inf:
                job.end, job.cost = self.now, job.reserved  # it may have cost all of that
        self.slots[slot] = self.begin()

    @rule(wait_s=st.floats(0.0, 2 * WINDOW_S) | st.sampled_from([0.0, GRAIN_S, WINDOW_S / 2, WINDOW_S]))
    def wait(self, wait_s):
        self.machine.elapsed_s += wait_s

    @rule(pick=st.integers(0, 50), off_s=st.sampled_from([-GRAIN_S, -1e-4, 0.0, 1e-4, GRAIN_S]))
    def wait_for_an_edge(self, pick, off_s):
        edges = sorted({j.end + WINDOW_S for j in self.all if self.now < j.end + WINDOW_S < math.inf})
        if edges:
            self.machine.elapsed_s = max(self.now, edges[pick % len(edges)] + off_s)

    @rule(back_s=st.sampled_from([1e-3, 0.1, 5.0, WINDOW_S, 1e9]))
    def set_the_clock_back(self, back_s):
        self.machine.offset_s -= back_s

    def teardown(self):
        """The most that any window holds it holds when its right edge is a start."""
        for n, job in enumerate(self.all, 1):
            held = [j for j in self.all[:n] if j.end > job.start - WINDOW_S]
            assert sum(j.most for j in held) <= job.amount, "overspent"
        # Nothing is stuck: what the dead had reserved leaves one window after it was found.
        counter = self.counter(self.slots[0], 0, 1000)
        for _ in range(2):
            counter.reserve(1, 0.0)
            self.machine.elapsed_s += WINDOW_S + 2 * GRAIN_S
        running = sum(j.reserved for j in self.all if j.end == math.inf)
        assert counter.left(0.0) >= 1000 - running - 2
        for budgets in self.handles.values():
            for one in budgets:
                one.close()


SETTINGS = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_no_window_of_any_processes_holds_more_than_the_limit(tmp_path):
    Processes.path = tmp_path / "state.sqlite3"
    run_state_machine_as_test(Processes, settings=SETTINGS)


# ---------------------------------------------------------------------- what the machine of states does not reach


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path / "state.sqlite3")


class SharedArrivals(Arrivals):
    """One process alone: the file's tally does what the one in memory does."""

    path: Path

    def __init__(self) -> None:
        super().__init__()
        at = lambda: self.now  # noqa: E731
        self.budgets = SharedBudgets(self.path, clock=at, monotonic=at)
        self.counter = counter_of(self.budgets, replace(LIMIT, account=f"arrivals {next(ACCOUNTS)}"))

    def teardown(self):
        super().teardown()
        self.budgets.close()


def test_a_tally_in_the_file_refuses_nothing_without_need(tmp_path):
    SharedArrivals.path = tmp_path / "state.sqlite3"
    run_state_machine_as_test(SharedArrivals, settings=SETTINGS)


def test_a_restart_forgets_nothing_and_a_changed_amount_neither(machine):
    first = machine.start("first")
    counter = counter_of(first)
    counter.settle(counter.reserve(300, 0.0), 250, 0.0)
    assert counter.reserve(100, 0.0)
    first.close()  # what is still reserved is spent
    machine.living.clear()
    second = machine.start("second")
    assert counter_of(second).left(0.0) == 650
    assert counter_of(second, tokens(400)).left(0.0) == 50
    assert counter_of(second, tokens(300)).left(0.0) == 0
    assert counter_of(second, tokens(400, "mine")).left(0.0) == 400
    assert counter_of(second, replace(tokens(400), window=30.0)).left(0.0) == 400
    second.close()


def test_when_enough_is_free_is_told_on_the_clock_of_the_caller(machine):
    budgets = machine.start("one")
    counter = counter_of(budgets)
    counter.settle(counter.reserve(700, 0.0), 700, 0.0)
    ticket = counter.reserve(200, 0.0)
    assert counter.frees_at(50, 5.0) == 5.0
    assert counter.frees_at(200, 5.0) == pytest.approx(5.0 + WINDOW_S, abs=2 * GRAIN_S)
    assert counter.frees_at(900, 5.0) is None
    assert counter.frees_at(1001, 5.0) == math.inf
    machine.offset_s -= 1e6  # what was spent later than now leaves one window from now
    assert counter.frees_at(200, 5.0) == pytest.approx(5.0 + WINDOW_S, abs=2 * GRAIN_S)
    counter.settle(ticket, 0, 0.0)
    with pytest.raises(KeyError):
        counter.settle(ticket, 0, 0.0)
    budgets.close()


@given(
    st.floats(1e9, 4e9),
    st.floats(1e-9, 1e12),
    st.floats(-2, 2) | st.sampled_from([0.0, 1.0, -1e-9, 1e-9]),
)
def test_a_piece_leaves_the_window_when_all_of_it_is_out_and_no_later(at, window_s, grains):
    now = at + window_s + grains * window_s / BUCKETS
    assert piece_of(window_s, at) < 2**63
    is_gone = piece_of(window_s, at) <= gone_until(window_s, now)
    precision_s = 4e-6  # of Unix times as floats
    if now < at + window_s - precision_s:
        assert not is_gone
    if now >= at + window_s * (1 + 1 / BUCKETS) + 2 * precision_s:
        assert is_gone


@pytest.mark.parametrize("back_s", [1.0, WINDOW_S, 1e9])
def test_a_clock_that_is_set_back_frees_nothing_early_and_everything_a_window_later(machine, back_s):
    budgets = machine.start("one")
    counter = counter_of(budgets)
    counter.settle(counter.reserve(700, 0.0), 700, 0.0)
    machine.offset_s -= back_s
    assert counter.reserve(301, 0.0) is None
    machine.elapsed_s += WINDOW_S - 0.01
    assert counter.reserve(301, 0.0) is None
    machine.elapsed_s += 0.01 + 2 * GRAIN_S
    assert counter.reserve(1000, 0.0)
    budgets.close()


def test_threads_of_two_clients_spend_no_more_than_the_limit_together(machine, monkeypatch):
    monkeypatch.setattr(database_module, "BUSY_S", 20.0)  # on a busy machine, too
    clients = [machine.start("one") for _ in range(2)]
    counters = [counter_of(budgets) for budgets in clients]

    def spend(number: int) -> int:
        counter, spent = counters[number % 2], 0
        for _ in range(20):
            ticket = counter.reserve(30, 0.0)
            if ticket is not None:
                counter.settle(ticket, 25, 0.0)
                spent += 25
        return spent

    with ThreadPoolExecutor(4) as pool:
        spent = sum(pool.map(spend, range(4)))
    # At a refusal 971 or more were taken, of which three others may give 5 back each.
    assert 955 < spent <= 1000
    assert [counter.left(0.0) for counter in counters] == [1000 - spent] * 2
    for budgets in clients:
        budgets.close()


def test_a_process_that_cannot_be_seen_counts_as_running_for_an_hour(machine):
    other, one = machine.start("other"), machine.start("one")
    assert counter_of(other).reserve(600, 0.0)
    machine.unseen.add("other")
    machine.kill("other", other)
    for passed_s, left in [(0.0, 400), (budget_tables.UNSEEN_S - 1, 400), (2.0, 400), (WINDOW_S + 1, 1000)]:
        machine.elapsed_s += passed_s
        counter = counter_of(one)
        counter.settle(counter.reserve(1, 0.0), 0, 0.0)
        assert counter.left(0.0) == left
    one.close()


def test_empty_tallies_are_removed(machine):
    for number in range(5):
        budgets = machine.start(f"process {number}")
        counter = counter_of(budgets, tokens(account=f"account {number}"))
        counter.settle(counter.reserve(10, 0.0), 10, 0.0)
        budgets.close()
        machine.elapsed_s += WINDOW_S + 1
    with sqlite3.connect(machine.path) as connection:
        assert connection.execute("SELECT account FROM budgets").fetchall() == [("account 4",)]
        assert connection.execute("SELECT COUNT(*) FROM budget_spent").fetchone() == (1,)
    connection.close()


def test_nobody_settles_what_a_client_held_that_is_gone_so_it_is_spent(machine):
    budgets = machine.start("one")
    assert counter_of(budgets).reserve(600, 0.0)
    database = budgets.database
    del budgets
    gc.collect()
    database.close()  # waits for what was submitted
    other = machine.start("other")
    assert counter_of(other).left(0.0) == 400
    machine.elapsed_s += WINDOW_S + 1
    assert counter_of(other).left(0.0) == 1000
    other.close()


# ---------------------------------------------------------------------- the file fails


@pytest.mark.real
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_reservations_to_its_parent(tmp_path):
    budgets = SharedBudgets(tmp_path / "state.sqlite3")
    counter = counter_of(budgets)
    mine = counter.reserve(300, 0.0)
    pid = os.fork()
    if not pid:
        try:
            held = [os.path.realpath(path) for path in Path("/proc/self/fd").glob("*")]
            assert str(tmp_path / "state.sqlite3") not in held
            counter.settle(mine, 0, 0.0)
            assert counter.left(0.0) == 700
            theirs = counter.reserve(200, 0.0)
            assert theirs
            assert counter.left(0.0) == 500
            os.kill(os.getpid(), signal.SIGKILL)  # while its reservation is open
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert counter.left(0.0) == 500
    assert counter.reserve(501, 0.0) is None
    counter.settle(mine, 100, 0.0)
    assert counter.left(0.0) == 700
    budgets.close()


@pytest.mark.real
def test_a_process_lives_until_it_is_killed_also_before_its_parent_has_noticed():
    assert processes.is_alive(processes.this_process())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    boot, space, *_ = processes.this_process().split("/")
    name = f"{boot}/{space}/{child.pid}/{processes._start_of(child.pid)}"
    assert processes.is_alive(name)
    assert processes.is_alive(name + "0") is False  # its number is used again
    assert processes.is_alive("another boot" + name) is False
    assert processes.is_alive(f"{boot}/{space}/{child.pid}/") is None  # its start could not be read
    if space:
        assert processes.is_alive(f"{boot}/another container/{child.pid}/1") is None
    child.kill()
    while processes._start_of(child.pid):  # until the kernel has done it
        pass
    assert processes.is_alive(name) is False
    child.communicate()
    assert processes.is_alive(name) is False
