"""Route records as a trace: what was seen is kept, and what was cut off is a bound."""

from __future__ import annotations

import json
import math

import pytest
from recordings import SERVER, device, feature, file_of, played, trace_of

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError, FailureKind
from disco.plan import Start
from disco.replay.formats import read_trace
from disco.replay.workload.from_recording import is_recording

NAN = math.nan


def check(trace, **expected):
    """The first request has these values."""
    found = {
        name: (trace.features[name] if name in trace.features else getattr(trace, name))[0]
        for name in expected
    }
    assert found == pytest.approx(expected, abs=2e-6, nan_ok=True)


def test_a_race_the_device_won(tmp_path):
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server", 0.05))
    trace = trace_of(tmp_path, record)
    assert trace.source.startswith("routes.jsonl (format routes)")
    assert is_recording(trace)
    check(trace, prompt_tokens=20, output_tokens=40, winner="device", device_start_s=0.0, server_start_s=0.05)
    check(trace, device_ttft_s=0.2, ttft_s=NAN, ttft_over_s=0.15, tpot_s=NAN)
    assert feature(trace, "ttft_over_s") > 0.15
    assert trace.device_tpot_s[0] == pytest.approx(1 / 30, abs=1e-5)
    # A race between two that read the whole prompt costs what a replay charges.
    assert feature(trace, "cost_usd") == pytest.approx(record.cost, rel=1e-12)
    assert feature(trace, "replay_cost_usd") == pytest.approx(record.cost, rel=1e-12)


def test_a_race_the_server_won_knows_its_gaps(tmp_path):
    record = played({"device": device(0.9), "server": SERVER}, Start("device"), Start("server"))
    trace = trace_of(tmp_path, record)
    check(trace, ttft_s=0.3, device_ttft_s=NAN, device_ttft_over_s=0.3)
    assert trace.gaps.of(0) == pytest.approx([1 / 80] * 39, abs=1.1e-4)
    without = trace_of(tmp_path, record, timelines=False)
    assert without.gaps is None or without.gaps.of(0).size == 0
    assert without.tpot_s[0] == pytest.approx(1 / 80, abs=1e-5)
    # Tokens that came together have no gap.
    packets = SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=8, packet_tokens=3)
    gaps = trace_of(tmp_path, played({"server": packets}, Start("server"))).gaps.of(0)
    assert gaps == pytest.approx([0, 0, 3 / 80, 0, 0, 3 / 80, 0], abs=1.1e-4)


def test_a_planned_start_that_was_not_needed_is_planned_again(tmp_path):
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server", 5.0))
    assert [t.endpoint for t in record.attempts] == ["device"]
    check(trace_of(tmp_path, record), server_start_s=5.0, ttft_over_s=NAN)


def test_a_reader_who_left_before_the_first_word_leaves_bounds(tmp_path):
    starts = Start("device"), Start("server")
    record = played({"device": device(0.9), "server": SERVER}, *starts, cancel_at=0.25)
    check(
        trace_of(tmp_path, record),
        ttft_s=NAN,
        ttft_recorded_s=NAN,
        ttft_over_s=0.25,
        device_ttft_over_s=0.25,
    )


def test_a_start_that_failed_is_not_started_in_a_replay(tmp_path):
    dead = SimulatedProfile(ttft_s=0.1, fault=Fault(0, kind=FailureKind.CONNECTION))
    record = played({"server": dead, "device": device(0.2)}, Start("server"), fallbacks=("device",))
    assert [(t.endpoint, t.failure) for t in record.attempts] == [("server", "connection"), ("device", None)]
    started_s = record.attempts[1].started_s
    trace = trace_of(tmp_path, record)
    check(trace, server_start_s=NAN, ttft_over_s=NAN, device_start_s=started_s, device_ttft_s=0.2)


def test_of_a_moved_answer_both_speeds_are_known_and_no_gaps(tmp_path):
    dear = {"server": Rates(1e-7, 1e-3), "device": Rates(1e-9, 1e-9, 0.0)}
    profiles = {
        "server": SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=200),
        "device": device(0.2, answer_tokens=200),
    }
    record = played(profiles, Start("server"), move=True, pace_tps=5.0, rates=dear)
    assert [t.outcome for t in record.migrations] == ["switched"]
    trace = trace_of(tmp_path, record)
    # A target's first token came after a prefix, not after a prompt.
    check(trace, moved=True, ttft_s=0.3, device_ttft_s=NAN, device_start_s=NAN, output_tokens=200)
    assert trace.gaps is None or trace.gaps.of(0).size == 0
    assert (trace.tpot_s[0], trace.device_tpot_s[0]) == pytest.approx((1 / 80, 1 / 30), rel=0.1)


def test_records_are_sorted_by_when_their_requests_came_without_those_that_failed(tmp_path):
    """Records are written when answers end: a long answer comes after a short one that was asked for later."""
    times = [1e9 + 7.25, 1e9, 1e9 + 3.5]
    records = [
        played({"device": device(0.2)}, Start("device"), created_s=at, load_s=load_s)
        for at, load_s in zip(times, (2.0, 0.0, 0.0), strict=True)
    ]
    failed = played({"device": device(0.2, fault=Fault(0))}, Start("device"))
    trace, skipped = read_trace(file_of(tmp_path / "r.jsonl", *records, failed))
    assert trace.arrival_s.tolist() == [0.0, 3.5, 7.25]
    assert trace.features["device_cold"].tolist() == [False, False, True]
    assert skipped.reasons == {"failed at the source": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"created_s": None}, r"line 2, column created_s: missing value; .*virtual time .*disco\.RouteLog"),
        ({"created_s": "noon"}, "line 2, column created_s: 'noon' is not a number"),
        ({"attempts": None}, "line 2: of another shape; write each request as in disco's route records"),
        ({"prompt_tokens": -1, "attempts": []}, "line 2"),
    ],
)
def test_a_bad_record_is_named(tmp_path, change, says):
    good = played({"server": SERVER}, Start("server")).to_dict()
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in (good, {**good, **change})), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=says):
        read_trace(path)
    trace, skipped = read_trace(path, skip_invalid=True)
    assert (len(trace), skipped.rows) == (1, 1)
    # Records without what a replay needs are not taken for it.
    path.write_text(json.dumps({k: v for k, v in good.items() if k != "endpoints"}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="the file lacks 'endpoints'"):
        read_trace(path, format="routes")
