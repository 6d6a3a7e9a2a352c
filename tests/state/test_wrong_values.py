"""One wrong value in a sound state file: SQLite keeps any value in any column, and no answer may be lost for it."""

from __future__ import annotations

import shutil
import sqlite3
import time

import pytest
from defects.asking import client, create, device
from faults.in_memory import MemoryServer, anyio_backend, spoken  # noqa: F401 - a fixture

from disco.cli import main
from disco.judging import HistoryKey, StoredHistory
from disco.state import Database
from disco.state.facts import put_fact
from disco.state.histories import StateHistories

WRONG = [1e300, -1, "text", "\x1b[31mred"]
BREAKER = {"why": "server", "failures": 2, "level": 1, "rest_s": 30.0, "until": time.time() + 20}


def asker(path):
    server = MemoryServer(spoken(["Salt."]))
    return client(
        server, local=device(), policy="fast", state=path, budget={"server_tokens": 10**6, "per": "day"}
    )


@pytest.fixture
async def learnt(tmp_path):
    """A file of a program that has asked, judged and spent, and cools a server down."""
    path = tmp_path / "sound.sqlite3"
    async with asker(path) as one:
        await create(one)
        assert one.router.database.flush()
    database, now = Database(path), time.time()
    database.write(lambda c: put_fact(c, "breaker", ("server", "api.example:443", ""), BREAKER, now), None)
    scores = StoredHistory((-0.5, -1.5), 2, ((0.1, 0.2),), 2)
    StateHistories(database).save({HistoryKey("triage", "device/m", "weakest"): scores})
    database.write(lambda c: c.execute("INSERT INTO budget_open VALUES (7, 1, 5, 'gone', ?)", (now,)), None)
    database.close()
    return path


def columns(path):
    with sqlite3.connect(path) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%'"
        ).fetchall()
        return [
            (table, row[1])
            for (table,) in tables
            if not table.startswith("sqlite_") and connection.execute(f"SELECT 1 FROM {table}").fetchone()
            for row in connection.execute(f"PRAGMA table_info({table})")
        ]


def with_value(learnt, table, column, value):
    """A copy of the file with this value in every row of the column; None where the column does not take it."""
    path = learnt.with_name(f"{table}-{column}-{WRONG.index(value)}.sqlite3")
    shutil.copy(learnt, path)
    connection = sqlite3.connect(path)
    try:
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        connection.commit()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return path


@pytest.mark.anyio
async def test_no_answer_is_lost_for_one(learnt):
    found = columns(learnt)
    assert len({table for table, _ in found}) >= 9
    for table, column in found:
        for value in WRONG:
            if (path := with_value(learnt, table, column, value)) is not None:
                async with asker(path) as one:
                    assert (await create(one)).choices, (table, column, value)


@pytest.mark.anyio
async def test_the_commands_name_the_damage_and_no_escape_sequence_reaches_the_terminal(learnt, capsys):
    for table, column in columns(learnt):
        for value in WRONG:
            if (path := with_value(learnt, table, column, value)) is not None:
                for command in ("show", "export"):
                    status = main(["state", command, "--state", str(path)])
                    shown = capsys.readouterr()
                    assert status in (0, 2)
                    assert "\x1b" not in shown.out + shown.err, (table, column, value)


def test_a_fact_with_a_short_key_is_shown(tmp_path, capsys):
    path = tmp_path / "state.sqlite3"
    database = Database(path)
    for kind in ("breaker", "verdict"):
        database.write(lambda c, kind=kind: put_fact(c, kind, ("server",), BREAKER, time.time()), None)
    database.close()
    assert main(["state", "show", "--state", str(path)]) == 0
    assert capsys.readouterr().out.count("server") >= 2
