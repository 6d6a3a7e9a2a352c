"""Route records as a trace, which replays as it was recorded, on what it was recorded on, and can be tuned for."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from recordings import RATES, SERVER, device, file_of, played, recording, trace_of

from disco.cli import main
from disco.cost import ExchangeRate, Phase, Rates, device_rates
from disco.dispatch import load_preset
from disco.dispatch.regime import regime
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError, FailureKind
from disco.plan import Power, Start
from disco.profiles import Empirical, load_device, load_server
from disco.replay.formats import read_trace, write_trace
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.from_recording import is_recording, scenario_of_routes
from disco.replay.workload.scenario import Arm, resolve
from disco.replay.workload.trace import Trace

NAN = math.nan


def check(trace, **expected):
    """The first request has these values."""
    found = {
        name: (trace.features[name] if name in trace.features else getattr(trace, name))[0]
        for name in expected
    }
    assert found == pytest.approx(expected, abs=2e-6, nan_ok=True)


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


def test_an_answer_on_battery_is_charged_as_on_mains(tmp_path):
    """A replay has one rate for all requests; the record says by how much the energy was dearer."""
    profiles = {"device": device(0.2), "server": SERVER}
    starts = Start("device"), Start("server")
    here = RATES["device"]
    dear = {**RATES, "device": replace(here, cost_in=100 * here.cost_in, cost_out=100 * here.cost_out)}
    mains, battery = played(profiles, *starts), played(profiles, *starts, rates=dear)
    battery = replace(battery, power=Power(conditions=("battery",), energy_factor=100.0, on_battery=True))
    assert battery.policy_cost > mains.policy_cost
    assert battery.bill_usd == mains.bill_usd > 0  # nobody is paid for a battery
    assert battery.device_energy_j == mains.device_energy_j > 0
    plain, read = (trace_of(tmp_path, record) for record in (mains, battery))
    for name, values in plain.features.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(read.features[name], values, rtol=1e-9, err_msg=name)


def test_what_was_planned_and_not_needed_is_planned_again_and_a_reader_who_left_leaves_bounds(tmp_path):
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server", 5.0))
    assert [t.endpoint for t in record.attempts] == ["device"]
    check(trace_of(tmp_path, record), server_start_s=5.0, ttft_over_s=NAN)
    left = played({"device": device(0.9), "server": SERVER}, Start("device"), Start("server"), cancel_at=0.25)
    unknown = {"ttft_s": NAN, "ttft_recorded_s": NAN}
    check(trace_of(tmp_path, left), **unknown, ttft_over_s=0.25, device_ttft_over_s=0.25)


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
    assert skipped.named() == [f"{tmp_path / 'r.jsonl'}, line 4: failed at the source"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"created_s": None}, "line 2: created_s: missing value"),
        ({"created_s": "noon"}, "line 2: the field 'created_s': input should be a valid number"),
        ({"attempts": None}, "line 2: the field 'attempts': "),
        ({"prompt_tokens": -1}, "line 2: the field 'prompt_tokens': a count must not be negative"),
        ({"schema": 3}, "line 2: this record has schema 3"),
    ],
)
def test_a_bad_record_is_left_out_and_named(tmp_path, change, says):
    good = played({"server": SERVER}, Start("server")).to_dict()
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in (good, {**good, **change})), encoding="utf-8")
    trace, skipped = read_trace(path)
    assert (len(trace), skipped.rows) == (1, 1)
    assert says in str(skipped)
    # Of virtual time alone nothing is left, and the remedy is said.
    path.write_text(json.dumps({**good, "created_s": None}), encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r"line 1: created_s: missing value.*virtual time.*disco\.RouteLog"
    ):
        read_trace(path)
    # What a record lacks is said as by every other reader.
    path.write_text(json.dumps({k: v for k, v in good.items() if k != "endpoints"}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 1: the field 'endpoints' is missing"):
        read_trace(path, format="routes")


PROFILE, SERVER_PROFILE = load_device("pixel7pro-bloom-560m"), load_server("gpt-4o-mini-2024")

times = st.floats(0.01, 3.0)
delays = st.sampled_from([0.0, 0.05, 0.7])


@settings(max_examples=20)
@example([(0.5, 0.5, 0.0, 0.0, 20), (0.5, 0.5 + 1e-7, 0.0, 0.0, 20)])
@given(st.lists(st.tuples(times, times, delays, delays, st.integers(1, 400)), min_size=2, max_size=6))
def test_as_recorded_every_winner_and_every_first_token_comes_back(tmp_path_factory, races):
    """Unknown times are drawn beyond their bounds, so that no loser of a race ever wins it in a replay."""
    for device_s, server_s, device_after, server_after, _ in races:
        # A record rounds to 1 µs: whether a side started just before the other one's first token is lost.
        assume(abs(device_after + device_s - server_after) > 2e-6)
        assume(abs(server_after + server_s - device_after) > 2e-6)
    records = []
    for i, (device_s, server_s, device_after, server_after, prompt) in enumerate(races):
        profiles = {
            "device": device(device_s, answer_tokens=10),
            "server": SimulatedProfile(ttft_s=server_s, decode_tps=80.0, answer_tokens=10),
        }
        starts = Start("device", device_after), Start("server", server_after)
        records.append(played(profiles, *starts, created_s=1e9 + i, prompt_tokens=prompt))
    trace = trace_of(tmp_path_factory.mktemp("routes"), *records)
    scenario = scenario_of_routes(trace, device=PROFILE, server=SERVER_PROFILE)
    for seed in range(2):
        workload = resolve(trace, scenario, seed=seed)
        outcome = evaluate(workload, scenario, Arm("recorded"), seed=seed)
        recorded = [r.pace.ttft_raw_s for r in records]
        assert outcome.ttft_s == pytest.approx(recorded, abs=3e-6)
        assert outcome.device_won.tolist() == [r.winner == "device" for r in records]
        assert outcome.cost_usd == pytest.approx(trace.features["replay_policy_cost"], rel=1e-9)
        recorded_cost = np.array([r.policy_cost for r in records])
        # A loser whose first token came at the same time is charged for it live, and not in a replay.
        wrote_alone = [
            not any(c.completion_tokens for c in r.ledger.charges if c.phase == Phase.RACE_LOSER)
            for r in records
        ]
        assert outcome.cost_usd[wrote_alone] == pytest.approx(recorded_cost[wrote_alone], rel=1e-9)


def test_what_is_unknown_beyond_a_bound_is_drawn_from_beyond_it(tmp_path):
    """P(T > t | T > x), and nothing else changes: the rows without a bound meet the same luck as before."""
    n, bound_s = 20_000, 1.0
    ttft = Empirical.from_quantiles([0.0, 0.5, 1.0], [0.2, 0.8, 3.0])
    bounds = np.full(n, np.nan)
    bounds[::2] = bound_s
    plain = Trace.of(arrival_s=np.arange(n), prompt_tokens=np.full(n, 10), output_tokens=np.full(n, 10))
    bounded = replace(plain, features={"ttft_over_s": bounds, "device_ttft_over_s": bounds})
    record = played({"device": device(0.2), "server": SERVER}, Start("device"), Start("server"))
    scenario = scenario_of_routes(trace_of(tmp_path, record), device=PROFILE, server=SERVER_PROFILE)
    scenario = replace(scenario, ttft=ttft)
    free, held = (resolve(t, scenario, seed=5) for t in (plain, bounded))
    for name in ("server_ttft_s", "device_ttft_s"):
        assert (getattr(held, name)[1::2] == getattr(free, name)[1::2]).all()
        assert (getattr(held, name)[::2] >= bound_s).all()
    beyond = replace(plain, features={"ttft_over_s": np.full(n, 99.0)})  # beyond all that was seen: itself
    assert (resolve(beyond, scenario, seed=0).server_ttft_s == 99.0).all()
    drawn = held.server_ttft_s[::2]
    levels = np.linspace(0.05, 0.95, 19)
    below = ttft.cdf(bound_s)
    assert np.quantile(drawn, levels) == pytest.approx(ttft.quantile(below + (1 - below) * levels), rel=0.03)


# ---------------------------------------------------------------------- what it was recorded on


def test_the_scenario_of_a_recording_is_what_it_was_made_on(tmp_path):
    scenario = scenario_of_routes(recording(tmp_path, list(range(10, 400, 25))))
    assert scenario.name == "device × server as recorded"
    assert (scenario.device_rates, scenario.server_rates) == (RATES["device"], RATES["server"])
    line = scenario.device.line
    speeds = line.k_s_per_token, scenario.device.decode_tps, scenario.server_tps, scenario.pace_tps
    assert speeds == pytest.approx((0.002, 30.0, 80.0, 12.0), rel=1e-3)
    assert line.c_s == pytest.approx(0.1, abs=1e-4)
    assert scenario.ttft.mean() == pytest.approx(0.3, rel=0.03)
    assert (scenario.device_continues, scenario.server_continues) == (True, True)
    assert scenario.regime == "server-constrained"


def test_lost_races_make_the_server_slower_than_those_it_won(tmp_path):
    """Taking only the times that were seen would call a server fast that is fast when it wins."""
    times_s = np.random.default_rng(0).exponential(0.6, 200)
    starts = Start("server"), Start("device")
    records = []
    for i, ttft_s in enumerate(times_s):
        profiles = {"device": device(0.5), "server": SimulatedProfile(ttft_s=ttft_s, answer_tokens=2)}
        records.append(played(profiles, *starts, created_s=1e9 + i, prompt_tokens=10 + i))
    trace = trace_of(tmp_path, *records)
    seen = trace.ttft_s[~np.isnan(trace.ttft_s)]
    assert seen.max() <= 0.5
    ttft = scenario_of_routes(trace, device=PROFILE).ttft
    truth = np.mean(times_s <= 0.3)
    assert ttft.cdf(0.3) == pytest.approx(truth, abs=0.02)
    assert np.mean(seen <= 0.3) > truth + 0.2


def test_what_was_too_little_seen_must_be_named(tmp_path):
    few = recording(tmp_path, [10, 20, 30])
    with pytest.raises(ConfigurationError, match=r"2 warm starts .* at least 8 .*name a device profile"):
        scenario_of_routes(few)
    assert scenario_of_routes(few, device=PROFILE).device is PROFILE
    profiles = {"device": device(0.1), "server": SERVER}
    lost = [played(profiles, Start("device"), Start("server"), created_s=1e9 + i) for i in range(3)]
    trace = trace_of(tmp_path, *lost)
    with pytest.raises(ConfigurationError, match="has no first token of the server"):
        scenario_of_routes(trace, device=PROFILE)
    found = scenario_of_routes(trace, device=PROFILE, server=SERVER_PROFILE)
    assert found.ttft.mean() == SERVER_PROFILE.ttft().mean()
    # A client without a server had nothing to decide.
    alone = [played({"device": device(0.1)}, Start("device"), prompt_tokens=10 + i) for i in range(10)]
    with pytest.raises(ConfigurationError, match=r"made without a server.* --server"):
        scenario_of_routes(trace_of(tmp_path, *alone))
    added = scenario_of_routes(trace_of(tmp_path, *alone), server=SERVER_PROFILE)
    assert added.server_name == SERVER_PROFILE.name
    assert added.server_rates.cost_out > 0
    no_recording = Trace.of(arrival_s=[0.0], prompt_tokens=[10], output_tokens=[10])
    with pytest.raises(ConfigurationError, match="was not read from route records"):
        scenario_of_routes(no_recording)


def test_loading_is_not_part_of_the_line(tmp_path):
    records = []
    for i, prompt in enumerate(range(10, 310, 20)):
        loads_s, load_s = (0.0, 0.0) if i else (1.5, 2.0)  # what it takes, and what was expected
        profiles = {"device": device(0.1 + 0.002 * prompt + loads_s), "server": SERVER}
        records.append(played(profiles, Start("device"), prompt_tokens=prompt, load_s=load_s))
    trace = trace_of(tmp_path, *records)
    found = scenario_of_routes(trace, server=SERVER_PROFILE).device
    assert (found.line.c_s, found.load_s) == (pytest.approx(0.1, abs=1e-4), pytest.approx(1.5, abs=1e-3))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_recording_written_in_our_own_format_replays_the_same(tmp_path, suffix):
    trace = recording(tmp_path, list(range(10, 400, 25)))
    path = tmp_path / f"own{suffix}"
    write_trace(trace, path)
    again, _ = read_trace(path)
    assert is_recording(again)
    outcomes = []
    for one in (trace, again):
        scenario = scenario_of_routes(one)
        outcomes.append(evaluate(resolve(one, scenario, seed=1), scenario, Arm("recorded"), seed=1))
    first, second = ((one.ttft_s.tolist(), one.cost_usd.tolist()) for one in outcomes)
    assert first == second


def test_tuning_a_recording_leaves_the_dear_side_dear(tmp_path, capsys):
    """The λ behind the recorded rates is that of the record; a named profile of the device tells one of its own."""
    rates = {"device": Rates(1e-4, 1e-4, 0.0), "server": RATES["server"]}
    recording(tmp_path, list(range(10, 400, 25)), rates=rates)
    out = tmp_path / "mine.toml"
    command = ["tune", str(tmp_path / "routes.jsonl"), "--jobs=1", "--verify-requests=5", "--out", str(out)]
    for more in ([], ["--device", PROFILE.name]):
        assert main([*command, *more]) == 0
        # λ column of the table: of the row that is as it is, and of the one chosen.
        rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
        own = float(next(row[3] for row in rows if "as it is" in row[1]))
        if more:
            live = device_rates(PROFILE, ExchangeRate(usd_per_mflop=own))
            assert live.cost_out == pytest.approx(1e-4, rel=0.05)  # the table prints two digits
            assert regime(live, rates["server"]) == "device-constrained"
        else:
            assert own == 4e-12
        chosen = next(row[3].strip() for row in rows if "▶" in row[1])
        assert f"{load_preset(out).cost.exchange_rate:.2g}" == chosen
        out.unlink()
