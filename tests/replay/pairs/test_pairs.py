"""A drafter and a verify server in virtual time: the text is the server's, the times are the predicted ones, the
ledger is that of a live client, and the session treats the pair as any other endpoint."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_stations import HOME, PHONE, at, check_record, one, same, trace
from papers.fleet.fleet_figures import answer_record
from papers.fleet.fleet_simulator import simulate_fleet
from papers.fleet.fleet_toml import scenario_from

from disco.cost import Phase, Rates
from disco.dispatch import Migration, Plan, Start
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError, FailureKind
from disco.profiles import Empirical
from disco.replay.pairs import Pair
from disco.replay.pairs.draft_trace import DraftedRequest
from disco.replay.stations import KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import RouteRecord
from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve

CURVE = VerifyCurve([(1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088), (16, 0.136)])
"""Measured: an F32 target on one core."""
PAIR = Pair(
    0.0093,
    CURVE,
    0.8,
    round_trip_s=0.01,
    read_tps=100.0,
    drafter="phone",
    rates=PHONE.rates,
    window=4,
    min_gain=None,
)


def served(pair: Pair | None = PAIR, **changed: object) -> Station:
    """A verify server whose first token takes 0.3 s, with the phone as its drafter."""
    ttft = Empirical.from_quantiles([0, 1], [0.3, 0.3])
    given = {"decode_tps": 1 / CURVE.s(1), "pair": pair, **changed}
    return Station("served", "any", Rates(1e-6, 1e-5), ttft, **given)


def replayed(load: Trace, stations, plan, *, seed=0, pace_tps=None, **more):
    """Outcome and records of a replay."""
    workload = resolve_stations(load, stations, seed=seed, max_tokens=more.pop("max_tokens", None))
    records: dict[int, RouteRecord] = {}
    out = simulate_stations(
        workload, stations, plan, pace_tps=pace_tps, on_record=records.__setitem__, **more
    )
    return out, [records[row] for row in sorted(records)]


def check_pair(record: RouteRecord) -> None:
    """What a pair's attempts are charged agrees with what is reported of their rounds."""
    charged: Counter[tuple[int, str, Phase]] = Counter()
    read: Counter[tuple[int, str]] = Counter()
    for charge in record.ledger.charges:
        charged[charge.attempt, charge.endpoint, charge.phase] += charge.completion_tokens
        read[charge.attempt, charge.endpoint] += charge.prompt_tokens
    for number, attempt in enumerate(record.attempts):
        if attempt.endpoint != "served":
            assert attempt.speculation is None
            continue
        told = attempt.speculation
        if told is None:  # it never began
            continue
        written = told.distributed_tokens + told.alone_tokens
        # A draft that the end of the answer has broken off is charged and not reported, as live.
        assert charged[number, "phone", Phase.DRAFT] >= told.drafted
        in_vain = charged[number, "served", Phase.DRAFT]
        assert told.rejected == max(
            in_vain, told.judged - told.accepted
        )  # some are refuted without computing
        by_server = sum(n for key, n in charged.items() if key[:2] == (number, "served"))
        assert by_server == written + in_vain
        assert told.accepted <= told.judged <= told.drafted
        assert sum(n * count for n, count in told.windows) >= told.judged
        assert read[number, "served"] == attempt.prompt_tokens > 0


# ---------------------------------------------------------------- the text, and the ledger


SEQUENCES = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=30).map(bytes)
WINDOWS = st.one_of(st.integers(1, 12), st.sampled_from(["optimal", "dynamic", "confidence"]))


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    sequences = tuple(
        DraftedRequest(1, 1, accepts, confidence=draw(st.sampled_from([(0.9, 0.2), (0.5,), (0.9, 0.9, 0.3)])))
        for accepts in draw(st.lists(SEQUENCES, min_size=1, max_size=2))
    )
    return Pair(
        draw(st.sampled_from([0.0, 0.002, 0.0093, 0.2])),
        CURVE,
        sequences,
        round_trip_s=draw(st.sampled_from([0.0, 0.01, 0.2])),
        jitter_s=draw(st.sampled_from([0.0, 0.0, 0.02])),
        queue_s=draw(st.sampled_from([0.0, 0.0, 0.01, 0.1])),
        read_tps=draw(st.sampled_from([None, 50.0, 2000.0])),
        drafter="phone",
        rates=PHONE.rates,
        window=draw(WINDOWS),
        max_window=draw(st.integers(1, 12)),
        parallel=draw(st.integers(1, 4)),
        min_gain=draw(st.sampled_from([None, 0.0, 0.1])),
    )


FAULTS = st.builds(
    Fault,
    st.one_of(st.none(), st.integers(0, 80)),
    st.sampled_from([0.0, 0.5, 3.0, math.inf]),
    st.sampled_from([FailureKind.CONNECTION, FailureKind.SERVER, None]),
    st.sampled_from([1.0, 0.5]),
)


