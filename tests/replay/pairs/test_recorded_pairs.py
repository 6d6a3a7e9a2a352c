"""Route records of a pair as a trace: live ones, ones in virtual time, and older ones, which know of no drafts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
from endpoints.speculative.test_clients import ask, client
from endpoints.speculative.verify_server import verify_server
from made_stations import PHONE, at, one
from recordings import file_of
from replay.pairs.test_pairs import PAIR, replayed, served

from disco import RouteLog
from disco.cost import Phase
from disco.profiles import load_device
from disco.replay.formats import read_trace
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.from_recording import is_recording, scenario_of_routes, without_drafts
from disco.replay.workload.scenario import Arm, resolve
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord

DEVICE = load_device("pixel7pro-bloom-560m")


def check_replay(trace: Trace, routes: list[RouteRecord]) -> None:
    """The trace is the recording, and replays as such: first tokens, gaps, and all costs but those of drafts."""
    assert is_recording(trace)
    assert trace.output_tokens.tolist() == [r.answer_tokens for r in routes]
    assert trace.features["drafted_tokens"].tolist() == [
        sum(t.speculation.distributed_tokens for t in r.attempts if t.speculation) for r in routes
    ]
    assert trace.features["policy_cost"] == pytest.approx([r.policy_cost for r in routes], rel=1e-12)
    scenario = replace(scenario_of_routes(trace, device=DEVICE), pace_tps=None)
    workload = resolve(trace, scenario, seed=0)
    for how in (evaluate, simulate):
        outcome = how(workload, scenario, Arm("recorded"), seed=0)
        assert outcome.ttft_s == pytest.approx([r.pace.ttft_raw_s for r in routes], abs=1e-5)
        charged = [sum(c.policy_cost for c in r.ledger.charges if c.phase != Phase.DRAFT) for r in routes]
        assert outcome.cost_usd == pytest.approx(charged, rel=1e-9)
    for row, route in enumerate(routes):
        single = trace.take(row, row + 1)
        outcome = simulate(resolve(single, scenario, seed=0), scenario, Arm("recorded"), seed=0)
        recorded = np.diff([at_s for at_s, tokens in route.generated for _ in range(tokens)])
        assert outcome.reading.tbt_s == pytest.approx(recorded, abs=1.1e-4)


def written(path: Path, routes: list[RouteRecord], *, old: bool = False) -> Trace:
    file_of(path, *routes)
    if old:
        documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for document in documents:
            for attempt in document["attempts"]:
                del attempt["speculation"]
        path.write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    return read_trace(path)[0]


def test_what_a_pair_wrote_in_virtual_time_replays_as_it_was(tmp_path):
    load = one(150, arrivals=(0.0, 10.0))
    _, drafted = replayed(load, (served(), PHONE), at("served"))
    routes = [replace(record, created_s=1e9 + row) for row, record in enumerate(drafted)]
    trace = written(tmp_path / "routes.jsonl", routes)
    assert (trace.features["drafted_tokens"] > 100).all()
    assert trace.features["server"].tolist() == ["served"] * 2
    assert trace.features["device"].tolist() == ["phone"] * 2
    check_replay(trace, routes)
    older = written(tmp_path / "older.jsonl", routes, old=True)
    assert older.features["drafted_tokens"].tolist() == [0, 0]
    assert older.tpot_s == pytest.approx(trace.tpot_s)


def test_the_times_of_drafted_answers_are_not_those_of_the_server(tmp_path):
    load = one(80, arrivals=(0.0, 10.0))
    _, drafted = replayed(load, (served(), PHONE), at("served"))
    _, alone = replayed(load, (served(None), PHONE), at("served"))
    routes = [replace(record, created_s=1e9 + i) for i, record in enumerate([drafted[0], alone[1]])]
    trace = written(tmp_path / "routes.jsonl", routes)
    bare, count = without_drafts(trace)
    assert count == 1
    assert np.isnan(bare.tpot_s).tolist() == [True, False]
    assert [bare.gaps.of(row).size for row in (0, 1)] == [0, 79]
    assert without_drafts(bare.take(1, 2))[1] == 0
    scenario = scenario_of_routes(bare, device=DEVICE).with_pair(PAIR)
    workload = resolve(bare, scenario, seed=0)
    assert workload.server_tpot_s == pytest.approx([PAIR.alone_s, PAIR.alone_s], abs=1e-4)


@pytest.mark.real
def test_a_live_answer_of_a_pair_replays_as_it_was(tmp_path):
    """A pair over HTTP: a scripted verify server, and a scripted device that drafts."""
    routes: list[RouteRecord] = []

    async def record() -> None:
        with RouteLog(tmp_path / "live.jsonl") as log:

            def note(route: RouteRecord) -> None:
                routes.append(route)
                log(route)

            async with verify_server() as server, client(server, on_route=note) as made:
                for _ in range(3):
                    await ask(made)

    anyio.run(record)
    trace, skipped = read_trace(tmp_path / "live.jsonl")
    assert not skipped
    assert trace.features["drafted_tokens"].max() > 0
    assert trace.features["device"].tolist() == ["device"] * 3
    check_replay(trace, routes)
