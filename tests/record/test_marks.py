"""What a time line says of answers that went in each way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from record.drawn import check_drawings, check_timeline, printed
from session.plays import FAST, play, record_of
from session.test_assist import divided
from session.test_rise import HIGH, LOW, TOP, UP, Doubting, ladder
from session.test_silence import run as silent_run
from session.test_silence import silent

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.events import SpeculationReport
from disco.plan import BudgetCut, CoolDown, Migration, Plan, Power, Start
from disco.playback import Pace
from disco.record import read_record, timeline_of
from disco.record.model import MarkKind, SpanKind
from disco.record.summary import happenings, writers
from disco.session.records.assist_record import AssistRecord
from disco.session.records.route_record import RouteRecord

BOTH = (Start("device"), Start("server"))
SLOW = SimulatedProfile(ttft_s=0.6, decode_tps=40.0, answer_tokens=120)
MOVES = {"device": Migration("server"), "server": Migration("device")}


def told(record: RouteRecord) -> dict[MarkKind, list[str]]:
    """The sentences of a checked time line by kind, each with its lane's endpoint."""
    timeline = check_timeline(record)
    check_drawings(record)
    found: dict[MarkKind, list[str]] = {}
    for mark in timeline.marks:
        name = "reader" if mark.lane is None else timeline.lanes[mark.lane].endpoint
        found.setdefault(mark.kind, []).append(f"{name}: {mark.text}")
    return found


def spans(record: RouteRecord, endpoint: str) -> list[SpanKind]:
    """What an endpoint did, in order."""
    (lane,) = [lane for lane in timeline_of(record).lanes if lane.endpoint == endpoint]
    return [span.kind for span in lane.spans]


def moved(order: str = "auto", **how) -> RouteRecord:
    """The device writes first and costs more, so that the answer moves to the server."""
    plan = Plan(BOTH, migrations=MOVES, order=order)
    settings = {"costs": {"device": 1e-4, "server": 1e-9}, "pace": Pace(8.0), **how}
    return record_of(play({"device": FAST, "server": SLOW}, plan, **settings).session)


def test_a_race_has_a_winner_and_a_loser_that_is_cancelled():
    record = record_of(play({"device": FAST, "server": SLOW}, Plan(BOTH)).session)
    marks = told(record)
    assert marks[MarkKind.FIRST] == ["device: device writes first and wins the race; server is cancelled"]
    assert list(marks) == [MarkKind.FIRST, MarkKind.SHOWN, MarkKind.FINISHED, MarkKind.DELIVERED]
    assert spans(record, "device") == [SpanKind.READING, SpanKind.WRITING]
    assert spans(record, "server") == [SpanKind.READING]
    assert (writers(record), happenings(record)) == (("device",), ("race",))


def test_a_start_that_was_not_needed_waits_and_says_so():
    record = record_of(
        play({"device": FAST, "server": SLOW}, Plan((Start("device"), Start("server", 3.0)))).session
    )
    marks = told(record)
    assert marks[MarkKind.UNSTARTED] == ["server: server was to start after 3.00 s, and is not needed"]
    assert marks[MarkKind.FIRST] == ["device: device writes the first token"]
    assert spans(record, "server") == [SpanKind.DELAYED]
    late = record_of(
        play({"device": SLOW, "server": FAST}, Plan((Start("device"), Start("server", 0.1)))).session
    )
    assert spans(late, "server")[0] == SpanKind.DELAYED


def test_a_move_has_its_order_its_cut_and_its_arrival():
    record = moved()
    (move,) = record.migrations
    marks = told(record)
    (ordered,), (switched,) = marks[MarkKind.ORDERED], marks[MarkKind.SWITCHED]
    assert ordered == (
        f"device: a move to server is ordered; the text of device is cut behind token {move.cut_tokens} "
        f"(character {move.cut_char}); device is paused"
    )
    assert switched.startswith(f"server: server goes on, {move.took_s:.2f} s later: no token late")
    assert SpanKind.PAUSED in spans(record, "device")
    assert spans(record, "device")[-1] == SpanKind.PAUSED
    timeline = timeline_of(record)
    assert timeline.reader is not None
    at_cut = [tokens for at, tokens in timeline.reader.bank if at <= move.decided_s][-1]
    assert 0 < at_cut < move.cut_tokens  # the reader had a part of it, the bank holds the other
    assert happenings(record) == ("race", "moved")


