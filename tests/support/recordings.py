"""Route records of a live client, made in virtual time, and the traces they are read as."""

from __future__ import annotations

import math
from pathlib import Path

from session.plays import play, record_of

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Migration, Plan, Start
from disco.playback import Pace
from disco.replay.formats import read_trace
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord

RATES = {
    "device": Rates(4e-9, 5e-9, 0.0, is_money=False, j_in=0.01, j_out=0.02),
    "server": Rates(1.5e-7, 6e-7),
}
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
    cancel_at: float = math.inf,
    rates: dict[str, Rates] = RATES,
    pace_tps: float | None = None,
) -> RouteRecord:
    """The record of one answer in virtual time, as if it had been asked for at `created_s`."""
    believed = {
        name: {"reach": name, "rates": rates[name], "load_s": load_s * (name == "device"), "overhead_s": 0.1}
        for name in profiles
    }
    moves = {"server": Migration("device")} if move else {}
    plan = Plan(starts, fallbacks, moves, "make_before_break")
    pace = None if pace_tps is None else Pace(tps=pace_tps)
    more = {"prompt_tokens": prompt_tokens, "pace": pace, "cancel_at": cancel_at}
    return record_of(play(profiles, plan, believed=believed, **more).session, created_s=created_s)


def file_of(path: Path, *records: RouteRecord, timelines: bool = True) -> Path:
    path.write_text("".join(r.to_json(timelines=timelines) + "\n" for r in records), encoding="utf-8")
    return path


def trace_of(tmp_path: Path, *records: RouteRecord, timelines: bool = True) -> Trace:
    return read_trace(file_of(tmp_path / "routes.jsonl", *records, timelines=timelines))[0]


def feature(trace: Trace, name: str) -> object:
    return trace.features[name][0]


def recording(tmp_path: Path, prompts: list[int], **more: object) -> Trace:
    """The device takes 0.1 s + 2 ms per token and writes 30 tokens/s, the server 0.3 s and 80 tokens/s."""
    records = []
    for i, prompt in enumerate(prompts):
        profiles = {"device": device(0.1 + 0.002 * prompt), "server": SERVER}
        asked = {"created_s": 1e9 + i, "prompt_tokens": prompt, "pace_tps": 12.0, **more}
        records.append(played(profiles, Start("device" if i % 3 else "server"), **asked))
    return trace_of(tmp_path, *records)
