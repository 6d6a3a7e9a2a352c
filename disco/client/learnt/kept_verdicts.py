"""Verdicts of probes in the state file: a server is not probed again at each start of a program."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from disco.client.learnt.subjects import public_url
from disco.state.database import Database
from disco.state.facts import Fact, put_fact

if TYPE_CHECKING:
    import sqlite3

    from disco.endpoints.continuation.probe import ProbeVerdict
    from disco.endpoints.continuation.verdicts import Key, Verdicts
    from disco.endpoints.contract import Endpoint

__all__ = ["VERDICT", "VERDICTS_LAST_S", "KeptVerdicts"]

VERDICT: Final = "verdict"

VERDICTS_LAST_S: Final = 7 * 86_400.0
"""A verdict that is older is not used: the server may have another version now. Seconds."""


class KeptVerdicts:
    """Fills the verdicts of a client's endpoints from the file, and writes new ones into it.

    Mutable: `_known`, by public address and model; `_filled`, which verdicts were filled, for which base_url.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[tuple[str, str], Mapping[str, object]] = {}
        self._filled: set[tuple[int, str]] = set()

    def restore(self, facts: Iterable[Fact], unix_s: float) -> None:
        """Take what the file knows: facts of the kind `VERDICT`."""
        for fact in facts:
            if len(fact.key) == 2 and unix_s - fact.at < VERDICTS_LAST_S:
                self._known[fact.key[0], fact.key[1]] = fact.value

    def fill(self, endpoint: Endpoint) -> None:
        """Give an endpoint the verdicts that the file has of its server, once."""
        server = getattr(endpoint, "probed", endpoint)  # of a pair, its server
        verdicts: Verdicts | None = getattr(server, "verdicts", None)
        base_url = getattr(server, "base_url", None)
        if verdicts is None or base_url is None or not hasattr(verdicts, "on_found"):
            return
        mark = id(verdicts), base_url
        if mark in self._filled:
            return
        self._filled.add(mark)
        if verdicts.on_found is None:
            for key, verdict in verdicts.items():  # found before the file was read
                self._found(key, verdict)
            verdicts.on_found = self._found
        where = public_url(base_url)
        for (address, model), value in self._known.items():
            known = _verdict(value) if address == where else None
            if known is not None:
                verdicts.setdefault((base_url, model), known)

    def _found(self, key: Key, verdict: ProbeVerdict) -> None:
        base_url, model = key
        name = public_url(base_url), model
        value = {**verdict.to_dict(), "ladder": _ladder()}
        self._known[name] = value
        self._database.submit(partial(_put, name, value, time.time()))


def _put(
    key: tuple[str, str], value: Mapping[str, object], at: float, connection: sqlite3.Connection
) -> None:
    put_fact(connection, VERDICT, key, value, at)


def _ladder() -> list[str]:
    from disco.endpoints.continuation.methods import LADDER  # noqa: PLC0415 - loaded where there is a server

    return list(LADDER)


def _verdict(value: Mapping[str, object]) -> ProbeVerdict | None:
    """Return a stored verdict; None where it is none, or where this version would try other methods."""
    from disco.endpoints.continuation.methods import Method  # noqa: PLC0415 - as above
    from disco.endpoints.continuation.probe import ProbeVerdict  # noqa: PLC0415 - as above

    if value.get("ladder") != _ladder() or value.get("method") not in get_args(Method):
        return None
    try:
        verdict = ProbeVerdict.from_dict(json.loads(json.dumps(value)))
    except (KeyError, TypeError, ValueError):
        return None
    return verdict if verdict.conclusive else None
