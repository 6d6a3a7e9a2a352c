"""Where the state file cannot be used, a budget holds in each process alone, and what was spent is entered later."""

from __future__ import annotations

import logging
import sqlite3

import pytest
from state.tally_machine import GRAIN_S, WINDOW_S, Machine, counter_of

from disco.state import database as database_module
from disco.state.shared_tally import RETRY_S


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path / "state.sqlite3")


def test_a_locked_file_costs_a_warning_and_what_was_spent_meanwhile_is_entered_later(
    machine, monkeypatch, caplog
):
    """As far as this process knows, the limit holds; the file gets the figures once it can."""
    monkeypatch.setattr(database_module, "BUSY_S", 0.0)
    other, one = machine.start("other"), machine.start("one")
    counter = counter_of(one)
    assert counter_of(other).reserve(200, 0.0)
    before = counter.reserve(100, 0.0)
    lock = sqlite3.connect(machine.path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, "disco"):
        during = counter.reserve(300, 0.0)
        assert during
        assert counter.reserve(401, 0.0) is None
        counter.settle(before, 50, 0.0)
        counter.settle(during, 300, 0.0)
        running = counter.reserve(150, 0.0)
        assert counter.left(0.0) == 1000 - 200 - 50 - 300 - 150
        assert counter.frees_at(400, 1.0) == pytest.approx(1.0 + WINDOW_S, abs=2 * GRAIN_S)
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1
    lock.execute("ROLLBACK")
    assert counter_of(other).left(0.0) == 700  # this process has not tried again yet
    machine.elapsed_s += RETRY_S
    assert counter.left(0.0) == 300
    assert counter_of(other).left(0.0) == 300
    counter.settle(running, 0, 0.0)
    assert counter_of(other).left(0.0) == 450
    lock.execute("BEGIN IMMEDIATE")
    assert counter.reserve(100, 0.0)  # it fails again, and the client closes before it works
    lock.close()
    one.close()
    assert counter_of(other).left(0.0) == 350
    other.close()


@pytest.mark.parametrize("kind", ["garbage", "folder"])
def test_a_broken_file_costs_a_warning_and_the_limit_holds_in_this_process(tmp_path, caplog, kind):
    path = tmp_path / "state.sqlite3"
    if kind == "garbage":
        path.write_bytes(b"no database" * 1000)
    else:
        path = tmp_path / "file" / "state.sqlite3"
        path.parent.write_text("not a folder", encoding="utf-8")
    budgets = Machine(path).start("one")
    counter = counter_of(budgets)
    with caplog.at_level(logging.WARNING, "disco"):
        assert counter.left(0.0) == 1000
        ticket = counter.reserve(700, 0.0)
        assert counter.reserve(301, 0.0) is None
        counter.settle(ticket, 100, 0.0)
        assert counter.left(0.0) == 900
        budgets.close()
    assert len(caplog.records) == 1


def test_what_others_had_spent_counts_for_one_window_without_the_file(machine, monkeypatch):
    monkeypatch.setattr(database_module, "BUSY_S", 0.0)
    other, one = machine.start("other"), machine.start("one")
    theirs, counter = counter_of(other), counter_of(one)
    theirs.settle(theirs.reserve(600, 0.0), 600, 0.0)
    assert counter.left(0.0) == 400
    lock = sqlite3.connect(machine.path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    assert counter.reserve(401, 0.0) is None
    machine.elapsed_s += WINDOW_S
    assert counter.reserve(401, 0.0)
    lock.close()
    other.close()
    one.close()


# ---------------------------------------------------------------------- real processes
