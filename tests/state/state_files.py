"""What the tests of the state file do to one: a row of it, and a forked process that uses it."""

from __future__ import annotations

import os

from disco.state import Database

__all__ = ["ADD", "add", "in_child", "kinds"]

ADD = "INSERT INTO series (kind, endpoint, address, model) VALUES (?, '', '', '')"


def add(kind: str):
    return lambda connection: connection.execute(ADD, (kind,))


def kinds(database: Database) -> list[str] | None:
    return database.read(
        lambda c: [kind for (kind,) in c.execute("SELECT kind FROM series ORDER BY id")], None
    )


def in_child(work) -> int:
    """The exit status of a forked process that does this and nothing else."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(work() or 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