def test_text_behind_a_cut_is_hidden_where_the_source_writes_on():
    assert SpanKind.HIDDEN in spans(moved("make_before_break"), "device")


def test_a_move_that_is_given_up_says_why_and_the_source_goes_on():
    plan = Plan((Start("device"),), migrations=MOVES)
    dies = replace(SLOW, fault=Fault(0, kind=FailureKind.SERVER))
    run = play(
        {"device": FAST, "server": dies},
        plan,
        costs={"device": 1e-4, "server": 1e-9},
        pace=Pace(8.0),
        max_retries=0,
    )
    record = record_of(run.session)
    marks = told(record)
    assert marks[MarkKind.GIVEN_UP] == ["device: the move to server is given up: its target failed"]
    assert "server: server fails (server)" in marks[MarkKind.FAILED]
    assert "move given up" in happenings(record)


def test_a_failure_and_who_takes_over():
    dies = replace(FAST, fault=Fault(20, kind=FailureKind.CONNECTION))
    record = record_of(play({"server": dies, "device": SLOW}, Plan((Start("server"),), ("device",))).session)
    marks = told(record)
    assert marks[MarkKind.FAILED] == ["server: server fails (connection)"]
    (taken,) = marks[MarkKind.TAKEN_OVER]
    assert taken.startswith("device: device takes over from server behind character ")
    assert happenings(record) == ("failed over",)
    silent_s = replace(FAST, fault=Fault(20, silence_s=math.inf, kind=None))
    stalled = record_of(
        play({"server": silent_s, "device": SLOW}, Plan((Start("server"),), ("device",))).session
    )
    assert spans(stalled, "server")[-1] == SpanKind.SILENT
    assert "red" not in printed(stalled, 100)


def test_one_attempt_that_replaces_many_takes_over_once():
    dead = replace(FAST, fault=Fault(0, kind=FailureKind.CONNECTION))
    plan = Plan((Start("server"), Start("other")), ("device",))
    record = record_of(play({"server": dead, "other": dead, "device": SLOW}, plan).session)
    assert len(record.failovers) == 2
    (taken,) = told(record)[MarkKind.TAKEN_OVER]
    assert taken in {
        "device: device takes over from server, other",
        "device: device takes over from other, server",
    }


def test_a_silence_has_an_heir():
    _, record = silent_run(silent(20))
    marks = told(record)
    assert marks[MarkKind.DOUBTED] == [
        "server: server has been silent for unusually long: another endpoint starts"
    ]
    assert any("while server is silent" in text for text in marks[MarkKind.ORDERED])
    assert "heir went on" in happenings(record)


def test_a_verdict_and_what_followed():
    judges = {"device": Doubting(UP), "home": Doubting(UP)}
    record = record_of(ladder({"device": LOW, "home": HIGH, "cloud": TOP}, judges).session)
    marks = told(record)
    judged = marks[MarkKind.VERDICT]
    assert judged[0] == (
        "device: device is judged after 40 tokens: score 0.100, threshold 0.500 of 9 earlier scores: handed up"
    )
    assert marks[MarkKind.RISE] == ["home: home is asked instead", "cloud: cloud is asked instead"]
    assert spans(record, "device") == [SpanKind.READING, SpanKind.HIDDEN]
    assert happenings(record) == ("handed up",)


def test_an_answer_that_was_shown_and_replaced_is_taken_back():
    record = record_of(
        ladder({"device": LOW, "cloud": HIGH}, {"device": Doubting(UP)}, "revise", pace=Pace(20.0)).session
    )
    (_, anew) = ("", *told(record)[MarkKind.SWITCHED])
    assert "cloud writes the answer anew; " in anew
    assert "that were shown are taken back" in anew
    timeline = timeline_of(record)
    assert timeline.reader is not None
    assert timeline.reader.bank[-1][1] == 0


