"""One answer, token by token: every token has the writer that wrote it."""

from __future__ import annotations

from dataclasses import fields, replace

import reports

from disco.cost import Ledger, Rates
from disco.replay.report.timeline import stretches, timeline
from disco.session.records.route_record import (
    AttemptRecord,
    LatencyRecord,
    MigrationRecord,
    RouteRecord,
    SegmentRecord,
)


def attempt(endpoint: str, outcome: str, **known) -> AttemptRecord:
    """What does not matter for a timeline is nothing."""
    values = dict.fromkeys((field.name for field in fields(AttemptRecord)), 0)
    return AttemptRecord(
        **{**values, "endpoint": endpoint, "place": endpoint, "role": "", "outcome": outcome, **known}
    )


def moved_record() -> RouteRecord:
    """Ten tokens by the device, six kept; then four by the server; made by hand."""
    tries = (
        attempt("device", "handed_over", started_s=0.0, first_content_s=0.1, ended_s=1.0, kept_tokens=6),
        attempt("server", "finished", started_s=0.6, first_content_s=1.0, ended_s=1.4, kept_tokens=4),
    )
    generated = (*((round(0.1 * i, 1), 1) for i in range(1, 10)), (0.95, 1), (1.0, 2), (1.4, 2))
    return RouteRecord(
        created_s=None,
        max_tokens=None,
        endpoints=(),
        preset="wait_time",
        finish_reason="stop",
        prompt_tokens=5,
        answer_tokens=10,
        starts=(("device", 0.0),),
        attempts=tries,
        segments=(SegmentRecord(0, "device", 0, 20, 1, 1), SegmentRecord(1, "server", 20, 30, 2, 2)),
        migrations=(MigrationRecord("device", "server", "switched", 0.6, 1.0, 20, 6, 0.4, 0.4, 0.5, 0),),
        pace=LatencyRecord(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 5.0),
        ledger=Ledger({"device": Rates(0, 0), "server": Rates(0, 0)}),
        duration_s=1.5,
        generated=generated,
        released=tuple((0.1 + 0.14 * i, 1) for i in range(10)),
        winner="device",
    )


def test_every_token_of_the_timeline_has_the_writer_that_wrote_it():
    device, server = stretches(moved_record())
    assert (device.endpoint, server.endpoint) == ("device", "server")
    assert device.kept == tuple((round(0.1 * i, 1), i) for i in range(1, 7))
    assert device.dropped == ((0.6, 6), (0.7, 7), (0.8, 8), (0.9, 9), (0.95, 10))
    assert server.kept == ((1.0, 8), (1.4, 10))
    assert server.dropped == ()


def test_a_real_moved_answer_adds_up():
    record = reports.with_moves().example
    parts = stretches(record)
    assert [part.endpoint for part in parts] == [piece.endpoint for piece in record.segments]
    assert parts[-1].kept[-1][1] == record.answer_tokens
    assert parts[0].kept[-1][1] == record.migrations[-1].cut_tokens
    drawn = {at for part in parts for at, _ in (*part.kept, *part.dropped)}
    assert {at for at, _ in record.generated} == drawn


def test_the_caption_says_who_wrote_and_what_was_late():
    moved = moved_record()
    (transfer,) = moved.migrations
    late = replace(moved, migrations=(replace(transfer, late_tokens=3),))
    failed_over = replace(moved, migrations=())
    captions = [timeline(record).caption for record in (moved, late, failed_over)]
    assert captions[0].startswith(
        "Policy wait_time: 10 tokens, begun by device and handed to server after 6. The new writer took 0.40 s to its "
        "first token, from the buffer the reader read on; no token was late."
    )
    assert "3 tokens were late" in captions[1]
    assert captions[2] == "Policy wait_time: 10 tokens, written by device and server."


def test_a_record_without_timelines_has_no_plot():
    assert timeline(replace(moved_record(), generated=(), released=())) is None
