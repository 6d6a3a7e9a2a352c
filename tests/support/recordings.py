"""Route records of a live client, made in virtual time, and the traces they are read as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from playing import run_session

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Candidate, Migration, Plan, Start
from disco.playback import Pace, Playback
from disco.replay.formats import read_trace
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
    loads = {"device": load_s, "server": 0.0}
    candidates = {
        name: Candidate(name, name, rates=rates[name], load_s=loads[name], overhead_s=0.1, continues=True)
        for name in profiles
    }
    moves = {"server": Migration("device")} if move else {}
    pace = None if pace_tps is None else Pace(tps=pace_tps)
    plan = Plan(starts, fallbacks, moves)
    config = SessionConfig(prompt_tokens=prompt_tokens, pace_tps=pace_tps)
    session = Session(plan, candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    run_session(session, profiles, REQUEST, np.random.default_rng(0), cancel_at=cancel_at)
    return make_record(session, settle_accounts(session), preset="test", created_s=created_s)


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
