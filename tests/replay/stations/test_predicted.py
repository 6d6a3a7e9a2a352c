"""`disco replay routes.jsonl --as-recorded`: what is predicted of a recording, beside what was lived."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from lived import BEGAN_S, Asked, Side, live

from disco.cli.main import main
from disco.dispatch import Preset, load_preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile, prose
from disco.profiles import Empirical, LinearFit
from disco.rates import Rates
from disco.replay.stations import AsLive, KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import SCHEMA

SIDES = (
    Side("device", 0, prefill_tps=201.3, ttft_s=0.05, decode_tps=30.7),
    Side("server", 1, ttft_s=0.4037, decode_tps=61.3, usd_per_token=8e-6),
)


def written(path, records, preset=None):
    """A recording of these records, as if the preset were of that name."""
    rows = [json.loads(one.to_json()) | ({} if preset is None else {"preset": preset}) for one in records]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def lived(path, preset: str, *, requests: int = 240, slower: float = 1.0, seed: int = 5):
    """A recording of a live client on simulated endpoints, whose times are drawn anew for each answer."""
    rng = random.Random(seed)
    asked = [
        Asked(30.0 * n, rng.randint(10, 300), dict.fromkeys(("device", "server"), rng.randint(8, 16)))
        for n in range(requests)
    ]
    drawn = [(rng.lognormvariate(0.0, 0.2), rng.lognormvariate(0.0, 0.5)) for _ in asked]

    def endpoint(side):
        def made(_workload, row):
            luck = slower * drawn[row][side.rank]
            profile = SimulatedProfile(
                ttft_s=0.0 if side.is_device else luck * side.ttft_s,
                overhead_s=luck * side.ttft_s if side.is_device else 0.0,
                prefill_tps=side.prefill_tps / luck,
                decode_tps=side.decode_tps / slower,
                answer="".join(packet[0].text for packet in prose(16)[: asked[row].answer_tokens[side.name]]),
            )
            return SimulatedEndpoint(side.name, profile, place="device" if side.is_device else "server")

        return made

    records = live(load_preset(preset), SIDES, asked, endpoints={one.name: endpoint(one) for one in SIDES})
    return written(path, [one for one in records if one])


def predicted(path, *options):
    """The error of each figure with its interval, and the notes."""
    figures = path.with_name("figures.json")
    assert main(["replay", str(path), "--as-recorded", *map(str, options), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text(encoding="utf-8"))
    return {one["name"]: one for one in found["presets"][0]["figures"]}, found["notes"]


def within(one, most: float) -> bool:
    """The error is at most so large, or not to be told from none."""
    error = one["error"]
    return abs(error["mean"]) <= most and (abs(error["mean"]) <= 0.01 or error["low"] <= 0.0 <= error["high"])


@pytest.mark.parametrize("preset", ["fast", "balanced", "cheap"])
def test_the_second_half_is_predicted_from_the_first(tmp_path, capsys, preset):
    path = lived(tmp_path / "routes.jsonl", preset)
    found, notes = predicted(path, "--fit-on", "0.5")
    assert within(found["TTFT P50, s"], 0.15)
    assert within(found["TTFT P90, s"], 0.2)
    assert within(found["to servers, USD/1000"], 0.15)
    assert found["answer's tokens"]["predicted"] == pytest.approx(found["answer's tokens"]["lived"])
    assert "All times are drawn from the first 120 answers; those behind them are predicted." in notes
    shown = " ".join(capsys.readouterr().out.split())
    assert "routes.jsonl" in shown
    assert "95 % interval" in shown
    assert "Not modelled: failures, silences" in shown


def test_what_was_measured_is_replayed_as_it_was(tmp_path):
    found, _ = predicted(lived(tmp_path / "routes.jsonl", "cheap", requests=60))
    for name in ("TTFT P50, s", "TTFT P99, s", "to servers, USD/1000", "begun by device"):
        assert abs(found[name]["error"]["mean"]) < 0.02, name
    assert abs(found["tokens read"]["error"]["mean"]) < 0.05  # how far a loser had read is drawn


def test_one_preset_is_predicted_from_a_recording_of_another(tmp_path):
    raced, cheap = lived(tmp_path / "raced.jsonl", "fast"), lived(tmp_path / "cheap.jsonl", "cheap", seed=6)
    found, notes = predicted(cheap, "--fit-on", raced)
    assert within(found["TTFT P50, s"], 0.15)
    assert abs(found["to servers, USD/1000"]["error"]["mean"]) < 0.15
    assert any("240 answers of" in note and "none is copied" in note for note in notes)


def test_a_wrong_model_is_noticed(tmp_path):
    slow = lived(tmp_path / "slow.jsonl", "fast", slower=2.0)
    found, _ = predicted(lived(tmp_path / "routes.jsonl", "fast"), "--fit-on", slow)
    assert found["TTFT P50, s"]["error"]["low"] > 0.5
    assert found["TTFT P90, s"]["error"]["low"] > 0.5


QUEUED = Preset(name="queued", dispatch={"policy": "race"}, playback={"pace_tps": "off"})


def queued(path, *, requests: int = 150):
    """A recording of a busy device, on which answers wait, and of a server that counts and estimates its own way."""
    stations = (
        Station(
            "device",
            "device",
            Rates(1e-9, 1e-9, is_money=False, j_in=0.01, j_out=0.01),
            LinearFit(0.004, 0.1, 1.0, 9),
            slots=1,
        ),
        Station("server", "any", Rates(1e-6, 4e-6, 0.1), Empirical.from_samples([1.0]), rank=1),
    )
    rng = np.random.default_rng(3)
    prompts = rng.integers(20, 200, requests)
    known = {
        "device": KnownTimes(
            ttft_s=(0.004 * (prompts + 30 - 10) + 0.1) * rng.lognormal(0.0, 0.1, requests),
            prompt_tokens=prompts + 30,
            cached_tokens=np.full(requests, 10),
        ),
        "server": KnownTimes(
            ttft_s=0.9 * rng.lognormal(0.0, 0.4, requests),
            prompt_tokens=prompts + 30,
            cached_tokens=np.full(requests, 16),
            told_tokens=prompts - 3,
        ),
    }
    trace = Trace.of(
        arrival_s=np.cumsum(rng.exponential(1.0, requests)),
        prompt_tokens=prompts,
        output_tokens=rng.integers(8, 16, requests),
    )
    workload = resolve_stations(trace, stations, seed=0, known=known)
    records = {}
    simulate_stations(workload, stations, AsLive(QUEUED), on_record=records.__setitem__)
    made = [replace(records[row], created_s=BEGAN_S + at) for row, at in enumerate(trace.arrival_s.tolist())]
    return written(path, made), made


def test_answers_wait_for_each_other_and_losers_are_charged_as_live(tmp_path, capsys):
    path, records = queued(tmp_path / "queued.jsonl")
    waited = [a.began_s - a.started_s for one in records for a in one.attempts if a.began_s is not None]
    assert max(waited) > 0.5
    mine = tmp_path / "queued.toml"
    mine.write_text('[dispatch]\npolicy = "race"\n[playback]\npace_tps = "off"\n')
    assert main(["replay", str(path), "--as-recorded"]) != 0
    assert "recorded with the preset 'queued', which disco does not ship" in capsys.readouterr().err
    found, _ = predicted(path, "--preset", mine)
    assert abs(found["TTFT P99, s"]["error"]["mean"]) < 0.03
    assert abs(found["to servers, USD/1000"]["error"]["mean"]) < 0.03
    ahead, _ = predicted(path, "--preset", mine, "--fit-on", "0.5")
    assert within(ahead["TTFT P90, s"], 0.25)
    assert within(ahead["to servers, USD/1000"], 0.1)


def test_a_server_that_has_much_to_do_is_as_slow_as_it_was(tmp_path):
    """A server of one's own reads one prompt after another, so that arrivals decide how long they wait."""
    rng = np.random.default_rng(4)
    requests, server = (
        600,
        Station(
            "server",
            "any",
            Rates(1e-6, 4e-6),
            Empirical.from_samples([0.4]),
            overlap_s=0.1,
        ),
    )
    # Requests come in bursts: more of them in the second half.
    gaps = np.where(rng.random(requests) < np.linspace(0.45, 0.6, requests), 0.1, 4.0)
    prompts = rng.integers(20, 200, requests)
    known = KnownTimes(ttft_s=(0.1 + 0.003 * prompts) * rng.lognormal(0.0, 0.1, requests))
    trace = Trace.of(arrival_s=np.cumsum(gaps), prompt_tokens=prompts, output_tokens=[12] * requests)
    workload = resolve_stations(trace, [server], seed=0, known={"server": known})
    records = {}
    simulate_stations(workload, [server], AsLive(load_preset("server-first")), on_record=records.__setitem__)
    path = written(
        tmp_path / "routes.jsonl",
        [replace(records[row], created_s=BEGAN_S + at) for row, at in enumerate(trace.arrival_s.tolist())],
    )
    found, _ = predicted(path, "--fit-on", "0.5")
    assert abs(found["TTFT P50, s"]["error"]["mean"]) < 0.1
    assert abs(found["TTFT P90, s"]["error"]["mean"]) < 0.15
    again, _ = predicted(path)
    assert abs(again["TTFT P99, s"]["error"]["mean"]) < 0.05


