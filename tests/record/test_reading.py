"""A line of a recording becomes the record again, or the message says what is wrong with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from record.test_marks import moved
from session.recorded_kinds import kinds

from disco.errors import ConfigurationError
from disco.plan import Power
from disco.record import read_record
from disco.session.records.route_record import SCHEMA

RECORD = moved()
LINE = RECORD.to_json(timelines=True)


def test_a_record_comes_back_as_it_was_written():
    assert json.loads(read_record(LINE).to_json(timelines=True)) == json.loads(LINE)
    assert read_record(LINE.encode()).bill_usd == pytest.approx(RECORD.bill_usd)
    assert read_record(json.loads(LINE)).migrations[0].source == "device"
    assert read_record(RECORD.to_json()).generated == ()


@pytest.mark.parametrize("name", kinds())
def test_every_field_of_every_kind_of_record_comes_back(name):
    record = replace(kinds()[name], served_as="a name", exchange_rate=1e-9, power=Power(("battery",), 2.0))
    written = record.to_json(timelines=True)
    assert json.loads(read_record(written).to_json(timelines=True)) == json.loads(written)


def damaged(**changes) -> str:
    return json.dumps(json.loads(LINE) | changes)


def with_attempt(**changes) -> str:
    record = json.loads(LINE)
    record["attempts"][0] |= changes
    return json.dumps(record)


def with_rates(**changes) -> str:
    record = json.loads(LINE)
    record["endpoints"][0] |= changes
    return json.dumps(record)


def without(name: str) -> str:
    record = json.loads(LINE)
    del record[name]
    return json.dumps(record)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LINE[:200], "this is not JSON; a program that was killed may leave half a line"),
        ("[1, 2]", "this is not a route record, as disco.RouteLog writes them"),
        ('{"request": 1}', "this is not a route record"),
        (
            damaged(schema=SCHEMA + 1),
            f"this record has schema {SCHEMA + 1}, and this disco reads records up to",
        ),
        (without("pace"), "the field 'pace' is missing (schema 5)"),
        (damaged(duration_s="CANARY"), "the field 'duration_s': input should be a valid number"),
        (damaged(attempts=[{"endpoint": "a"}]), "the field 'attempts.0.place' is missing"),
        (damaged(generated=[[1, 2, 3]]), "the field 'generated.0"),
        (damaged(generated=7), "the field 'generated': a list is expected (schema 5)"),
        (damaged(pace=7), "the field 'pace': an object is expected (schema 5)"),
        (damaged(ledger={"charges": [{}]}), "the field 'ledger.charges.0"),
        ("[" * 100_000, "this is not JSON"),
        (damaged(duration_s=math.inf), "the field 'duration_s': a time must be finite and not negative"),
        (
            damaged(generated=[[math.nan, 1]]),
            "the field 'generated.0': a time must be finite and not negative",
        ),
        (damaged(released=[[-0.5, 1]]), "the field 'released.0': a time must be finite and not negative"),
        (damaged(released=[[0.5, 10**12]]), "the field 'released': an answer has 0 to 10,000,000 tokens"),
        (
            damaged(turns=[[0, 99]]),
            "the field 'turns.0': there is no such place, or no attempt with this number",
        ),
        (damaged(attempts=[]), "the field 'segments.0.attempt': there is no attempt with this number"),
        (
            with_attempt(ended_s=-1.0),
            "the field 'attempts.0.ended_s': a time must be finite and not negative",
        ),
        (with_attempt(tokens=-1), "the field 'attempts.0.tokens': a count must not be negative"),
        (damaged(schema="6"), "the field 'schema': a whole number is expected"),
        (with_rates(cached_share=2.0), "the field 'endpoints': cached_share must lie between 0 and 1"),
    ],
)
def test_what_is_wrong_is_said_without_what_stands_there(line, said):
    with pytest.raises(ConfigurationError, match=r"^[^\n]*$") as caught:
        read_record(line)
    assert said in str(caught.value)
    assert "CANARY" not in str(caught.value)
