"""A state file on a disk that is full or does not answer, and in a folder where nothing may be written."""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import threading
from pathlib import Path

import pytest
from state.state_files import ADD, add, in_child, kinds

from disco.state import Database
from disco.state.write_queue import MOST_WAITING, WriteQueue


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "folder" / "state.sqlite3"


@pytest.fixture
def warnings(caplog):
    """Returns the texts of the warnings of disco so far."""
    caplog.set_level(logging.WARNING, "disco")
    return lambda: caplog.messages


def test_work_for_a_disk_that_does_not_answer_does_not_gather_without_end():
    answers = threading.Event()
    done: list[object] = []

    def write(works):
        assert answers.wait(60.0)
        done.extend(works)
        return True

    queue = WriteQueue(write)
    for number in range(3 * MOST_WAITING):
        queue.put(number)  # type: ignore[arg-type] # nobody calls it
    assert len(queue._waiting) <= MOST_WAITING
    answers.set()
    assert queue.finish(60.0)
    assert done[-1] == 3 * MOST_WAITING - 1  # the newest are kept


def test_the_garbage_collector_may_hand_in_work_while_the_queue_is_busy():
    done: list[object] = []
    queue = WriteQueue(lambda works: done.extend(works) is None)

    def collect() -> None:
        with queue._changed:  # as in `put` and in the thread, where an allocation may run it
            queue.put("what is gone")  # type: ignore[arg-type] # nobody calls it

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()
    assert queue.finish(30.0)
    assert done == ["what is gone"]


def as_nobody() -> None:
    """Root may write everywhere."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="rights are another matter there")
@pytest.mark.parametrize("what", ["a file", "a folder", "no folder", "another user's"])
def test_where_nothing_may_be_written_there_is_one_warning(what, caplog):
    caplog.set_level(logging.WARNING, "disco")
    is_root = os.geteuid() == 0
    if what == "another user's" and not is_root:
        pytest.skip("there is no other user here")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "state.sqlite3"
        if what == "no folder":
            path = folder / "missing" / "state.sqlite3"
        else:
            made = Database(path)
            made.write(add("a"), None)
            made.close()
            path.chmod(0o444 if what == "a file" else 0o644)
        if is_root and what in ("a file", "a folder"):
            for one in (path, folder):
                os.chown(one, 65534, 65534)
        if what in ("a folder", "no folder"):
            folder.chmod(0o555)

        def child() -> int:
            as_nobody()
            caplog.records.clear()
            database = Database(path)
            done = database.write(add("x"), "default")
            database.submit(add("y"))
            database.close()
            return 0 if done == "default" and len(caplog.records) == 1 else 1

        assert in_child(child) == 0
        folder.chmod(0o755)


def test_a_full_disk_costs_one_warning_and_what_was_committed_stays(path, caplog):
    caplog.set_level(logging.WARNING, "disco")
    Database(path).write(add("a"), None)

    def child() -> int:
        database = Database(path)
        kinds(database)
        del caplog.records[:]
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))  # the -wal file grows up to that
        for number in range(60):
            database.write(
                lambda c, n=number: c.executemany(ADD, [(f"{n} {i} " + "x" * 400,) for i in range(8)]), 0
            )
        database.close()
        return 0 if len(caplog.records) == 1 else 1

    assert in_child(child) == 0
    found = kinds(Database(path))
    assert found is not None
    assert found[0] == "a"


def test_the_file_cannot_grow_without_end(path, warnings, monkeypatch):
    monkeypatch.setattr("disco.state.database._MOST_PAGES", 40)
    database = Database(path)
    for number in range(60):
        database.write(lambda c, n=number: c.execute(ADD, (f"{n} " + "x" * 3_000,)), None)
    assert 5 < len(kinds(database)) < 40
    assert len(warnings()) == 1
    assert "full" in warnings()[0]
