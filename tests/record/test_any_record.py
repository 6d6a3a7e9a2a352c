"""Whatever happened to an answer, its time line holds together and can be drawn."""

import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from record.drawn import check_drawings, check_timeline
from session.plays import play, record_of
from session.test_any_session import crowds

from disco.record import read_record, timeline_of

GOLDEN = Path(__file__).parent.parent / "golden"


@settings(max_examples=40)
@given(crowds())
def test_lanes_do_not_overlap_and_all_lies_within_the_picture(crowd):
    """The record as it is, and as it is read from a file."""
    record = record_of(play(**crowd).session, created_s=1.0)
    check_timeline(record)
    read = read_record(record.to_json(timelines=True))
    check_timeline(read)
    assert json.loads(read.to_json(timelines=True)) == json.loads(record.to_json(timelines=True))
    before, after = timeline_of(record), timeline_of(read)
    assert [lane.endpoint for lane in before.lanes] == [lane.endpoint for lane in after.lanes]
    assert len(before.marks) == len(after.marks)
    check_timeline(read_record(record.to_json()))  # without times


@settings(max_examples=15)
@given(crowds())
def test_every_renderer_draws_it(crowd):
    check_drawings(record_of(play(**crowd).session))


@pytest.fixture
def golden(monkeypatch):
    monkeypatch.syspath_prepend(str(GOLDEN))
    import golden_adapter
    import replays

    records = []
    made = golden_adapter.make_record

    def keep(*args, **more):
        records.append(made(*args, **more))
        return records[-1]

    monkeypatch.setattr(golden_adapter, "make_record", keep)
    yield replays, records
    for name in ("golden_adapter", "replays"):
        sys.modules.pop(name, None)


def test_every_record_of_the_golden_replays_draws(golden):
    """One episode of each preset: refused, failed, cancelled, moved and failed-over answers in a busy hour."""
    replays, records = golden
    for preset in replays.PRESETS:
        assert list(replays.results(preset, [0]))
    assert len(records) > 300
    outcomes = {attempt.outcome for record in records for attempt in record.attempts}
    assert {"finished", "lost", "failed", "handed_over", "cancelled"} <= outcomes
    for number, record in enumerate(records):
        check_timeline(record)
        if number % 50 == 0:
            check_drawings(record)
    assert max(timeline_of(record).total_s for record in records) < math.inf
