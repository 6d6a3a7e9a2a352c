"""Gives a client what the state file knows, and gives the file what the client learns. The event loop never waits.

At first use, an endpoint's statistics learn the observations that are kept of it, by the way that live answers go.
After each answer, its observations are written, as one transaction, by the database's thread. Now and then the client
reads what other programs have added.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.to_thread

from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics, Statistics, make_room
from disco.client.learnt.history_saving import HistorySaving
from disco.client.learnt.kept_breakers import BREAKER, FORGOTTEN_AFTER_S, KeptBreakers
from disco.client.learnt.kept_verdicts import VERDICT, VERDICTS_LAST_S, KeptVerdicts
from disco.client.learnt.subjects import subject_of
from disco.dispatch.breakers.endpoint_health import Health, HealthWatch
from disco.endpoints.background_tasks import BackgroundTasks
from disco.judging import HistoryKey, HistoryStore, JudgeBook, StoredHistory
from disco.notices import warn
from disco.state.database import Database, Work
from disco.state.facts import Fact, prune_facts, read_facts
from disco.state.histories import StateHistories, prune_histories
from disco.state.observations import (
    EVERYONE,
    Learnt,
    Observation,
    Subject,
    append_observations,
    counting,
    is_storable,
    observations_since,
    prune_series,
    read_observations,
)

if TYPE_CHECKING:
    from disco.client.endpoint_catalog.catalog import CatalogEntry

__all__ = ["LearntState", "store_in"]

READ_WITHIN_S: Final = 1.0
"""How long a request waits for the file at most, seconds."""

AGAIN_AFTER_S: Final = 60.0
"""After this time a file that could not be read is read again, seconds."""

NEWS_EVERY_S: Final = 5.0
"""How often at most a client reads what other programs have learnt, seconds."""


def store_in(database: Database | None, given: HistoryStore | None) -> HistoryStore | None:
    """Return where the histories of scores are kept: where the application says, else in the state file, if any."""
    return given if given is not None or database is None else StateHistories(database)


class _Read(NamedTuple):
    learnt: Learnt
    breakers: list[Fact]
    verdicts: list[Fact]
    histories: dict[HistoryKey, StoredHistory]


class LearntState:
    """What one client and its copies have learnt, and the state file, if there is one.

    Not safe for threads: one event loop uses it. Mutable: every field that is not an argument.

    Attributes:
        writer: the number by which its own observations are known in the file.
    """

    def __init__(
        self,
        database: Database | None,
        store: HistoryStore | None,
        statistics: Statistics,
        health: Health,
        book: JudgeBook,
        host: BackgroundTasks,
        *,
        on_news: Callable[[], None],
    ) -> None:
        """Join the parts of a client; nothing is read yet. `on_news` is called when the statistics have changed."""
        self._database = database
        self._histories = store if isinstance(store, StateHistories) else None
        self._saving = HistorySaving(book, store, host)
        self._statistics, self._book, self._host, self._on_news = statistics, book, host, on_news
        self._breakers = KeptBreakers(health)
        self._verdicts = None if database is None else KeptVerdicts(database)
        self._read: dict[Subject, list[Observation]] = {}  # read, and not learnt yet
        self._told: dict[Subject, EndpointStatistics] = {}  # who learnt what was read
        self._news: list[tuple[Subject, Observation]] = []  # of this process, not written yet
        self._seen = 0  # number of the newest observation that was looked at; -1: none was by this process
        self._read_to: dict[Subject, int] = {}  # the same for one subject, which may have been read later
        self._begun = self._is_looking = self._has_waited = False
        self._again_at = self._looked_at = 0.0  # on the clock of `time.monotonic`
        self._pid, self.writer = os.getpid(), _number()
        if database is not None:
            statistics.keep = partial(self._keep, lambda: EVERYONE)

    # ------------------------------------------------------------------ before an answer

    async def ready(self, members: Sequence[CatalogEntry], model: str) -> None:
        """Have ready what the file knows of these endpoints for a request that names `model`.

        Waits only where something was not read yet, and for `READ_WITHIN_S` at most.
        """
        if self._database is None or not (wanted := self._wanted(members, model)):
            return
        found: _Read | None = None
        with anyio.move_on_after(READ_WITHIN_S):
            found = await anyio.to_thread.run_sync(self._load, wanted, abandon_on_cancel=True)
        self._take(found, wanted, anyio.current_time())

    def ready_now(self, members: Sequence[CatalogEntry], model: str, now: float) -> None:
        """Do the same in the calling thread, for a client in virtual time; `now` on its clock, s."""
        if self._database is not None and (wanted := self._wanted(members, model)):
            self._take(self._load(wanted), wanted, now)

    async def warm_up(self, members: Sequence[CatalogEntry], model: str | None) -> None:
        """Have ready what the file knows of these endpoints before they are warmed up: a known server is not probed."""
        await self.ready(members, model or "")
        if self._verdicts is not None:
            for member in members:
                self._verdicts.fill(member.endpoint)

    def _wanted(self, members: Sequence[CatalogEntry], model: str) -> set[Subject]:
        if os.getpid() != self._pid:  # a fork: what the parent has not written yet, it will
            self._pid, self.writer, self._news, self._seen = os.getpid(), _number(), [], -1
        subjects = {subject_of(member, model) for member in members}
        wanted = {s for s in subjects if s not in self._told and s not in self._read and is_storable(s)}
        if not self._begun:
            wanted.add(EVERYONE)
        return wanted if time.monotonic() >= self._again_at else set()

    def _load(self, wanted: set[Subject]) -> _Read | None:
        assert self._database is not None
        is_first = EVERYONE in wanted

        def read(connection: sqlite3.Connection) -> _Read:
            learnt = read_observations(connection, sorted(wanted), self.writer)
            if not is_first:
                return _Read(learnt, [], [], {})
            histories = {} if self._histories is None else self._histories.read(connection)
            return _Read(learnt, read_facts(connection, BREAKER), read_facts(connection, VERDICT), histories)

        return self._database.read(read, None)

    def _take(self, found: _Read | None, wanted: set[Subject], now: float) -> None:
        if found is None:
            database = self._database
            if (
                database is not None and database.fault is None and not self._has_waited
            ):  # else it is said already
                self._has_waited = True
                warn(
                    f"The state file {database.path} was not read within {READ_WITHIN_S:g} s. disco goes on without "
                    f"it, and tries it again every {AGAIN_AFTER_S:g} s. Name one on a local disk that is less busy, "
                    "with state=... or the variable DISCO_STATE."
                )
            self._again_at = time.monotonic() + AGAIN_AFTER_S
            return
        unix_s = time.time()
        by_subject: dict[Subject, list[Observation]] = {subject: [] for subject in wanted}
        for subject, one in found.learnt.observations:
            by_subject[subject].append(one)
        for subject in wanted - self._told.keys():  # another request may have been quicker
            for kept in (self._read, self._read_to):
                make_room(kept)
            self._read_to[subject] = found.learnt.newest
            self._read[subject] = counting(by_subject[subject], unix_s)
        everyones = self._read.pop(EVERYONE, [])
        if EVERYONE not in wanted or self._begun:
            return
        self._begun = True
        self._seen = found.learnt.newest
        for one in everyones:
            self._statistics.recall(one.kind, one.value, one.extra)
        self._statistics.fit_again()
        self._breakers.restore(found.breakers, now, unix_s)
        assert self._verdicts is not None
        assert self._database is not None
        self._verdicts.restore(found.verdicts, unix_s)
        if self._histories is not None:
            self._histories.begin_from(self._book.restore(found.histories))
        self._database.submit(partial(_prune, unix_s))

    def known(self, member: CatalogEntry, model: str, statistics: EndpointStatistics) -> EndpointStatistics:
        """Return an endpoint's statistics, which have learnt what was read of it, and keep what they learn from now."""
        if self._database is None:
            return statistics
        subject = subject_of(member, model)
        if self._told.get(subject) is statistics:
            return statistics
        if statistics.keep is None:
            statistics.keep = partial(self._keep, partial(subject_of, member, model))
        if (kept := self._read.pop(subject, None)) is not None:
            for one in kept:
                statistics.recall(one.kind, one.value, one.extra)
            make_room(self._told)
            self._told[subject] = statistics
        assert self._verdicts is not None
        self._verdicts.fill(member.endpoint)
        return statistics

    def _keep(self, subject: Callable[[], Subject], kind: str, value: float, extra: float) -> None:
        # The subject is asked for now: a server on this machine may have said only now which model it has.
        self._news.append((subject(), Observation(kind, time.time(), float(value), float(extra))))

    # ------------------------------------------------------------------ after an answer

    def answered(self, watch: HealthWatch) -> None:
        """Write what an answer has taught, in the background; call it in the event loop, at the answer's end."""
        self._saving.now_and_then()
        if self._database is None:
            return
        self._write(self._breakers.changes(watch, anyio.current_time(), time.time()))
        if time.monotonic() - self._looked_at > NEWS_EVERY_S and self._begun and self._host.is_open:
            self._looked_at = time.monotonic()
            self._host.start_soon(self.look)

    def _write(self, works: Sequence[Work[object]] = ()) -> None:
        assert self._database is not None
        news, self._news = self._news, []
        if news or works:
            self._database.submit(partial(_write, self.writer, news, works))

    async def look(self) -> None:
        """Learn what other programs have learnt since the last look."""
        if self._database is None or self._is_looking:
            return
        self._is_looking = True
        try:
            await self._look(self._database)
        finally:
            self._is_looking = False

    async def _look(self, database: Database) -> None:
        subjects, seen, writer = {EVERYONE, *self._told}, self._seen, self.writer

        def since(connection: sqlite3.Connection) -> tuple[Learnt, list[Fact]]:
            return observations_since(connection, seen, subjects, writer), read_facts(connection, BREAKER)

        read = partial(database.read, since, None)
        # Abandoned where the client is closed: a disk that does not answer must not hold that up.
        found = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        if found is None:
            return
        learnt, breakers = found
        if learnt.newest < seen:  # the file was made anew
            self._read_to.clear()
        self._seen = learnt.newest
        self._breakers.restore(breakers, anyio.current_time(), time.time())
        if seen < 0 or not learnt.observations:
            return
        for subject, one in learnt.observations:
            knows = self._statistics if subject == EVERYONE else self._told.get(subject)
            if knows is not None and one.number > self._read_to.get(subject, 0):
                knows.recall(one.kind, one.value, one.extra)
        self._statistics.fit_again()
        self._on_news()

    async def aclose(self) -> None:
        """Write all that is left, and close the file. Idempotent."""
        await self._saving.at_the_end()
        if self._database is not None:
            self._write()
            await anyio.to_thread.run_sync(self._database.close)


def _number() -> int:
    return random.SystemRandom().getrandbits(62)


def _write(
    writer: int,
    news: Sequence[tuple[Subject, Observation]],
    works: Sequence[Work[object]],
    connection: sqlite3.Connection,
) -> None:
    append_observations(connection, writer, news)
    for work in works:
        work(connection)


def _prune(unix_s: float, connection: sqlite3.Connection) -> None:
    prune_series(connection, unix_s)
    prune_facts(connection, BREAKER, unix_s - FORGOTTEN_AFTER_S - 86_400.0)
    prune_facts(connection, VERDICT, unix_s - VERDICTS_LAST_S)
    prune_histories(connection, unix_s)
