"""Budgets by the calendar: they begin anew with each period in UTC, for all programs at once, and never before."""

from __future__ import annotations

import calendar
import datetime as dt
import logging
import os
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from defects.asking import client, create, preset
from faults.in_memory import MemoryServer, Reply
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import chunk, sse, usage
from state.tally_machine import Machine, counter_of, tokens

from disco.cli import main
from disco.cost.budget_limiter import Limit, WindowCounter
from disco.cost.windows import PERIODS, freed_at, gone_until, piece_of
from disco.errors import BudgetExceededError
from disco.state.schema import MIGRATIONS

pytestmark = pytest.mark.anyio

REPLY = Reply([sse(*(chunk(f"word{i} ") for i in range(40)), chunk(finish="stop"), usage(12, 40))])
UNIX = st.floats(-1e9, 1e11).map(lambda at: round(at, 6))  # clocks tell no less than a microsecond


@pytest.fixture
def anyio_backend() -> str:
    """In real time: what is learnt is read in threads, for which no virtual clock waits."""
    return "asyncio"


def unix(text: str) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "state.sqlite3", offset_s=unix("2026-11-29 12:00"))


def per(period: str, amount: int = 1000, account: str = "") -> Limit:
    return replace(tokens(amount, account), window=period)


@given(UNIX, st.sampled_from(PERIODS))
def test_a_period_holds_its_times_and_ends_where_the_next_begins(at, period):
    piece = piece_of(period, at)
    assert gone_until(period, at) == piece - 1
    end = freed_at(period, piece)
    assert end > at >= freed_at(period, piece - 1)
    assert piece_of(period, end) == piece + 1
    begin = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=end)
    assert (begin.minute, begin.second, begin.microsecond) == (0, 0, 0)
    assert period == "hour" or begin.hour == 0
    assert period != "week" or begin.weekday() == calendar.MONDAY
    assert period != "month" or begin.day == 1


@given(
    st.sampled_from(PERIODS),
    st.lists(st.tuples(st.integers(1, 600), st.floats(0, 3), st.floats(0, 2), st.floats(0, 1))),
)
def test_all_that_ran_within_a_period_cost_no_more_than_the_limit(period, jobs):
    """Jobs as (reserved, pause before it, time that it runs, share of it spent); times in lengths of a period."""
    length_s = {"hour": 3600, "day": 86_400, "week": 604_800, "month": 2_629_746}[period]
    counter, now, running, ran = WindowCounter(per(period)), 1.8e9, [], []
    for units, pause, runs, share in [*jobs, (1, 10, 0, 0)]:
        now += pause * length_s
        for job in sorted(job for job in running if job[0] <= now):
            running.remove(job)
            counter.settle(job[1], job[2], job[0])
        ticket = counter.reserve(units, now)
        if ticket is not None:
            cost = int(units * share)
            running.append((now + runs * length_s, ticket, cost))
            ran.append((piece_of(period, now), piece_of(period, now + runs * length_s), cost))
    for piece in {piece for job in ran for piece in job[:2]}:
        assert sum(cost for first, last, cost in ran if first <= piece <= last) <= 1000


