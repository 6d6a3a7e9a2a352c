"""Stations, traces and plans for tests, and what must hold of every answer that was replayed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from disco.candidate import Candidate
from disco.cost import Rates
from disco.dispatch import Features, Migration, Plan, Start
from disco.endpoints.simulation.simulated_script import prose
from disco.profiles import Empirical, LinearFit
from disco.replay.stations import Station, StationOutcome
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord


def line(tps: float, overhead_s: float = 0.1) -> LinearFit:
    return LinearFit(k_s_per_token=1.0 / tps, c_s=overhead_s, r2=1.0, n=0)


PHONE = Station("phone", "device", Rates(1e-8, 1e-7, cached_share=0.0), line(100.0), decode_tps=20.0)
HOME = Station("home", "own", Rates(1e-7, 1e-6, cached_share=0.0), line(400.0, 0.2), decode_tps=30.0)
CLOUD = Station("cloud", "any", Rates(1e-6, 1e-5), Empirical.from_quantiles([0, 1], [0.2, 0.9]), rank=2)
BACKUP = replace(CLOUD, name="backup", rates=Rates(2e-6, 2e-5), tpot=Empirical.from_samples([0.01, 0.05]))
BIG = replace(CLOUD, name="big", rates=Rates(5e-6, 5e-5), ttft=Empirical.from_quantiles([0, 1], [1, 2]))
ALL = (PHONE, HOME, CLOUD, BACKUP, BIG)


def trace(n: int = 40, *, seed: int = 3, gap_s: float = 4.0, longest: int = 200) -> Trace:
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0, gap_s * n, n))
    prompt_tokens, output_tokens = rng.integers(5, 400, n), rng.integers(1, longest, n)
    return Trace.of(arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def one(answer: int = 60, prompt: int = 50, arrivals: Sequence[float] = (0.0,)) -> Trace:
    n = len(arrivals)
    return Trace.of(arrival_s=arrivals, prompt_tokens=[prompt] * n, output_tokens=[answer] * n)


def at(
    name: str, *, migrations: dict[str, Migration] | None = None, after_s: float = 0.0
) -> Callable[..., Plan]:
    """Starts there; the others, as they are given, stand by."""

    def plan(features: Features, candidates: Sequence[Candidate]) -> Plan:
        rest = tuple(c.name for c in candidates if c.name != name)
        return Plan((Start(name, after_s),), rest, migrations or {})

    return plan


def columns(out: object) -> dict[str, np.ndarray]:
    return {f.name: v for f in fields(out) if isinstance(v := getattr(out, f.name), np.ndarray)}


def same(a: StationOutcome, b: StationOutcome) -> None:
    for left, right in ((a, b), (a.reading, b.reading)):
        for name, values in columns(left).items():
            np.testing.assert_array_equal(values, getattr(right, name), err_msg=name)
    assert a.cost_by == b.cost_by
    assert [r.to_dict(timelines=True) for r in a.examples.values()] == [
        r.to_dict(timelines=True) for r in b.examples.values()
    ]


def check_record(record: RouteRecord, answer: int) -> None:
    """Every token once and in order, and every token that was worked on charged once."""
    text = "".join(packet[0].text for packet in prose(1024)[: record.answer_tokens])
    assert record.seamless
    at = 0
    for piece in record.segments:
        assert piece.start_char == at
        at = piece.end_char
        assert piece.delivered_crc32 == zlib.crc32(text[piece.start_char : piece.end_char].encode())
    assert sum(tokens for _, tokens in record.released) == record.answer_tokens
    if record.finish_reason is not None:
        assert record.answer_tokens == answer
        assert sum(t.kept_tokens for t in record.attempts) == answer
    assert sum(c.policy_cost for c in record.ledger.charges) == pytest.approx(record.policy_cost, rel=1e-12)
    assert sum(t.policy_cost for t in record.attempts) == pytest.approx(record.policy_cost, rel=1e-12)
    released = [released_s for released_s, _ in record.released]
    assert released == sorted(released)