@given(
    pair=pairs(),
    fault=st.one_of(st.none(), FAULTS),
    starts=st.sampled_from([("served",), ("served", "phone"), ("phone",)]),
    migrations=st.sampled_from(
        [{}, {"served": "phone"}, {"phone": "served"}, {"served": "home", "phone": "served"}]
    ),
    pace_tps=st.sampled_from([None, 4.8, 12.0]),
    limit=st.sampled_from([None, 1, 40]),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_accepted_every_token_is_the_servers_and_is_charged_once(
    pair, fault, starts, migrations, pace_tps, limit, seed
):
    stations = (served(pair, fault=fault), PHONE, HOME)

    def plan(features, candidates):
        moves = {source: Migration(target) for source, target in migrations.items()}
        rest = tuple(name for name in ("served", "phone", "home") if name not in starts)
        return Plan(tuple(Start(name) for name in starts), rest, moves)

    load = trace(3, seed=seed, gap_s=2.0, longest=150)
    out, records = replayed(load, stations, plan, seed=seed, pace_tps=pace_tps, max_tokens=limit)
    for row, record in enumerate(records):
        length = int(load.output_tokens[row])
        check_record(record, length if limit is None else min(length, limit))
        check_pair(record)
        assert out.total_usd[row] == record.policy_cost
    np.testing.assert_allclose(out.cost_usd.sum(axis=1), out.total_usd, rtol=1e-12)
    assert math.fsum(out.cost_by.values()) == pytest.approx(out.total_usd.sum(), rel=1e-9)
    again, _ = replayed(load, stations, plan, seed=seed, pace_tps=pace_tps, max_tokens=limit)
    same(out, again)


# ---------------------------------------------------------------- the times


def steady_s(record: RouteRecord, start: int = 40) -> float:
    """Mean time per token behind the start of an answer, s."""
    times = [at_s for at_s, tokens in record.generated for _ in range(tokens)]
    return (times[-1] - times[start]) / (len(times) - 1 - start)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize(("window", "round_trip_s"), [(4, 0.0), (4, 0.06), (8, 0.01)])
def test_in_the_steady_state_a_token_takes_as_long_as_predicted(parallel, window, round_trip_s):
    pair = replace(PAIR, window=window, parallel=parallel, round_trip_s=round_trip_s, read_tps=None)
    _, [record] = replayed(one(2000), (served(pair), PHONE), at("served"))
    told = record.attempts[0].speculation
    # Acceptance as it came out, so that luck is no difference.
    acceptance = told.accepted / told.judged
    seen = Seen(acceptance=acceptance, draft_s=pair.draft_s, round_trip_s=round_trip_s, verify=CURVE)
    assert steady_s(record) == pytest.approx(token_s(window, seen, parallel), rel=0.04)


def test_a_wait_at_the_server_is_a_part_of_its_own_time_per_token():
    pair = replace(PAIR, queue_s=0.01, window=4, parallel=1)
    _, [drafted] = replayed(one(1500), (served(pair, decode_tps=1 / 0.039), PHONE), at("served"))
    told = drafted.attempts[0].speculation
    seen = Seen(
        acceptance=told.accepted / told.judged,
        draft_s=pair.draft_s,
        round_trip_s=0.01,
        queue_s=0.01,
        verify=CURVE,
    )
    assert steady_s(drafted) == pytest.approx(token_s(4, seen), rel=0.04)
    alone = replace(pair, acceptance=0.0, window="optimal", min_gain=0.1)
    _, [by_itself] = replayed(one(1500), (served(alone, decode_tps=1 / 0.039), PHONE), at("served"))
    assert steady_s(by_itself) == pytest.approx(0.039, rel=0.03)
    assert by_itself.attempts[0].speculation.distributed_tokens < 100


def test_one_pair_is_as_fast_in_the_fleet_simulator():
    """The same sequence, times and window in both simulators; the fleet's drafter begins with the first token."""
    accepts = bytes((np.random.default_rng(5).random(1500) < 0.85).tolist())
    request = DraftedRequest(20, 1500, accepts)
    for parallel in (1, 2):
        content = {
            "name": "one",
            "parallel": parallel,
            "window": {"name": "static", "n": 4},
            "targets": [{"name": "t", "count": 1, "steps_ms": [[n, 1e3 * s] for n, s in CURVE.points]}],
            "drafters": [{"name": "d", "count": 1, "steps_ms": [[1, 9.3]]}],
            "links": [{"rtt_ms": 10}],
            "requests": {
                "made_up": {
                    "count": 1,
                    "prompt_tokens": {"mean": 20},
                    "output_tokens": {"mean": 1500},
                    "acceptance": 1,
                }
            },
            "arrivals": {"kind": "closed_loop", "requests": 1},
        }
        finished = simulate_fleet(scenario_from(content), [request])
        fleet_s = answer_record(finished.answers[0])["tpot_ms"] / 1e3
        pair = replace(PAIR, acceptance=(request,), parallel=parallel, read_tps=None)
        _, [record] = replayed(one(1500, prompt=20), (served(pair), PHONE), at("served"))
        times = [released_s for released_s, tokens in record.generated for _ in range(tokens)]
        assert (times[-1] - times[0]) / (len(times) - 1) == pytest.approx(fleet_s, rel=0.02)


def test_a_request_with_slower_tokens_has_slower_passes():
    pair = replace(PAIR, acceptance=1.0, parallel=1, round_trip_s=0.0, draft_s=0.0, read_tps=None)
    known = {"served": KnownTimes(tpot_s=[0.029, 0.058])}
    workload = resolve_stations(one(800, arrivals=(0.0, 1.0)), (served(pair), PHONE), seed=0, known=known)
    records: dict[int, RouteRecord] = {}
    simulate_stations(
        workload, (served(pair), PHONE), at("served"), pace_tps=None, on_record=records.__setitem__
    )
    assert [steady_s(records[row]) for row in (0, 1)] == pytest.approx([0.063 / 5, 0.126 / 5], rel=0.01)


# ---------------------------------------------------------------- a pair as an endpoint


def test_the_server_alone_and_drafted_write_the_same_and_drafting_is_charged_to_both():
    load = one(300)
    (_, [alone]), (_, [drafted]) = (
        replayed(load, (served(pair), PHONE), at("served")) for pair in (None, replace(PAIR, acceptance=0.95))
    )
    assert [s.delivered_crc32 for s in drafted.segments] == [s.delivered_crc32 for s in alone.segments]
    told = drafted.attempts[0].speculation
    by_phase = {(c.endpoint, c.phase): c for c in drafted.ledger.charges if c.completion_tokens}
    assert {key: c.completion_tokens for key, c in by_phase.items()} == {
        ("phone", Phase.DRAFT): told.drafted,
        ("served", Phase.DRAFT): told.rejected,
        ("served", Phase.ANSWER): 300,
    }
    assert by_phase["phone", Phase.DRAFT].prompt_tokens >= 50
    rates = PHONE.rates, Rates(1e-6, 1e-5)
    phone = by_phase["phone", Phase.DRAFT]
    assert drafted.policy_cost - alone.policy_cost == pytest.approx(
        rates[0].cost(phone.prompt_tokens, told.drafted, 0) + rates[1].cost(0, told.rejected, 0), rel=1e-12
    )
    assert steady_s(drafted) < steady_s(alone) == pytest.approx(CURVE.s(1))


@pytest.mark.parametrize("after_tokens", [0, 1, 30, 97])
def test_a_verifier_that_dies_is_replaced_by_the_device_without_a_seam(after_tokens):
    stations = (served(fault=Fault(after_tokens, 0.5)), PHONE)
    out, [record] = replayed(one(120), stations, at("served"), pace_tps=4.8)
    check_record(record, 120)
    check_pair(record)
    assert [t.outcome for t in record.attempts] == ["failed", "finished"]
    assert [t.kept_tokens for t in record.attempts] == [after_tokens, 120 - after_tokens]
    assert out.failures[0].tolist() == [1, 0]
    died_s, goes_on_s = record.attempts[0].ended_s, record.attempts[1].first_content_s
    # The drafter has read the prompt and the answer, as far as it came: only its newest tokens are computed. Up to two
    # are withheld at the seam and written again.
    unread = 50 + after_tokens if after_tokens < 30 else 5
    assert -1e-6 <= goes_on_s - died_s - PHONE.ttft.c_s <= unread / 100 + 2 / 20 + 1e-6
    assert (record.attempts[1].cached_tokens > 50) == (after_tokens >= 30)


def test_a_verifier_that_stalls_and_then_is_slow_goes_on():
    stations = (served(fault=Fault(40, 2.0, None, gap_s=0.2)), PHONE)
    _, [record] = replayed(one(200), stations, at("served"))
    check_record(record, 200)
    times = [at_s for at_s, tokens in record.generated for _ in range(tokens)]
    assert times[40] - times[39] > 2.0
    assert steady_s(record) > 0.1


def test_a_verifier_that_is_silent_before_its_first_token_goes_on_at_once_when_that_is_overdue():
    near = replace(PAIR, acceptance=0.0, round_trip_s=0.0, draft_s=0.0)
    _, [record] = replayed(one(120), (served(near, fault=Fault(0, 0.5, None)),), at("served"))
    check_record(record, 120)
    assert record.generated[0][0] == 0.5  # its first token was due after 0.3 s


def test_a_pair_that_loses_a_race_is_charged_for_what_it_had_done_by_then():
    """The device is first by far; the pair has read the prompt, and nothing was drafted."""
    quick = replace(PHONE, ttft=replace(PHONE.ttft, k_s_per_token=1e-6, c_s=0.1))
    _, [lost] = replayed(one(60), (served(), quick), lambda f, c: Plan((Start("served"), Start("phone"))))
    assert [(t.endpoint, t.outcome) for t in lost.attempts] == [("served", "lost"), ("phone", "finished")]
    charges = [(c.endpoint, c.phase, c.prompt_tokens, c.completion_tokens) for c in lost.ledger.charges]
    assert charges == [
        ("served", Phase.RACE_LOSER, 50, 0),
        ("phone", Phase.ANSWER, 50, 0),
        ("phone", Phase.ANSWER, 0, 60),
    ]


def test_an_answer_moves_away_from_a_pair_and_to_one():
    dear, cheap = Rates(1e-6, 1e-3), Rates(1e-9, 1e-9)
    for source, target in (("served", "phone"), ("phone", "served")):
        there = replace(served(), rates=dear if source == "served" else cheap)
        here = replace(PHONE, rates=dear if source == "phone" else cheap)
        plan = at(source, migrations={source: Migration(target)})
        out, [record] = replayed(one(400), (there, here), plan, pace_tps=4.8)
        check_record(record, 400)
        check_pair(record)
        assert out.migrations.tolist() == [1]
        assert [s.endpoint for s in record.segments] == [source, target]
        assert all(t.kept_tokens > 0 for t in record.attempts)


def test_nothing_is_drafted_while_the_drafter_reads_or_where_drafting_does_not_pay():
    slow = replace(PAIR, read_tps=5.0)
    _, [record] = replayed(one(100), (served(slow), PHONE), at("served"))
    assert record.attempts[0].speculation.alone_tokens == 100
    # 50 tokens at 5 tokens/s; the answer has ended by then, and what was read is charged.
    [draft] = [c for c in record.ledger.charges if c.endpoint == "phone"]
    assert draft.prompt_tokens == int((record.attempts[0].ended_s - 0.3) * 5)
    bad = replace(PAIR, acceptance=0.1, window="optimal", min_gain=0.1)
    _, [record] = replayed(one(400), (served(bad), PHONE), at("served"))
    assert record.attempts[0].speculation.alone_tokens > 380
    assert steady_s(record) == pytest.approx(CURVE.s(1), rel=0.02)


def test_where_drafting_does_not_pay_most_prompts_are_not_even_read_by_the_drafter():
    bad = replace(PAIR, acceptance=0.1, window="optimal", min_gain=0.1, read_tps=500.0)
    load = one(80, arrivals=np.arange(20) * 9.0)
    _, records = replayed(load, (served(bad), PHONE), at("served"))
    read = [any(c.endpoint == "phone" for c in record.ledger.charges) for record in records]
    assert np.flatnonzero(read).tolist() == [
        0,
        1,
        3,
        6,
        11,
    ]  # after pauses of 1, 2 and 4 answers; the next is of 8
    always = replace(bad, min_gain=None, window=2)
    _, records = replayed(load, (served(always), PHONE), at("served"))
    assert all(any(c.endpoint == "phone" for c in record.ledger.charges) for record in records)


def test_a_plan_sees_the_predicted_rate_and_who_pays():
    candidate = served().candidate()
    seen = Seen(acceptance=0.8, draft_s=0.0093, round_trip_s=0.01, verify=CURVE)
    assert 1 / candidate.decode_tps == pytest.approx(token_s(4, seen, 2))
    assert [(p.name, p.place, p.drafts) for p in candidate.payers] == [
        ("served", "server", False),
        ("phone", "device", True),
    ]
    assert (candidate.parks, candidate.pauses) == (False, False)
    hopeless = served(replace(PAIR, acceptance=0.0)).candidate()
    assert 1 / hopeless.decode_tps == pytest.approx(CURVE.s(1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"draft_s": -1.0}, "draft_s of a pair"),
        ({"jitter_s": math.inf}, "jitter_s of a pair"),
        ({"acceptance": 1.5}, "probability from 0 to 1"),
        ({"acceptance": ()}, "at least one acceptance sequence"),
        ({"window": "confidence"}, "confidence_seq"),
        ({"window": "optmal"}, "optimal"),
        ({"read_tps": 0.0}, "more than 0 tokens/s"),
        ({"verify": VerifyCurve([(1, 0.0)])}, "longer than 0 s"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_is_refused(change, said):
    with pytest.raises(ConfigurationError, match=said):
        replace(PAIR, **change)


def test_a_station_that_drafts_can_neither_park_nor_lack_a_draft_time():
    for change, said in (
        ({"parks": True}, "cannot park"),
        ({"pair": replace(PAIR, draft_s=None)}, "draft_s"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            replace(served(), **change)
