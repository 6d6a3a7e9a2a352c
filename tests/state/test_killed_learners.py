"""`kill -9` at random points of several real programs: what was committed is there, and the file is whole."""

from __future__ import annotations

import json
import random
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest
from forked import FORKS
from state.learning_programs import learn

from disco.state import Database
from disco.state.observations import read_observations

WITHIN_S = 300.0

pytestmark = pytest.mark.real


def noted_lines(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


def run_and_kill(path: Path, folder: Path, *, programs: int, answers: int, kills: int, seed: int) -> int:
    """Let the programs ask and be killed and started again, all at once; return how often one was killed.

    A program that has got all its answers waits for the kills that are left to it, however late they come.
    """
    rng = random.Random(seed)
    killed = 0
    left = {f"program-{number}": kills for number in range(programs)}
    running = {}

    def start(name: str) -> None:
        given = (str(path), name, str(folder / name), answers, rng.getrandbits(30))
        process = FORKS.Process(target=learn, args=given, kwargs={"may_end": not left[name]})
        process.start()
        # Killed after so many notes, or after that time: early, also while it starts, or in the middle.
        notes = len(noted_lines(folder / name)) + rng.randint(1, max(1, answers // 20))
        running[name] = (process, time.monotonic() + rng.expovariate(0.5), notes)

    for name in left:
        start(name)
    until = time.monotonic() + WITHIN_S
    while running:
        assert time.monotonic() < until, "the programs do not come to an end"
        time.sleep(0.002)
        for name, (process, at, notes) in list(running.items()):
            if process.exitcode is not None:
                assert process.exitcode == 0, f"{name} failed"
                assert not left[name]
                del running[name]
            elif left[name] and (time.monotonic() > at or len(noted_lines(folder / name)) >= notes):
                process.kill()
                process.join()
                killed += 1
                left[name] -= 1
                start(name)
    return killed


def check(path: Path, folder: Path, programs: int, answers: int) -> None:
    for number in range(programs):
        notes = [json.loads(line) for line in (folder / f"program-{number}").read_text().splitlines()]
        noted = {note["writer"]: note["answers"] for note in notes}
        assert sum(noted.values()) >= answers
        with closing(sqlite3.connect(path)) as connection:
            for writer, count in noted.items():
                for kind in ("start_s", "turn_s", "decode_tps"):
                    found = connection.execute(
                        "SELECT count(*) FROM observations JOIN series ON series.id = series "
                        "WHERE writer = ? AND kind = ? AND value >= 0.0",
                        (writer, kind),
                    ).fetchone()
                    assert count <= found[0] <= answers, f"committed observations are missing: {kind}"
            scores = "SELECT count(*) FROM scores WHERE history = histories.id"
            seen, kept = connection.execute(
                f"SELECT seen, ({scores}) FROM histories WHERE model = ?", (f"program-{number}",)
            ).fetchone()
            assert seen == kept
            assert seen >= answers - 10 * len(noted)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        series = {tuple(row) for row in connection.execute("SELECT endpoint, address, model FROM series")}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    database = Database(path)
    learnt = database.read(lambda c: read_observations(c, sorted(series), writer=0), None)
    assert learnt is not None
    assert len(learnt.observations) >= 3 * programs * answers
    assert database.fault is None
    database.close()


def test_what_was_committed_survives_kills(tmp_path):
    path = tmp_path / "state.sqlite3"
    killed = run_and_kill(path, tmp_path, programs=2, answers=40, kills=2, seed=random.getrandbits(30))
    assert killed == 4
    check(path, tmp_path, 2, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_four_programs_of_500_requests_each(tmp_path, seed):
    path = tmp_path / "state.sqlite3"
    killed = run_and_kill(path, tmp_path, programs=4, answers=500, kills=8, seed=seed)
    assert killed == 32
    check(path, tmp_path, 4, 500)
