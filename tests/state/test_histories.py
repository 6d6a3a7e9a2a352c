"""Histories of scores in the state file: every program adds its own, and what is read is what was judged."""

from __future__ import annotations

import random

import pytest

from disco.judging import HistoryKey, JudgeBook
from disco.state import Database
from disco.state.histories import StateHistories, prune_histories

KEY = HistoryKey("triage", "device/m", "weakest")
CLASSES = ("yes", "no")


class Program:
    """A book and its store, as a client has them."""

    def __init__(self, path) -> None:
        self.database = Database(path)
        self.store = StateHistories(self.database)
        self.book = JudgeBook(self.store)
        self.store.begin_from(self.book.restore(self.database.read(self.store.read, {})))

    def save(self) -> None:
        self.store.save(self.book.unsaved())
        self.database.flush()


@pytest.fixture
def program(tmp_path):
    made = []

    def start() -> Program:
        made.append(Program(tmp_path / "state.sqlite3"))
        return made[-1]

    yield start
    for one in made:
        one.database.close()


def test_two_programs_lose_no_score_of_each_other(program):
    one, other = program(), program()
    for number in range(30):
        (one if number % 3 else other).book.history(KEY, 1000).push(float(number))
        if number % 7 == 0:
            one.save()
            other.save()
    one.save()
    other.save()
    history = program().book.history(KEY, 1000)
    assert sorted(history) == list(map(float, range(30)))
    assert history.seen == 30
    small = program().book.history(KEY, 10)
    assert (len(small), small.seen) == (10, 30)


def test_what_is_added_to_a_history_that_was_read_is_added_once(program):
    for turn in range(4):
        one = program()
        history = one.book.history(KEY, 5)  # a window shorter than what is kept
        assert history.seen == 8 * turn
        for number in range(8):
            history.push(turn + number / 10)
        one.save()
        one.save()
    assert program().book.history(KEY, 1000).seen == 32
    assert len(program().book.history(KEY, 1000)) == 5 * 4  # of what was pushed, a window had so many


def test_early_exits_are_the_same_afterwards(program):
    rng = random.Random(3)
    one = program()
    exits = one.book.exits(KEY, "weakest", 1000)
    for turn in range(400):
        watch = exits.watch(0.3, seed=turn)
        for _ in range(6):
            if watch.add([rng.uniform(-3.0, 0.0)]):
                break
        watch.end()
        if turn % 10 == 0:
            one.save()
    one.save()
    again = program().book.exits(KEY, "weakest", 1000)
    assert exits.exits
    assert (again.exits, list(again.scores), again.scores.seen) == (
        exits.exits,
        list(exits.scores),
        exits.scores.seen,
    )


def test_label_scores_are_kept_while_the_classes_are_the_same(program):
    one = program()
    prior = one.book.prior(KEY, CLASSES, 1000)
    for number in range(5):
        one.book.history(KEY, 1000).push(float(number))
        prior.push((float(number), -float(number)))
        one.save()
    again = program()
    again.book.history(KEY, 1000)
    assert list(again.book.prior(KEY, CLASSES, 1000)) == [(float(n), -float(n)) for n in range(5)]
    changed = again.book.prior(KEY, ("yes", "maybe"), 1000)
    changed.push((1.0, -1.0))
    again.book.history(KEY, 1000).push(9.0)
    again.save()
    last = program()
    last.book.history(KEY, 1000)
    assert list(last.book.prior(KEY, ("yes", "maybe"), 1000)) == [(1.0, -1.0)]


def test_odd_names_are_not_kept_and_old_histories_go(program, monkeypatch):
    one = program()
    for number in range(4):
        one.book.history(KEY._replace(task=f"task {number}"), 10).push(1.0)
    one.book.history(KEY._replace(task="x" * 300), 10).push(1.0)
    one.save()
    assert len(one.database.read(one.store.read, {})) == 4
    monkeypatch.setattr("disco.state.histories.MOST_HISTORIES", 2)
    one.book.history(KEY._replace(task="task 9"), 10).push(1.0)
    monkeypatch.setattr("time.time", lambda: 1.0)  # a clock that was set back
    one.save()
    found = one.database.read(one.store.read, {})
    assert (len(found), KEY._replace(task="task 9") in found) == (2, True)
    one.database.write(lambda c: prune_histories(c, 4e9), None)
    assert one.database.read(one.store.read, {}) == {}
