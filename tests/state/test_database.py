"""The state file: what was committed stays, and whatever is wrong with the file costs one warning and no answer."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from state.state_files import ADD, add, in_child, kinds

from disco import ConfigurationError
from disco.state import Database, state_path
from disco.state.schema import MIGRATIONS, check_ours

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "folder" / "state.sqlite3"


@pytest.fixture
def warnings(caplog):
    """Returns the texts of the warnings of disco so far."""
    caplog.set_level(logging.WARNING, "disco")
    return lambda: caplog.messages


def test_what_is_written_is_read_by_other_connections_and_by_the_user_alone(path):
    one, other = Database(path), Database(path)
    assert one.write(add("a"), None) is not None
    assert kinds(other) == ["a"]
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    one.close()
    other.close()
    assert [file.name for file in path.parent.iterdir()] == ["state.sqlite3"]
    path.chmod(0o644)
    again = Database(path)
    assert kinds(again) == ["a"]  # makes the files beside it with the permissions that it has
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    again.close()


def test_work_is_all_done_or_not_at_all(path):
    database = Database(path)

    def half(connection):
        add("a")(connection)
        add("a")(connection)  # which is there already

    assert database.write(half, "failed") == "failed"
    assert kinds(database) == []


def test_what_is_submitted_is_done_in_order_and_bad_work_harms_nothing_else(path, caplog):
    database = Database(path)

    def broken(connection):
        raise ZeroDivisionError

    for number in range(50):
        database.submit(add(str(number)))
        if number % 10 == 0:
            database.submit(add("0"))  # refused, the first one apart
    database.flush()
    database.submit(broken)
    assert database.flush()
    database.submit(add("last"))
    database.close()
    found = kinds(database)
    assert found == [*map(str, range(50)), "last"]
    assert "ZeroDivisionError" in caplog.text


BAD = {
    "random bytes": os.urandom(9000),
    "a text": b"Dear diary, ...\n" * 300,
    "the beginning of a database": b"SQLite format 3\0" + b"\0" * 40,
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_broken_file_costs_one_warning_and_is_left_alone(path, warnings, content):
    path.parent.mkdir()
    path.write_bytes(content)
    database = Database(path)
    assert [database.read(len, "default"), database.write(len, "default")] == ["default"] * 2
    database.submit(add("a"))
    database.close()
    assert path.read_bytes() == content
    (warning,) = warnings()
    assert "is damaged or no state file" in warning
    assert f"disco state forget --all --state {path}" in warning
    assert not database.is_usable


def test_a_damaged_row_costs_one_warning_and_a_defect_is_not_taken_for_damage(path, warnings):
    database = Database(path)
    assert database.write(add("a"), None) is not None
    with pytest.raises(ZeroDivisionError):
        database.read(lambda _connection: 1 / 0, None)
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'kind TEXT NOT NULL', 'kind TEXT')")
    connection.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE series SET kind = NULL")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'kind TEXT', 'kind TEXT NOT NULL')")
    connection.close()
    assert database.read(lambda c: len(c.execute("SELECT kind FROM series").fetchone()[0]), None) is None
    (warning,) = warnings()
    assert "is damaged" in warning


def test_a_program_goes_on_with_the_file_that_takes_the_place_of_a_broken_one(path, warnings):
    path.parent.mkdir()
    path.write_bytes(b"no database" * 1000)
    database = Database(path)
    assert kinds(database) is None
    path.unlink()  # as the warning says
    assert kinds(database) == []
    database.submit(add("a"))
    database.close()
    assert kinds(Database(path)) == ["a"]
    path.write_bytes(b"no database" * 1000)
    assert kinds(Database(path)) is None
    assert len(warnings()) == 1  # also where the connection that warned is gone


def test_a_truncated_file_costs_one_warning(path, warnings):
    database = Database(path)
    for number in range(3000):
        database.submit(add(f"kind number {number}"))
    database.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    again = Database(path)
    assert kinds(again) is None
    again.submit(add("a"))
    again.close()
    assert len(warnings()) == 1
    path.write_bytes(b"")  # of nothing, nothing is lost
    assert kinds(Database(path)) == []


def test_another_programs_database_and_a_later_version_are_left_alone(path, warnings):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE contacts (name)")
    other.commit()
    before = path.read_bytes()
    assert kinds(Database(path)) is None
    assert path.read_bytes() == before
    later = path.with_name("later")
    assert kinds(Database(later)) == []
    with sqlite3.connect(later) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    assert kinds(Database(later)) is None
    assert ["another program" in warnings()[0], "later version of disco" in warnings()[1]] == [True, True]


def test_a_file_that_another_process_makes_at_this_moment_is_ours(path):
    path.parent.mkdir()
    path.touch()
    connection = sqlite3.connect(path, isolation_level=None)
    made = []

    def make(statement: str) -> None:
        if "sqlite_master" in statement and not made:  # between two looks at the file
            made.append(Database(path, warns=False).write(add("a"), None))

    connection.set_trace_callback(make)
    check_ours(connection)
    assert made
    connection.close()


def test_another_process_may_make_the_folder_at_this_moment(path, monkeypatch, warnings):
    path.parent.mkdir()
    monkeypatch.setattr(Path, "exists", lambda _path: False)  # as it was a moment ago
    assert kinds(Database(path)) == []
    assert warnings() == []


def test_where_no_thread_may_start_the_work_is_done_by_who_waits_for_it(path, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    database = Database(path)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        database.submit(add("a"))
        database.submit(add("b"))
        assert database.flush()
        database.submit(add("c"))
    database.submit(add("d"))
    database.close()
    assert kinds(database) == ["a", "b", "c", "d"]


def test_a_locked_file_costs_one_warning_and_the_work_waits(path, warnings):
    database = Database(path)
    assert kinds(database) == []
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    started_at = time.monotonic()
    for number in range(3):
        database.submit(add(str(number)))
    assert time.monotonic() - started_at < 0.2  # nobody waits for the file
    assert database.write(add("now"), "default") == "default"
    assert kinds(database) == []  # reading goes on
    other.rollback()
    database.close()
    assert kinds(database) == ["0", "1", "2"]
    assert len(warnings()) == 1
    assert "keeps it locked" in warnings()[0]


def test_opening_a_locked_file_waits_no_longer_than_using_it(path, warnings):
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    started_at = time.monotonic()
    assert kinds(Database(path)) is None
    assert time.monotonic() - started_at < 3.0  # a quarter of a second, where nothing else runs
    assert len(warnings()) == 1
    other.close()


def test_a_file_that_stays_locked_does_not_hold_up_the_end(path, warnings):
    database = Database(path)
    assert kinds(database) == []
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    for number in range(100):
        database.submit(add(str(number)))
    started_at = time.monotonic()
    assert not database.flush(0.3)  # what it was locked for is given up
    database.submit(add("and more"))
    database.close()
    assert time.monotonic() - started_at < 10.0
    other.close()
    assert kinds(database) == []
    assert len(warnings()) == 1


def test_a_fork_begins_anew_and_harms_neither(path):
    database = Database(path)
    database.submit(add("parent"))
    database.flush()
    with database._lock:  # as if another thread wrote at that moment

        def child() -> int:
            database.submit(add("child"))
            database.close()
            return 0 if kinds(database) == ["parent", "child"] else 1

        status = in_child(child)
    assert status == 0
    assert database.write(add("again"), None) is not None
    assert kinds(database) == ["parent", "child", "again"]


def test_threads_share_a_connection(path):
    database = Database(path)

    def work(name: str) -> None:
        for number in range(20):
            database.submit(add(f"{name}{number}")) if number % 2 else database.write(
                add(f"{name}{number}"), None
            )

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.close()
    assert len(kinds(database)) == 80


def test_a_file_that_was_deleted_is_made_anew(path):
    database = Database(path)
    database.write(add("a"), None)
    for file in path.parent.iterdir():
        file.unlink()
    assert kinds(database) == []
    database.write(add("b"), None)
    assert kinds(Database(path)) == ["b"]


def test_a_file_that_was_deleted_alone_is_made_anew_though_another_program_has_it_open(path, warnings):
    Database(path).write(add("a"), None)
    reads, writes = os.pipe()

    def child() -> None:
        other = Database(path)
        other.write(add("b"), None)
        os.write(writes, b".")
        time.sleep(600.0)  # it does not look at the file again

    number = os.fork()
    if number == 0:
        try:
            child()
        finally:
            os._exit(1)
    try:
        assert os.read(reads, 1) == b"."
        path.unlink()
        database = Database(path)
        assert database.write(add("c"), None) is not None
        assert kinds(database) == ["c"]
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    assert warnings() == []
    assert kinds(Database(path)) == ["c"]


def test_nothing_is_lost_of_a_program_that_ends_without_closing(path):
    Database(path).write(add("a"), None)
    program = f"import pathlib; from disco.state import Database; d = Database(pathlib.Path({str(path)!r}))"
    program += f"; d.submit(lambda c: c.execute({ADD!r}, ('b',)))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    assert kinds(Database(path)) == ["a", "b"]


# ------------------------------------------------------------------ which file


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("DISCO_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_path() == state_path(True) == tmp_path / "disco" / "state.sqlite3"
    assert state_path(False) is None
    assert state_path("~/mine") == Path("~/mine").expanduser()
    for value, found in {"off": None, " OFF ": None, "0": None, str(tmp_path / "x"): tmp_path / "x"}.items():
        monkeypatch.setenv("DISCO_STATE", value)
        assert state_path() == found
        assert state_path(tmp_path / "y") == tmp_path / "y"
    assert state_path("off") is None  # and no file of this name
    monkeypatch.setenv("DISCO_STATE", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"DISCO_STATE=.* is not the path of a file"):
        state_path()
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    mode = Path("/dev/null").stat().st_mode
    for wrong in ("", tmp_path, "~nobody-has-this-name/x", "/dev/null", tmp_path / "pipe", link):
        with pytest.raises(ConfigurationError, match="is not the path of a file"):
            state_path(wrong)
    assert Path("/dev/null").stat().st_mode == mode


def test_a_file_that_becomes_a_device_is_left_as_it_is(path, warnings):
    database = Database(path)
    path.parent.mkdir()
    path.symlink_to("/dev/null")
    mode = Path("/dev/null").stat().st_mode
    assert database.read(len, "default") == "default"
    assert Path("/dev/null").stat().st_mode == mode
    assert "no regular file" in warnings()[0]


def test_a_user_without_a_home_has_no_file(monkeypatch):
    for name in ("DISCO_STATE", "HOME", "XDG_STATE_HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert state_path() is None