def test_a_month_ends_at_midnight_in_utc_for_all_programs_wherever_they_are(machine, monkeypatch):
    one, two = machine.start("one"), machine.start("two")
    counter = counter_of(one, per("month"))
    counter.settle(counter.reserve(700, 0.0), 700, 0.0)
    try:
        for zone in ("America/Los_Angeles", "Pacific/Kiritimati", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert counter_of(two, per("month")).left(0.0) == 300
            assert counter_of(two, per("month", 800)).left(0.0) == 100  # another mark on the same count
            assert counter_of(two, per("day")).left(0.0) == 1000  # another count
            assert counter.frees_at(400, 0.0) == pytest.approx(36 * 3600.0)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    machine.elapsed_s += 36 * 3600.0 - 1
    assert counter_of(two, per("month")).left(0.0) == 300
    machine.elapsed_s += 1
    assert counter.left(0.0) == counter_of(two, per("month")).left(0.0) == 1000
    one.close()
    two.close()


def test_what_runs_on_into_the_next_month_counts_there_and_a_kill_frees_nothing(machine):
    one = machine.start("one")
    machine.elapsed_s += 36 * 3600.0 - 5
    running = counter_of(one, per("month"))
    ticket = running.reserve(600, 0.0)
    machine.elapsed_s += 10
    assert running.left(0.0) == 400
    running.settle(ticket, 500, 0.0)
    assert running.left(0.0) == 500
    assert running.reserve(100, 0.0)
    machine.kill("one", one)
    two = machine.start("two")
    left = counter_of(two, per("month"))
    assert left.reserve(1, 0.0)
    assert left.left(0.0) == 399
    two.close()


def test_a_clock_that_is_set_back_to_the_last_month_frees_nothing(machine):
    one = machine.start("one")
    counter = counter_of(one, per("month"))
    counter.settle(counter.reserve(700, 0.0), 700, 0.0)
    machine.offset_s -= 40 * 86_400.0
    assert counter_of(machine.start("two"), per("month")).left(0.0) == 300
    one.close()


def test_a_program_goes_on_with_what_it_knows_of_the_month_where_the_file_fails(machine):
    one, two = machine.start("one"), machine.start("two")
    counter, other = counter_of(one, per("month")), counter_of(two, per("month"))
    other.settle(other.reserve(300, 0.0), 300, 0.0)
    counter.settle(counter.reserve(200, 0.0), 200, 0.0)
    two.close()
    one.database.close()
    machine.path.unlink()
    machine.path.mkdir()
    assert counter.left(0.0) == 500
    assert counter.frees_at(600, 0.0) == pytest.approx(36 * 3600.0)
    machine.elapsed_s += 36 * 3600.0
    assert counter.left(0.0) == 1000


def test_a_file_of_before_keeps_what_was_spent_in_its_sliding_windows(tmp_path, machine):
    with sqlite3.connect(machine.path) as old:
        old.executescript(MIGRATIONS[0])
        old.execute(f"PRAGMA application_id = {0x64_73_63_6F}")
        old.execute("PRAGMA user_version = 1")
        limit = tokens()
        old.execute("INSERT INTO budgets VALUES (1, '', 'server', 'tokens', ?)", (limit.window,))
        now = piece_of(limit.window, machine.offset_s)
        old.execute("INSERT INTO budget_spent VALUES (1, ?, 650)", (now,))
    old.close()
    machine.path.chmod(0o600)
    budgets = machine.start("one")
    counter = counter_of(budgets)
    assert counter.left(0.0) == 350
    assert counter.reserve(351, 0.0) is None
    assert counter.reserve(350, 0.0)
    budgets.close()


# ------------------------------------------------------------------ what people are told


def paid(path, account: str = "", **more):
    budget = {"usd": 0.0001, "per": "month", **({"account": account} if account else {})}
    settings = {"policy": preset("server_only"), "price": (0.15, 0.60), "state": path}
    return client(MemoryServer(REPLY), budget=budget, **settings, **more)


async def refusal(one) -> BudgetExceededError:
    with pytest.raises(BudgetExceededError) as refused:  # noqa: PT012
        for _ in range(20):
            await create(one, max_tokens=40)
    return refused.value


async def test_a_refusal_is_in_words_that_people_use_and_says_whose_budget_it_is(tmp_path):
    async with paid(False) as alone, paid(tmp_path / "s") as shared, paid(tmp_path / "s", "shop") as shop:
        told = str(await refusal(alone))
        assert "left of 0.00010 $ this month (until 1 " in told
        assert "e-0" not in told
        assert "e+0" not in told
        assert "Only this program spends it." in told
        error = await refusal(shared)
        assert "All programs of this user whose budget names no account spend it together" in str(error)
        assert '"account": "my-app"' in str(error)
        assert error.account == ""
        error = await refusal(shop)
        assert "with the account 'shop' spend it together" in str(error)
        assert error.account == "shop"
        assert shop.router.budgets_left()["usd"]["per"] == "month"


async def test_what_a_test_suite_spends_of_the_budget_without_an_account_is_no_surprise(
    tmp_path, caplog, capsys, monkeypatch
):
    """Its name is in a warning at the first request, in the refusal and in `disco state show`."""
    path, suite = tmp_path / "state.sqlite3", tmp_path / "suite" / "checks.py"
    suite.parent.mkdir()
    suite.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from disco.cost.budget_limiter import Limit\n"
        "from disco.state import limiter_of\n"
        "limiter = limiter_of(Path(sys.argv[1]))\n"
        "for account in ('', 'shop'):\n"
        "    counter = limiter.counter(Limit('usd', 'server', 'usd', 1.0, 'month', account))\n"
        "    counter.settle(counter.reserve(counter.units(0.00005), 0.0), counter.units(0.00005), 0.0)\n"
        "limiter.close()\n"
    )
    root = Path(__file__).parents[2]
    await anyio.run_process(
        [sys.executable, str(suite), str(path)], env={**os.environ, "PYTHONPATH": str(root)}, cwd=tmp_path
    )
    with caplog.at_level(logging.WARNING, "disco"):
        async with paid(path, "shop") as shop:
            error = await refusal(shop)
        assert not [r for r in caplog.records if "checks.py" in r.getMessage()]
        assert "lately also checks.py in" in str(error)
        async with paid(path) as one, paid(path) as two:
            for either in (one, two):
                error = await refusal(either)
                assert f"lately also checks.py in {suite.parent}" in str(error)
    (told,) = [r.getMessage() for r in caplog.records if "checks.py" in r.getMessage()]
    assert '"account": "my-app"' in told
    monkeypatch.setenv("DISCO_STATE", str(path))
    capsys.readouterr()
    assert main(["state", "show"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "checks.py in" in printed
    assert "this month (until 1" in printed
    assert "(none): all programs of this user" in printed
