"""Breakers of servers in the state file: a server that was down a second ago needs no new lesson.

A refused account or model is kept for people only (`disco doctor`): which key was refused is in no file, so another
program has to see for itself.

Times in the file are Unix times; a breaker's are of its event loop's clock, which begins anew with the machine. A clock
that was set in between makes no cool-down longer than the breaker chose it.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, Final

from disco.client.learnt.subjects import address_text
from disco.dispatch.breakers.circuit_breaker import Opening
from disco.dispatch.breakers.endpoint_health import AccountKey, Health, HealthWatch, ModelKey
from disco.errors import FailureKind
from disco.state.database import Work
from disco.state.facts import Fact, drop_fact, put_fact

__all__ = ["BREAKER", "KeptBreakers"]

BREAKER: Final = "breaker"
FORGOTTEN_AFTER_S: Final = 60.0
"""A cool-down that ended so long ago says nothing any more, seconds."""

_LONGEST_S = 86_400.0


class KeptBreakers:
    """Those of a client's breakers that the file knows. Mutable: `_kept`, what the file has of each, by its key."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._kept: dict[Hashable, Opening] = {}

    def restore(self, facts: Iterable[Fact], now: float, unix_s: float) -> None:
        """Open the breakers that other programs have found open.

        Args:
            facts: of the kind `BREAKER`.
            now: on the event loop's clock, s.
            unix_s: the same moment, Unix time, s.
        """
        for fact in facts:
            key, opening = _breaker_key(fact.key), _opening(fact, now, unix_s)
            if key is None or opening is None:
                continue
            breaker = self._health.find(key)
            known = None if breaker is None else breaker.opening
            answered_at = -math.inf if breaker is None else breaker.answered_at
            # A second apart: the clocks of event loop and machine do not go together to the last digit, and this may be
            # what this client has reported itself.
            if answered_at < now - (unix_s - fact.at) and (
                known is None or known.until < opening.until - 1.0
            ):
                self._health.make(key).reopen(opening)
                self._kept[key] = opening

    def changes(self, watch: HealthWatch, now: float, unix_s: float) -> list[Work[object]]:
        """Return what has to be written after an answer: the breakers of its endpoints that have opened or closed."""
        works: list[Work[object]] = []
        for keys in watch.keys.values():
            for key in keys:
                breaker = self._health.find(key)
                opening = None if breaker is None else breaker.opening
                name = _fact_key(key)
                if opening == self._kept.get(key) or name is None:
                    continue
                if opening is None:
                    del self._kept[key]
                    works.append(partial(_drop, name))
                else:
                    self._kept[key] = opening
                    works.append(partial(_put, name, _value(opening, now, unix_s), unix_s))
        return works


def _drop(key: tuple[str, ...], connection: sqlite3.Connection) -> None:
    drop_fact(connection, BREAKER, key)


def _put(key: tuple[str, ...], value: dict[str, object], at: float, connection: sqlite3.Connection) -> None:
    put_fact(connection, BREAKER, key, value, at)


def _value(opening: Opening, now: float, unix_s: float) -> dict[str, object]:
    return {
        "why": str(opening.why),
        "failures": opening.failures,
        "level": opening.level,
        "rest_s": opening.until - opening.at,
        "until": unix_s + opening.until - now,
    }


def _opening(fact: Fact, now: float, unix_s: float) -> Opening | None:
    """Return what a fact says as times of this event loop; None where it says nothing any more."""
    try:
        why, failures = FailureKind(fact.value["why"]), int(fact.value["failures"])
        level, rest_s = int(fact.value["level"]), float(fact.value["rest_s"])
        left_s = float(fact.value["until"]) - unix_s
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    if not 0 < rest_s <= _LONGEST_S or not left_s > -FORGOTTEN_AFTER_S:
        return None
    left_s = min(left_s, rest_s)
    return Opening(why, max(1, failures), min(max(1, level), 16), now + left_s - rest_s, now + left_s)


def _fact_key(key: Hashable) -> tuple[str, ...] | None:
    """Return a breaker's key as (endpoint, address, model), the model "" where it is not a rate limit's.

    Behind that stands "refused" where it is an account's or a model's, without a word on whose. None for an endpoint in
    this process: its failures are not those of another program's.
    """
    endpoint: Any = key  # `Health.watch` makes it: (name, address), or that and a model
    model = ""
    refused: tuple[str, ...] = ()
    if isinstance(key, AccountKey | ModelKey):
        endpoint, refused = key.identity, ("refused",)
        model = key.model if isinstance(key, ModelKey) else ""
    elif isinstance(endpoint[0], tuple):
        endpoint, model = endpoint
    name, address = endpoint
    where = address_text(address)
    return (str(name), where, str(model), *refused) if where else None


def _breaker_key(key: tuple[str, ...]) -> Hashable | None:
    if len(key) != 3:  # also those that are kept for people only
        return None
    name, where, model = key
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal():
        return None
    endpoint = name, (host, int(port))
    return (endpoint, model) if model else endpoint
