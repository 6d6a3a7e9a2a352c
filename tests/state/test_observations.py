"""The newest observations of each kind are kept, and fewer count the older they are."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.state.facts import MOST_FACTS, prune_facts, put_fact, read_facts
from disco.state.observations import (
    EVERYONE,
    HALVED_AFTER_S,
    KEPT,
    OLDEST_S,
    Observation,
    Subject,
    append_observations,
    counting,
    observations_since,
    prune_series,
    read_observations,
)
from disco.state.schema import MIGRATIONS

SERVER = Subject("server", "localhost:80", "m")
NOW = 2_000_000_000.0
DAY_S = 86_400.0


@pytest.fixture
def file():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    for script in MIGRATIONS:
        connection.executescript(script)
    return connection


def of(subject: Subject, *values: float, kind: str = "ttft_s", at: float = NOW):
    return [(subject, Observation(kind, at, value)) for value in values]


def values_of(found) -> list[float]:
    return [one.value for _, one in found.observations]


def test_what_one_writer_adds_others_read_once_and_in_order(file):
    other = SERVER._replace(address="localhost:81")
    append_observations(
        file, 1, of(SERVER, 1.0, 2.0) + of(other, 9.0) + of(EVERYONE, 3.0, kind="answer_tokens")
    )
    append_observations(file, 2, of(SERVER, 4.0, kind="ttft_above_s") + of(SERVER, 5.0))
    assert values_of(read_observations(file, [SERVER], 3)) == [1.0, 2.0, 4.0, 5.0]
    assert values_of(read_observations(file, [SERVER], 2)) == [1.0, 2.0]
    first = read_observations(file, [other, EVERYONE], 3)
    assert values_of(first) == [9.0, 3.0]
    append_observations(file, 2, of(SERVER, 6.0) + of(other, 7.0))
    append_observations(file, 3, of(SERVER, 8.0))
    news = observations_since(file, first.newest, {SERVER}, 3)
    assert values_of(news) == [6.0]
    assert values_of(observations_since(file, news.newest, {SERVER, other}, 1)) == []


def test_the_newest_are_kept_of_each_kind_and_subject(file):
    append_observations(file, 1, of(SERVER, *range(KEPT + 40)) + of(SERVER, 7.0, kind="turn_s"))
    assert values_of(read_observations(file, [SERVER], 0)) == [*range(40, KEPT + 40), 7.0]


def test_what_is_no_number_or_no_name_is_not_kept(file):
    bad = [float("nan"), float("inf")]
    named = [Subject("server", "", name) for name in ("x" * 201, "a\nb", "\x1b[31m", "\ud800")]
    append_observations(
        file, 1, of(SERVER, *bad, 1.0) + [one for subject in named for one in of(subject, 1.0)]
    )
    assert file.execute("SELECT count(*) FROM observations").fetchone()[0] == 1
    file.execute("UPDATE observations SET value = 'much'")
    assert values_of(read_observations(file, [SERVER], 0)) == []


def test_what_is_old_or_too_much_goes(file, monkeypatch):
    def models() -> list[str]:
        return [model for (model,) in file.execute("SELECT model FROM series ORDER BY id")]

    monkeypatch.setattr("disco.state.observations.MOST_SERIES", 8)
    for number in range(30):  # no program is started meanwhile, which would prune the file
        append_observations(file, 1, of(Subject("server", "", str(number)), 1.0, at=NOW))
        assert len(models()) <= 8
        assert models()[-1] == str(number)
    append_observations(file, 1, of(SERVER, 1.0, at=NOW - OLDEST_S - 1.0))
    prune_series(file, NOW)
    assert models() == [str(number) for number in range(30 - len(models()), 30)]
    assert file.execute("SELECT count(*) FROM observations").fetchone()[0] == len(models()) >= 6
    for number in range(MOST_FACTS + 10):
        put_fact(file, "verdict", (str(number),), {"method": "none"}, NOW + number)
        assert file.execute("SELECT count(*) FROM facts").fetchone()[0] <= MOST_FACTS
    put_fact(file, "verdict", ("new",), {"method": "flags"}, NOW + 9e5)
    put_fact(file, "verdict", ("new",), {"method": "prefix"}, NOW + 9e5)
    prune_facts(file, "verdict", NOW)
    facts = read_facts(file, "verdict")
    assert len(facts) == MOST_FACTS
    assert facts[-1] == (("new",), {"method": "prefix"}, NOW + 9e5)


ages = st.lists(st.floats(-DAY_S, 40 * DAY_S), max_size=1200)


@given(ages_s=ages, kinds=st.sampled_from([("a",), ("a", "b")]), later_s=st.floats(0.0, 10 * DAY_S))
def test_old_ones_count_less_and_a_day_later_fewer_do(ages_s, kinds, later_s):
    given_ = [
        Observation(kinds[i % len(kinds)], NOW - age, i) for i, age in enumerate(sorted(ages_s, reverse=True))
    ]
    now, later = counting(given_, NOW), counting(given_, NOW + later_s)
    assert [one.value for one in now] == sorted(one.value for one in now)
    assert set(later) <= set(now) <= set(given_)
    for kind in kinds:
        mine = [one for one in now if one.kind == kind]
        assert len(mine) <= KEPT
        if mine:  # none that is newer was left out
            assert mine == [one for one in given_ if one.kind == kind][-len(mine) :]


def test_how_many_count_by_age():
    def count(age_s: float) -> int:
        return len(counting([Observation("a", NOW - age_s, i) for i in range(600)], NOW))

    assert [count(a * HALVED_AFTER_S) for a in (0, 1, 2, 4)] == [KEPT, KEPT // 2, KEPT // 4, KEPT // 16]
    assert count(-5 * DAY_S) == KEPT  # the clock was set back
    assert count(OLDEST_S) == 0
