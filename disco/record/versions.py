"""The versions of a route record's JSON, its `schema`.

- 5: what was paid, the energy of the user's own machines and the sum that policies count are three numbers.
- 4: one number, `cost`, which held money for some endpoints and energy at an exchange rate for others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from disco.errors import ConfigurationError
from disco.session.records.route_record import SCHEMA

__all__ = ["NewerRecordError", "present"]

_OLDEST: Final = 4


class NewerRecordError(ConfigurationError):
    """A record was written by a newer disco. Every command that meets one ends, rather than pass over the newest."""


def present(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record as the present version writes it.

    Args:
        row: a record's JSON, decoded. What is not of the form of its version is passed on for its reader to report.

    Raises:
        ConfigurationError: the record's version is none that this disco reads; the message says what to do.
        NewerRecordError: it is that of a newer disco.
    """
    version = row.get("schema")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ConfigurationError(
            "the field 'schema': a whole number is expected, the version of the record's form"
        )
    if version > SCHEMA:
        raise NewerRecordError(
            f"this record has schema {version}, and this disco reads records up to schema {SCHEMA}: update disco"
        )
    if version < _OLDEST:
        raise ConfigurationError(
            f"this record has schema {version}, and this disco reads records from schema {_OLDEST} on: record again"
        )
    return row if version == SCHEMA else _from_4(row)


def _from_4(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record of version 4 in the present form.

    Its energies are not known. What an endpoint charged was money unless the endpoint was the user's own and computed
    cached tokens for nothing, which energy does and a price hardly ever; a name without an endpoint is a drafter's.
    """
    try:
        endpoints = [{**e, "is_money": _was_money(e), "j_in": None, "j_out": None} for e in row["endpoints"]]
        paid = {e["name"] for e in endpoints if e["is_money"]}
        charges = [_charge(c, is_money=c["endpoint"] in paid) for c in row["ledger"]["charges"]]
        attempts = [
            {**_without_cost(a), **_sums(c for c in charges if c["attempt"] == number)}
            for number, a in enumerate(row["attempts"])
        ]
        ledger = {**_sums(charges), "charges": charges}
        return {**row, "schema": SCHEMA, "endpoints": endpoints, "attempts": attempts, "ledger": ledger}
    except (LookupError, TypeError, ValueError):
        return row


def _was_money(endpoint: Mapping[str, Any]) -> bool:
    reach = endpoint.get("reach") or endpoint["place"]
    return reach != "device" and (reach != "own" or bool(endpoint["cached_share"]))


def _charge(charge: Mapping[str, Any], *, is_money: bool) -> dict[str, Any]:
    cost = charge["cost"]
    split = {"bill_usd": cost if is_money else 0.0, "device_energy_j": None, "policy_cost": cost}
    return {**_without_cost(charge), **split}


def _without_cost(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "cost"}


def _sums(charges: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    charges = list(charges)
    return {
        "bill_usd": math.fsum(c["bill_usd"] for c in charges),
        "device_energy_j": None,
        "policy_cost": math.fsum(c["policy_cost"] for c in charges),
    }