def test_of_lost_races_it_is_known_how_often_the_server_wins(tmp_path):
    """A server a little slower than the device wins where the device still writes what the server has dropped."""
    stations = (
        Station("device", "device", Rates(1e-9, 1e-9), LinearFit(0.0056, 0.02, 1.0, 9), slots=1),
        Station("server", "any", Rates(1e-6, 4e-6), Empirical.from_samples([0.4]), rank=1, overlap_s=0.07),
    )
    rng, requests = np.random.default_rng(8), 800
    prompts = rng.integers(20, 110, requests)
    known = {
        name: KnownTimes(ttft_s=(c_s + k_s * prompts) * rng.lognormal(0.0, 0.08, requests))
        for name, c_s, k_s in (("device", 0.02, 0.0056), ("server", 0.07, 0.0064))
    }
    trace = Trace.of(
        arrival_s=np.cumsum(rng.exponential(1.5, requests)),
        prompt_tokens=prompts,
        output_tokens=rng.integers(8, 16, requests),
    )
    workload, records = resolve_stations(trace, stations, seed=0, known=known), {}
    simulate_stations(workload, stations, AsLive(load_preset("fast")), on_record=records.__setitem__)
    made = [replace(records[row], created_s=BEGAN_S + at) for row, at in enumerate(trace.arrival_s.tolist())]
    found, _ = predicted(written(tmp_path / "routes.jsonl", made), "--fit-on", "0.5")
    assert 0.1 < found["begun by server"]["lived"] < 0.5
    assert abs(found["begun by server"]["error"]["mean"]) < 0.015
    assert abs(found["TTFT P99, s"]["error"]["mean"]) < 0.05