def test_an_assist_has_the_writers_part_and_the_heir():
    record = record_of(divided().session)
    marks = told(record)
    assert any(
        text.startswith("device: device has read the prompt; server may write 40")
        for text in marks[MarkKind.READ]
    )
    assert any("the part of server ends behind token" in text for text in marks[MarkKind.ORDERED])
    assert SpanKind.HOLDING in spans(record, "device") or SpanKind.WRITING in spans(record, "device")
    assert "assisted" in happenings(record)


def test_drafted_windows_are_drawn_and_counted():
    record = record_of(play({"server": FAST}, Plan((Start("server"),))).session)
    report = SpeculationReport(
        rounds=4,
        judged=8,
        accepted=7,
        rejected=1,
        windows=((4, 2),),
        distributed_tokens=90,
        alone_tokens=30,
        timed_windows=((0.3, 0.4, 4, 4), (0.45, 0.6, 4, 3)),
    )
    drafted = replace(record, attempts=(replace(record.attempts[0], speculation=report),))
    (said,) = told(drafted)[MarkKind.DRAFTING]
    assert said == (
        "server: drafting: 2 windows, 7 of 8 compared tokens right, 1 computed in vain; 90 tokens of the answer by "
        "drafts, 30 by server alone"
    )
    (lane,) = timeline_of(drafted).lanes
    assert [(window.drafted, window.right) for window in lane.windows] == [(4, 4), (4, 3)]
    drawn = [line for line in printed(drafted, 90).splitlines() if line.startswith("drafts")]
    assert drawn[0].count("●") == drawn[0].count("◐") == 1
    assert happenings(drafted) == ("drafted",)
    old = replace(report, timed_windows=())
    assert (
        "no times of the drafted windows"
        in timeline_of(replace(record, attempts=(replace(record.attempts[0], speculation=old),))).notes[0]
    )


@pytest.mark.parametrize("at_s", [0.0, 0.1, 1.0])
def test_a_reader_that_leaves(at_s):
    record = record_of(play({"device": FAST}, Plan((Start("device"),)), cancel_at=at_s).session)
    marks = told(record)
    assert marks[MarkKind.CANCELLED] == ["reader: the reader leaves"]
    assert MarkKind.DELIVERED not in marks
    assert "cancelled" in happenings(record)


def test_records_without_times_or_turns_say_what_they_lack():
    record = moved()
    plain = timeline_of(replace(record, generated=(), released=(), turns=()))
    assert plain.reader is None
    assert "no times of the tokens" in plain.notes[0]
    older = replace(record, turns=())
    assert "older version" in timeline_of(older).notes[0]
    assert timeline_of(older).reader == timeline_of(record).reader
    check_drawings(older)


def test_notes_say_what_the_plan_had_to_leave_out():
    record = replace(
        moved(),
        deprioritised=(
            CoolDown("server", "offline"),
            CoolDown("backup", "rate_limit", "rate_limit", 1, 11.25),
        ),
        budget_cuts=(BudgetCut("server", "hedge", "spent"),),
        power=Power(("battery", "low"), spared="low"),
        assist=AssistRecord("undivided", "device_first"),
    )
    assert read_record(record.to_json(timelines=True)).deprioritised == record.deprioritised
    notes = timeline_of(read_record(record.to_json(timelines=True))).notes
    assert notes == timeline_of(record).notes
    assert notes == (
        "server was the last resort when the request came: offline.",
        "backup was the last resort when the request came: rate limit.",
        "A budget left out a further start on server: too little is left.",
        "This machine then: battery, low.",
        "The answer was not divided between server and device: device first.",
    )
    check_drawings(record)


def test_names_cannot_send_control_codes_and_markup_is_text():
    record = record_of(play({"device": FAST}, Plan((Start("device"),))).session)
    evil = "a\x1b[31m<script>&\n"
    renamed = replace(
        record,
        preset=evil,
        attempts=tuple(replace(a, endpoint=evil) for a in record.attempts),
        endpoints=tuple(replace(e, name=evil) for e in record.endpoints),
        segments=tuple(replace(s, endpoint=evil) for s in record.segments),
    )
    assert "\x1b" not in printed(renamed, 100)
    check_drawings(renamed)
