"""The route record is enough to bill, to explain and to replay: what it holds, and that it holds no text."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from playing import run_session
from situations import situations

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Candidate, CoolDown, Plan, Start
from disco.playback import Pace, Playback
from disco.request import Request
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.records.route_record import RouteRecord
from disco.session.switching.migration_rule import AnswerLengths

CANARY = "canary-7f3a"
REQUEST = Request(messages=[{"role": "user", "content": CANARY}], model="m", params={"max_tokens": 30})
RATES = {"device": Rates(4e-9, 5e-9, 0.0), "server": Rates(1.5e-7, 6e-7)}


def record_of_a_race(
    *,
    created_s: float | None = None,
    load_s: float = 0.0,
    pace: Pace | None = None,
    deprioritised: tuple[CoolDown, ...] = (),
) -> RouteRecord:
    """The device speaks after 0.2 s; the server, which would after 0.3 s, was started 0.05 s later."""
    profiles = {
        "device": SimulatedProfile(ttft_s=0.2, decode_tps=50.0, answer=f"{CANARY} sea and sky. " * 20),
        "server": SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=100),
    }
    candidates = {
        "device": Candidate("device", "device", Rates(4e-9, 5e-9, 0.0), load_s=load_s, continues=True),
        "server": Candidate("server", "any", Rates(1.5e-7, 6e-7), rank=1),
    }
    plan = Plan((Start("device"), Start("server", 0.05)), deprioritised=deprioritised)
    config = SessionConfig(prompt_tokens=20, max_tokens=30, pace_tps=pace.tps if pace else None)
    session = Session(plan, candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    run_session(session, profiles, REQUEST, np.random.default_rng(0))
    return make_record(session, settle_accounts(session), preset="test", created_s=created_s)


def test_it_knows_when_where_and_at_what_price():
    record = record_of_a_race(created_s=1_700_000_000.123456789).to_dict()
    assert record["created_s"] == 1_700_000_000.123457
    assert record["max_tokens"] == 30
    assert record["finish_reason"] == "length"
    assert [(t["endpoint"], t["place"]) for t in record["attempts"]] == [("device",) * 2, ("server",) * 2]
    assert record["endpoints"] == [
        {
            "name": "device",
            "place": "device",
            "cost_in": 4e-9,
            "cost_out": 5e-9,
            "cached_share": 0.0,
            "continues": True,
            "reach": "device",
            "rank": 0,
        },
        {
            "name": "server",
            "place": "server",
            "cost_in": 1.5e-7,
            "cost_out": 6e-7,
            "cached_share": 1.0,
            "continues": False,
            "reach": "any",
            "rank": 1,
        },
    ]


def test_the_rates_in_the_record_make_its_bill():
    """Enough to bill: charges times rates are the cost, to the last digit."""
    record = json.loads(record_of_a_race().to_json())
    rates = {e["name"]: Rates(e["cost_in"], e["cost_out"], e["cached_share"]) for e in record["endpoints"]}
    for charge in record["ledger"]["charges"]:
        cost = rates[charge["endpoint"]].cost(
            charge["prompt_tokens"], charge["completion_tokens"], charge["cached_tokens"]
        )
        assert charge["cost"] == cost


def test_it_tells_who_was_left_alone_and_why():
    rested = (CoolDown("backup", "rate_limit", "rate_limit", 1, 11.25), CoolDown("edge", "offline"))
    record = record_of_a_race(deprioritised=rested)
    assert record.deprioritised == rested
    assert json.loads(record.to_json())["deprioritised"] == [
        {
            "endpoint": "backup",
            "reason": "rate_limit",
            "failure": "rate_limit",
            "failures": 1,
            "for_s": 11.25,
        },
        {"endpoint": "edge", "reason": "offline", "failure": None, "failures": 0, "for_s": None},
    ]
    assert record_of_a_race().to_dict()["deprioritised"] == []


def test_in_virtual_time_it_was_never_created():
    assert record_of_a_race().to_dict()["created_s"] is None


@pytest.mark.parametrize(("load_s", "cold"), [(0.0, False), (2.0, True)])
def test_a_start_that_had_to_load_the_model_is_told_apart(load_s, cold):
    device, server = record_of_a_race(load_s=load_s).attempts
    assert (device.cold, server.cold) == (cold, False)


def test_timelines_are_written_down_when_asked_for():
    record = record_of_a_race(pace=Pace(tps=20.0))
    assert not {"generated", "released"} & record.to_dict().keys()
    assert record.to_dict(timelines=True).items() >= record.to_dict().items()
    written = json.loads(record.to_json(timelines=True))
    for name in ("generated", "released"):
        times, tokens = zip(*written[name], strict=True)
        assert sum(tokens) == record.answer_tokens
        exact = [at for at, _ in getattr(record, name)]
        assert times == pytest.approx(exact, abs=0.5001e-4)
        assert all(round(at, 4) == at for at in times)
    assert written["generated"] != written["released"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations())
def test_whatever_happens_it_is_json_and_holds_numbers_and_names_only(situation):
    profiles, pace, costs = (situation[key] for key in ("profiles", "pace", "costs"))
    candidates = {
        name: Candidate(
            name,
            "device" if name == "device" else "any",
            Rates(1e-9, costs[name]),
            parks=name == "device",
            continues=True,
        )
        for name in profiles
    }
    config = SessionConfig(
        prompt_tokens=20, streams=situation["streams"], pace_tps=pace.tps if pace else None
    )
    session = Session(situation["plan"], candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    how = {key: situation[key] for key in ("cancel_at", "cancel_takes_s")}
    run_session(session, profiles, REQUEST, np.random.default_rng(situation["seed"]), **how)
    record = make_record(session, settle_accounts(session), preset="test", created_s=1.0)
    written = json.loads(json.dumps(record.to_dict(timelines=True), allow_nan=False))
    assert {e["name"] for e in written["endpoints"]} == set(situation["profiles"])
    assert [t["place"] == "device" for t in written["attempts"]] == [
        t["endpoint"] == "device" for t in written["attempts"]
    ]
    longest = max(map(len, texts(written)))
    assert longest <= 20, "nothing but names of endpoints, phases and outcomes is that long"


@pytest.mark.parametrize(
    ("facts", "joins"),
    [
        ({"seam": None}, True),  # it began the answer, or its endpoint does not say
        ({"seam": "continued", "written_chars": 105, "swallowed_chars": 5, "text_chars": 100}, True),
        ({"seam": "echo", "written_chars": 125, "swallowed_chars": 25, "text_chars": 100}, True),
        ({"seam": "unproved", "written_chars": 105, "swallowed_chars": 5, "text_chars": 100}, False),
        # More or less is missing than what repeats the answer so far.
        ({"seam": "continued", "written_chars": 125, "swallowed_chars": 25, "text_chars": 100}, False),
        ({"seam": "echo", "written_chars": 124, "swallowed_chars": 24, "text_chars": 100}, False),
        ({"seam": "continued", "written_chars": 100, "swallowed_chars": 0, "text_chars": 100}, False),
        # Not all that was passed on arrived, which only one that was stopped may leave so.
        ({"seam": "continued", "written_chars": 105, "swallowed_chars": 5, "text_chars": 99}, False),
        ({"seam": "continued", "written_chars": 105, "swallowed_chars": 5, "text_chars": 101}, False),
        (
            {
                "seam": "continued",
                "written_chars": 105,
                "swallowed_chars": 5,
                "text_chars": 99,
                "outcome": "handed_over",
            },
            True,
        ),
    ],
)
def test_an_answer_is_seamless_when_all_that_a_target_wrote_arrived_but_what_repeats(facts, joins):
    """The answer so far was 25 characters, of which the target was sent 20."""
    record = record_of_a_race()
    winner, loser = record.attempts
    target = replace(winner, **{"prefix_chars": 25, "sent_chars": 20, **facts})
    assert target.joins is joins
    assert replace(record, attempts=(target, loser)).seamless is joins


def texts(item: object) -> list[str]:
    if isinstance(item, str):
        return [item]
    if isinstance(item, dict):
        return [text for value in item.values() for text in texts(value)]
    return [text for value in item for text in texts(value)] if isinstance(item, list) else []


def test_no_text_is_in_it():
    record = record_of_a_race(created_s=1.0)
    assert record.winner == "device"
    assert CANARY not in record.to_json(timelines=True) + repr(record)
