"""Route records as a trace: what was seen is kept, what was cut off is a bound, and as recorded it replays exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from playing import run_session

from disco.cost import ExchangeRate, Rates
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError, FailureKind
from disco.plan import Candidate, Migration, Plan, Start
from disco.playback import Pace, Playback
from disco.profiles import Empirical, load_device, load_server
from disco.replay.formats import read_trace, write_trace
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.from_recording import is_recording, scenario_of_routes
from disco.replay.workload.scenario import Arm, resolve, scenario_for
from disco.replay.workload.trace import Trace
from disco.request import Request
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.records.route_record import RouteRecord
from disco.session.switching.migration_rule import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")
RATES = {"device": Rates(4e-9, 5e-9, 0.0), "server": Rates(1.5e-7, 6e-7)}
SERVER = SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=40)


def device(ttft_s: float, **more: object) -> SimulatedProfile:
    return SimulatedProfile(**{"ttft_s": ttft_s, "decode_tps": 30.0, "answer_tokens": 40, **more})


def played(
    profiles: dict[str, SimulatedProfile],
    *starts: Start,
    created_s: float = 1e9,
    prompt_tokens: int = 20,
    move: bool = False,
    load_s: float = 0.0,
    fallbacks: tuple[str, ...] = (),
    cancel_at: float = np.inf,
    rates: dict[str, Rates] = RATES,
    pace_tps: float | None = None,
) -> RouteRecord:
    """The record of one answer in virtual time, as if it had been asked for at `created_s`."""
    candidates = {
        name: Candidate(
            name,
            "device" if name == "device" else "server",
            rates=rates[name],
            load_s=load_s if name == "device" else 0.0,
            overhead_s=0.1,
            continues=True,
        )
        for name in profiles
    }
    moves = {"server": Migration("device")} if move else {}
    pace = None if pace_tps is None else Pace(tps=pace_tps)
    session = Session(
        Plan(starts, fallbacks, moves),
        candidates,
        SessionConfig(prompt_tokens=prompt_tokens, pace_tps=pace_tps),
        Playback(pace),
        AnswerLengths.geometric(150.0),
    )
    run_session(session, profiles, REQUEST, np.random.default_rng(0), cancel_at=cancel_at)
    return make_record(session, settle_accounts(session), preset="test", created_s=created_s)


def file_of(path: Path, *records: RouteRecord, timelines: bool = True) -> Path:
    path.write_text("".join(r.to_json(timelines=timelines) + "\n" for r in records), encoding="utf-8")
    return path


def trace_of(tmp_path: Path, *records: RouteRecord, timelines: bool = True) -> Trace:
    return read_trace(file_of(tmp_path / "routes.jsonl", *records, timelines=timelines))[0]


def feature(trace: Trace, name: str) -> object:
    return trace.features[name][0]


def test_a_race_the_device_won(tmp_path):
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server", 0.05))
    trace = trace_of(tmp_path, record)
    assert trace.source.startswith("routes.jsonl (format routes)")
    assert is_recording(trace)
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (20, 40)
    assert trace.device_ttft_s[0] == pytest.approx(0.2, abs=1e-6)
    assert trace.device_tpot_s[0] == pytest.approx(1 / 30, abs=1e-5)
    assert np.isnan(trace.ttft_s[0])
    assert np.isnan(trace.tpot_s[0])
    assert feature(trace, "ttft_over_s") == pytest.approx(0.15, abs=2e-6)
    assert feature(trace, "ttft_over_s") > 0.15
    assert (feature(trace, "device_start_s"), feature(trace, "server_start_s")) == (0.0, 0.05)
    assert feature(trace, "winner") == "device"
    assert feature(trace, "cost_usd") == pytest.approx(record.cost, rel=1e-12)
    # A race between two that read the whole prompt costs what a replay charges.
    assert feature(trace, "replay_cost_usd") == pytest.approx(record.cost, rel=1e-12)


def test_a_race_the_server_won_knows_its_gaps(tmp_path):
    record = played({"device": device(0.9), "server": SERVER}, Start("device"), Start("server"))
    trace = trace_of(tmp_path, record)
    assert trace.ttft_s[0] == pytest.approx(0.3, abs=1e-6)
    assert np.isnan(trace.device_ttft_s[0])
    assert feature(trace, "device_ttft_over_s") == pytest.approx(0.3, abs=2e-6)
    assert trace.gaps.of(0) == pytest.approx([1 / 80] * 39, abs=1.1e-4)
    without = trace_of(tmp_path, record, timelines=False)
    assert without.gaps is None or without.gaps.of(0).size == 0
    assert without.tpot_s[0] == pytest.approx(1 / 80, abs=1e-5)


def test_tokens_that_came_together_have_no_gap(tmp_path):
    packets = SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=8, packet_tokens=3)
    record = played({"server": packets}, Start("server"))
    gaps = trace_of(tmp_path, record).gaps.of(0)
    assert gaps == pytest.approx([0, 0, 3 / 80, 0, 0, 3 / 80, 0], abs=1.1e-4)


def test_a_planned_start_that_was_not_needed_is_planned_again(tmp_path):
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server", 5.0))
    trace = trace_of(tmp_path, record)
    assert [t.endpoint for t in record.attempts] == ["device"]
    assert feature(trace, "server_start_s") == 5.0
    assert np.isnan(feature(trace, "ttft_over_s"))


def test_records_are_sorted_by_when_their_requests_came(tmp_path):
    """Records are written when answers end: a long answer comes after a short one that was asked for later."""
    times = [1e9 + 7.25, 1e9, 1e9 + 3.5]
    records = [played({"server": SERVER}, Start("server"), created_s=at) for at in times]
    trace = trace_of(tmp_path, *records)
    assert trace.arrival_s.tolist() == [0.0, 3.5, 7.25]


def test_one_that_failed_is_left_out_and_counted(tmp_path):
    dead = device(0.2, fault=Fault(0))
    path = file_of(
        tmp_path / "r.jsonl",
        played({"device": dead}, Start("device")),
        played({"server": SERVER}, Start("server")),
    )
    trace, skipped = read_trace(path)
    assert len(trace) == 1
    assert skipped.reasons == {"failed at the source": 1}


def test_a_start_that_failed_is_not_started_in_a_replay(tmp_path):
    dead = SimulatedProfile(ttft_s=0.1, fault=Fault(0, kind=FailureKind.CONNECTION))
    record = played({"server": dead, "device": device(0.2)}, Start("server"), fallbacks=("device",))
    assert [(t.endpoint, t.failure) for t in record.attempts] == [("server", "connection"), ("device", None)]
    trace = trace_of(tmp_path, record)
    assert np.isnan(feature(trace, "server_start_s"))
    assert np.isnan(feature(trace, "ttft_over_s"))
    assert feature(trace, "device_start_s") == pytest.approx(record.attempts[1].started_s, abs=1e-6)
    assert trace.device_ttft_s[0] == pytest.approx(0.2, abs=1e-6)


def test_of_a_moved_answer_both_speeds_are_known_and_no_gaps(tmp_path):
    dear = {"server": Rates(1e-7, 1e-3), "device": Rates(1e-9, 1e-9, 0.0)}
    profiles = {
        "server": SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=200),
        "device": device(0.2, answer_tokens=200),
    }
    record = played(profiles, Start("server"), move=True, pace_tps=5.0, rates=dear)
    assert [t.outcome for t in record.migrations] == ["switched"]
    trace = trace_of(tmp_path, record)
    assert feature(trace, "moved")
    assert trace.ttft_s[0] == pytest.approx(0.3, abs=1e-6)
    assert np.isnan(trace.device_ttft_s[0]), "a target's first token came after a prefix, not after a prompt"
    assert np.isnan(feature(trace, "device_start_s"))
    assert trace.gaps is None or trace.gaps.of(0).size == 0
    assert trace.tpot_s[0] == pytest.approx(1 / 80, rel=0.1)
    assert trace.device_tpot_s[0] == pytest.approx(1 / 30, rel=0.1)
    assert trace.output_tokens[0] == 200


def test_a_reader_who_left_before_the_first_word_leaves_bounds(tmp_path):
    record = played(
        {"device": device(0.9), "server": SERVER}, Start("device"), Start("server"), cancel_at=0.25
    )
    trace = trace_of(tmp_path, record)
    assert np.isnan(trace.ttft_s[0])
    assert feature(trace, "ttft_over_s") == pytest.approx(0.25, abs=2e-6)
    assert feature(trace, "device_ttft_over_s") == pytest.approx(0.25, abs=2e-6)
    assert np.isnan(feature(trace, "ttft_recorded_s"))


def test_a_cold_start_is_marked(tmp_path):
    records = [played({"device": device(0.2)}, Start("device"), load_s=load_s) for load_s in (2.0, 0.0)]
    assert trace_of(tmp_path, *records).features["device_cold"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"created_s": None}, r"line 2, column created_s: missing value; .*virtual time .*disco\.RouteLog"),
        ({"created_s": "noon"}, "line 2, column created_s: 'noon' is not a number"),
        ({"attempts": None}, "line 2: of another shape; it is not as in disco's route records"),
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


def test_records_without_what_a_replay_needs_are_not_taken_for_it(tmp_path):
    old = {k: v for k, v in played({"server": SERVER}, Start("server")).to_dict().items() if k != "endpoints"}
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(old), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="it lacks 'endpoints'"):
        read_trace(path, format="routes")


# ---------------------------------------------------------------------- replayed as recorded

times = st.floats(0.01, 3.0)
delays = st.sampled_from([0.0, 0.05, 0.7])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(times, times, delays, delays, st.integers(1, 400)), min_size=2, max_size=6))
def test_as_recorded_every_winner_and_every_first_token_comes_back(tmp_path_factory, races):
    """Unknown times are drawn beyond their bounds, so that no loser of a race ever wins it in a replay."""
    records = []
    for i, (device_s, server_s, device_after, server_after, prompt) in enumerate(races):
        # At the very same time the loser's token is charged, too; on a real clock that does not happen.
        assume(abs(device_s + device_after - server_s - server_after) > 1e-5)
        profiles = {
            "device": device(device_s, answer_tokens=10),
            "server": SimulatedProfile(ttft_s=server_s, decode_tps=80.0, answer_tokens=10),
        }
        starts = Start("device", device_after), Start("server", server_after)
        records.append(played(profiles, *starts, created_s=1e9 + i, prompt_tokens=prompt))
    trace = trace_of(tmp_path_factory.mktemp("routes"), *records)
    scenario = scenario_of_routes(
        trace, device=load_device("pixel7pro-bloom-560m"), server=load_server("gpt-4o-mini-2024")
    )
    for seed in range(3):
        workload = resolve(trace, scenario, seed=seed)
        outcome = evaluate(workload, scenario, Arm("recorded"), seed=seed)
        recorded = [r.pace.ttft_raw_s for r in records]
        assert outcome.ttft_s == pytest.approx(recorded, abs=3e-6)
        assert outcome.device_won.tolist() == [r.winner == "device" for r in records]
        assert outcome.cost_usd == pytest.approx(trace.features["replay_cost_usd"], rel=1e-9)
        assert outcome.cost_usd == pytest.approx([r.cost for r in records], rel=1e-9)


def test_only_a_recording_can_be_replayed_as_recorded():
    trace = Trace.of(arrival_s=[0.0], prompt_tokens=[10], output_tokens=[10])
    with pytest.raises(ConfigurationError, match="was not read from route records"):
        scenario_of_routes(trace)


def test_what_is_unknown_beyond_a_bound_is_drawn_from_beyond_it(tmp_path):
    """P(T > t | T > x), and nothing else changes: the rows without a bound meet the same luck as before."""
    n, bound_s = 20_000, 1.0
    ttft = Empirical.from_quantiles([0.0, 0.5, 1.0], [0.2, 0.8, 3.0])
    bounds = np.full(n, np.nan)
    bounds[::2] = bound_s
    plain = Trace.of(arrival_s=np.arange(n), prompt_tokens=np.full(n, 10), output_tokens=np.full(n, 10))
    bounded = Trace.of(
        arrival_s=np.arange(n),
        prompt_tokens=np.full(n, 10),
        output_tokens=np.full(n, 10),
        features={"ttft_over_s": bounds, "device_ttft_over_s": bounds},
    )
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server"))
    profile, server = load_device("pixel7pro-bloom-560m"), load_server("gpt-4o-mini-2024")
    scenario = scenario_of_routes(trace_of(tmp_path, record), device=profile, server=server)
    scenario = replace(scenario, ttft=ttft)
    free, held = (resolve(t, scenario, seed=5) for t in (plain, bounded))
    assert (held.server_ttft_s[1::2] == free.server_ttft_s[1::2]).all()
    assert (held.device_ttft_s[1::2] == free.device_ttft_s[1::2]).all()
    drawn = held.server_ttft_s[::2]
    assert (drawn >= bound_s).all()
    levels = np.linspace(0.05, 0.95, 19)
    below = ttft.cdf(bound_s)
    assert np.quantile(drawn, levels) == pytest.approx(ttft.quantile(below + (1 - below) * levels), rel=0.03)
    assert (held.device_ttft_s[::2] >= bound_s).all()


def test_a_bound_beyond_all_that_was_seen_stands_for_itself():
    trace = Trace.of(
        arrival_s=[0.0],
        prompt_tokens=[10],
        output_tokens=[10],
        features={"ttft_over_s": np.array([99.0])},
    )
    scenario = scenario_for(
        load_device("pixel7pro-bloom-560m"),
        load_server("gpt-4o-mini-2024"),
        exchange_rate=ExchangeRate(usd_per_mflop=0.0),
    )
    assert resolve(trace, scenario, seed=0).server_ttft_s.tolist() == [99.0]


# ---------------------------------------------------------------------- what it was recorded on


def recording(tmp_path: Path, prompts: list[int], **more: object) -> Trace:
    """The device takes 0.1 s + 2 ms per token and writes 30 tokens/s, the server 0.3 s and 80 tokens/s."""
    records = []
    for i, prompt in enumerate(prompts):
        profiles = {"device": device(0.1 + 0.002 * prompt), "server": SERVER}
        start = Start("device" if i % 3 else "server")
        record = played(profiles, start, created_s=1e9 + i, prompt_tokens=prompt, pace_tps=12.0, **more)
        records.append(record)
    return trace_of(tmp_path, *records)


def test_the_scenario_of_a_recording_is_what_it_was_made_on(tmp_path):
    scenario = scenario_of_routes(recording(tmp_path, list(range(10, 400, 25))))
    assert scenario.name == "device × server as recorded"
    assert scenario.device_rates == RATES["device"]
    assert scenario.server_rates == RATES["server"]
    assert scenario.pace_tps == 12.0
    assert scenario.device.line.k_s_per_token == pytest.approx(0.002, rel=1e-3)
    assert scenario.device.line.c_s == pytest.approx(0.1, abs=1e-4)
    assert scenario.device.decode_tps == pytest.approx(30.0, rel=1e-3)
    assert scenario.server_tps == pytest.approx(80.0, rel=1e-2)
    assert scenario.ttft.mean() == pytest.approx(0.3, rel=0.03)
    assert (scenario.device_continues, scenario.server_continues) == (True, True)
    assert scenario.regime == "server-constrained"


def test_lost_races_make_the_server_slower_than_those_it_won(tmp_path):
    """Taking only the times that were seen would call a server fast that is fast when it wins."""
    times_s = np.random.default_rng(0).exponential(0.6, 200)
    records = [
        played(
            {"device": device(0.5), "server": SimulatedProfile(ttft_s=ttft_s, answer_tokens=10)},
            Start("server"),
            Start("device"),
            created_s=1e9 + i,
            prompt_tokens=10 + i,
        )
        for i, ttft_s in enumerate(times_s)
    ]
    trace = trace_of(tmp_path, *records)
    seen = trace.ttft_s[~np.isnan(trace.ttft_s)]
    assert seen.max() <= 0.5
    ttft = scenario_of_routes(trace, device=load_device("pixel7pro-bloom-560m")).ttft
    truth = np.mean(times_s <= 0.3)
    assert ttft.cdf(0.3) == pytest.approx(truth, abs=0.02)
    assert np.mean(seen <= 0.3) > truth + 0.2


def test_what_was_too_little_seen_must_be_named(tmp_path):
    few = recording(tmp_path, [10, 20, 30])
    with pytest.raises(ConfigurationError, match=r"2 warm starts .* at least 8 .*name a device profile"):
        scenario_of_routes(few)
    profile = load_device("pixel7pro-bloom-560m")
    assert scenario_of_routes(few, device=profile).device is profile
    lost = [
        played({"device": device(0.1), "server": SERVER}, Start("device"), Start("server"), created_s=1e9 + i)
        for i in range(3)
    ]
    trace = trace_of(tmp_path, *lost)
    with pytest.raises(ConfigurationError, match="the server never came to speak"):
        scenario_of_routes(trace, device=profile)
    server = load_server("gpt-4o-mini-2024")
    assert scenario_of_routes(trace, device=profile, server=server).ttft.mean() == server.ttft().mean()


def test_a_client_without_a_server_had_nothing_to_decide(tmp_path):
    alone = [
        played({"device": device(0.1)}, Start("device"), created_s=1e9 + i, prompt_tokens=10 + i)
        for i in range(10)
    ]
    with pytest.raises(ConfigurationError, match="made without a server"):
        scenario_of_routes(trace_of(tmp_path, *alone), server=load_server("gpt-4o-mini-2024"))


def test_loading_is_not_part_of_the_line(tmp_path):
    prompts = list(range(10, 310, 20))
    records = [
        played(
            {"device": device(0.1 + 0.002 * prompt + (1.5 if i == 0 else 0.0)), "server": SERVER},
            Start("device"),
            created_s=1e9 + i,
            prompt_tokens=prompt,
            load_s=2.0 if i == 0 else 0.0,
        )
        for i, prompt in enumerate(prompts)
    ]
    trace = trace_of(tmp_path, *records)
    found = scenario_of_routes(trace, server=load_server("gpt-4o-mini-2024")).device
    assert found.line.c_s == pytest.approx(0.1, abs=1e-4)
    assert found.load_s == pytest.approx(1.5, abs=1e-3)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_recording_written_in_our_own_format_replays_the_same(tmp_path, suffix):
    trace = recording(tmp_path, list(range(10, 400, 25)))
    path = tmp_path / f"own{suffix}"
    write_trace(trace, path)
    again, _ = read_trace(path)
    assert is_recording(again)
    first, second = (
        evaluate(resolve(t, s, seed=1), s, Arm("recorded"), seed=1)
        for t in (trace, again)
        for s in [scenario_of_routes(t)]
    )
    assert (first.ttft_s == second.ttft_s).all()
    assert (first.cost_usd == second.cost_usd).all()