def asked_in_bursts(path, times_s, *, overlap_s=None, together=4):
    """A recording of a server alone, asked several times at once; `times_s`: by prompt tokens, and a draw."""
    server = Station("server", "any", Rates(1e-6, 4e-6), Empirical.from_samples([0.4]), overlap_s=overlap_s)
    rng, requests = np.random.default_rng(9), 200
    prompts = rng.integers(50, 2000, requests)
    arrivals = 20.0 * (np.arange(requests) // together) + 0.01 * (np.arange(requests) % together)
    trace = Trace.of(arrival_s=arrivals, prompt_tokens=prompts, output_tokens=[10] * requests)
    known = KnownTimes(ttft_s=np.maximum(times_s(prompts, rng), 0.0))
    workload, records = resolve_stations(trace, [server], seed=0, known={"server": known}), {}
    simulate_stations(workload, [server], AsLive(load_preset("server-first")), on_record=records.__setitem__)
    made = [replace(records[row], created_s=BEGAN_S + at) for row, at in enumerate(arrivals.tolist())]
    return written(path, made)


def reading(prompts, rng):
    return (0.1 + 5e-4 * prompts) * rng.lognormal(0.0, 0.1, prompts.size)


def provider(prompts, rng):
    """As slow for short prompts as for long ones, and slow for a while now and then."""
    slow = np.repeat(rng.random(prompts.size // 10) < 0.2, 10)
    return np.where(slow, 3.0, 0.6) * rng.lognormal(0.0, 0.3, prompts.size)


@pytest.mark.parametrize(
    ("times_s", "options", "said"),
    [
        (reading, {"overlap_s": 0.1}, "wait for each other at server, as recorded"),
        (reading, {"overlap_s": 0.1, "together": 1}, "wait for each other at server: few met there"),
        (reading, {}, ""),  # as fast as it reads, and all at once
        (provider, {}, ""),
        (lambda prompts, rng: np.zeros(prompts.size), {}, ""),
    ],
)
def test_whether_prompts_wait_for_each_other_at_a_server_is_said(tmp_path, times_s, options, said):
    _, notes = predicted(asked_in_bursts(tmp_path / "routes.jsonl", times_s, **options), "--fit-on", "0.5")
    told = [note for note in notes if "wait for each other at" in note]
    assert len(told) == bool(said)
    assert all(said in note for note in told)


def test_a_server_asked_for_something_that_failed_is_free_again(tmp_path):
    """The attempt ended with the client's timeout, and nobody waited for it."""
    path = asked_in_bursts(tmp_path / "routes.jsonl", reading, overlap_s=0.1)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows[::4]:
        attempt = row["attempts"][0]
        failed = attempt | {
            "outcome": "failed",
            "failure": "timeout",
            "ended_s": 60.0,
            "first_content_s": None,
        }
        row["attempts"] = [attempt, failed | {"kept_tokens": 0, "tokens": 0, "started_s": 0.0}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    found, notes = predicted(path)
    assert any("wait for each other at server, as recorded" in note for note in notes)
    assert abs(found["TTFT P50, s"]["error"]["mean"]) < 0.03


def test_each_preset_of_a_recording_has_a_table(tmp_path, capsys):
    path, records = queued(tmp_path / "queued.jsonl", requests=60)
    rows = [json.loads(one.to_json()) | {"preset": "fast"} for one in records[:30]]
    rows += [json.loads(one.to_json()) | {"preset": "server-first"} for one in records[30:]]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert main(["replay", str(path), "--as-recorded", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "fast · 30 answers" in shown
    assert "server-first · 30 answers" in shown
    assert "The answers of each preset are replayed apart" in shown


def test_what_cannot_be_predicted_is_refused(tmp_path, capsys):
    _, records = queued(tmp_path / "queued.jsonl", requests=8)
    raced = written(tmp_path / "raced.jsonl", records, "fast")
    newer = tmp_path / "newer.jsonl"
    newer.write_text(json.dumps(json.loads(records[0].to_json()) | {"schema": SCHEMA + 1}) + "\n")
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text('{"a": 1}\n')
    device_only = [one for one in records if one.winner == "device"][:1]
    alone = written(tmp_path / "alone.jsonl", device_only, "fast")
    for options, message in (
        ([newer], "update disco"),
        ([nothing], "is no recording"),
        ([raced, "--fit-on", newer], "update disco"),
        ([raced, "--fit-on", nothing], "is no recording"),
        ([raced, "--fit-on", "1.5"], "--fit-on is a share of the recording above 0 and below 1"),
        ([raced, "--fit-on", alone], "has no first token of server"),
        ([raced, "--fit-on", "0.01"], "leaves nothing to fit on"),
    ):
        assert main(["replay", *map(str, options), "--as-recorded"]) != 0
        assert message in " ".join(capsys.readouterr().err.split()), options
    for options, message in (
        (
            ["--as-recorded", "--policy", "race"],
            "--policy does not apply to `disco replay FILE --as-recorded`",
        ),
        (["--fit-on", "0.5"], "it is for `disco replay FILE --as-recorded`"),
    ):
        with pytest.raises(SystemExit):
            main(["replay", str(raced), *options])
        assert message in capsys.readouterr().err
