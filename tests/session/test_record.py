"""The route record is enough to bill, to explain and to replay: what it holds, and that it holds no text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from session.plays import play, record_of

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import CoolDown, Migration, Plan, Start
from disco.playback import Pace
from disco.request import Request
from disco.session.records.route_record import RouteRecord

CANARY = "canary-7f3a"
REQUEST = Request(messages=[{"role": "user", "content": CANARY}], model="m", params={"max_tokens": 30})
RATES = {
    "device": Rates(4e-9, 5e-9, 0.0, is_money=False, j_in=0.01, j_out=0.02),
    "server": Rates(1.5e-7, 6e-7),
}
RESTED = (CoolDown("backup", "rate_limit", "rate_limit", 1, 11.25), CoolDown("edge", "offline"))


def record_of_a_race(**more) -> RouteRecord:
    """The device speaks after 0.2 s; the server, which would after 0.3 s, was started 0.05 s later."""
    profiles = {
        "device": SimulatedProfile(ttft_s=0.2, decode_tps=50.0, answer=f"{CANARY} sea and sky. " * 20),
        "server": SimulatedProfile(ttft_s=0.3, decode_tps=80.0, answer_tokens=100, continues=False),
    }
    plan = Plan((Start("device"), Start("server", 0.05)), deprioritised=RESTED)
    believed = {name: {"rates": rates, "rank": rank} for rank, (name, rates) in enumerate(RATES.items())}
    run = play(profiles, plan, request=REQUEST, max_tokens=30, believed=believed)
    return record_of(run.session, **more)


def test_it_knows_when_where_at_what_price_and_who_was_left_alone_and_holds_no_text():
    made = record_of_a_race(created_s=1_700_000_000.123456789)
    record = json.loads(made.to_json())
    facts = [record[name] for name in ("created_s", "max_tokens", "finish_reason", "winner")]
    assert facts == [1_700_000_000.123457, 30, "length", "device"]
    assert record_of_a_race().to_dict()["created_s"] is None  # in virtual time
    assert [(t["endpoint"], t["place"]) for t in record["attempts"]] == [("device",) * 2, ("server",) * 2]
    device, server = record["endpoints"]
    assert device == {"name": "device", "place": "device", "cost_in": 4e-9, "cost_out": 5e-9} | {
        "cached_share": 0.0, "continues": True, "reach": "device", "rank": 0, "price": "given",
        "is_money": False, "j_in": 0.01, "j_out": 0.02,
    }  # fmt: skip
    assert server == {"name": "server", "place": "server", "cost_in": 1.5e-7, "cost_out": 6e-7} | {
        "cached_share": 1.0, "continues": False, "reach": "any", "rank": 1, "price": "given",
        "is_money": True, "j_in": 0.0, "j_out": 0.0,
    }  # fmt: skip
    assert made.deprioritised == RESTED
    keys = ("endpoint", "reason", "failure", "failures", "for_s")
    rested = [("backup", "rate_limit", "rate_limit", 1, 11.25), ("edge", "offline", None, 0, None)]
    assert record["deprioritised"] == [dict(zip(keys, values, strict=True)) for values in rested]
    assert CANARY not in made.to_json(timelines=True) + repr(made)


@pytest.mark.parametrize(
    ("seam", "written", "swallowed", "text", "outcome", "joins"),
    [
        (None, 0, 0, 0, None, True),  # it began the answer, or its endpoint does not say
        ("continued", 105, 5, 100, None, True),
        ("echo", 125, 25, 100, None, True),
        ("unproved", 105, 5, 100, None, False),
        # More or less is missing than what repeats the answer so far.
        ("continued", 125, 25, 100, None, False),
        ("echo", 124, 24, 100, None, False),
        ("continued", 100, 0, 100, None, False),
        # Not all that was passed on arrived, which only one that was stopped may leave so.
        ("continued", 105, 5, 99, None, False),
        ("continued", 105, 5, 101, None, False),
        ("continued", 105, 5, 99, "handed_over", True),
    ],
)
def test_an_answer_is_seamless_when_all_that_a_target_wrote_arrived_but_what_repeats(
    seam, written, swallowed, text, outcome, joins
):
    """The answer so far was 25 characters, of which the target was sent 20."""
    record = record_of_a_race()
    winner, loser = record.attempts
    facts = {"written_chars": written, "swallowed_chars": swallowed, "text_chars": text}
    facts |= {"seam": seam, "outcome": outcome or winner.outcome}
    target = replace(winner, prefix_chars=25, sent_chars=20, **facts)
    assert target.joins is joins
    assert replace(record, attempts=(target, loser)).seamless is joins


def test_it_says_who_wrote_each_piece_and_when_a_parked_attempt_had_read_its_prompt():
    """The server wins, the device reads on, and the answer moves there."""
    profiles = {
        "server": SimulatedProfile(ttft_s=0.1, decode_tps=40.0, answer_tokens=100),
        "device": SimulatedProfile(prefill_tps=50.0, decode_tps=40.0, answer_tokens=100),
    }
    plan = Plan((Start("server"), Start("device")), migrations={"server": Migration("device")})
    costs = {"server": 1e-4, "device": 1e-9}
    believed = {"device": {"follows": True}}
    record = record_of(play(profiles, plan, costs=costs, pace=Pace(8.0), believed=believed).session)
    server, parked, target = record.attempts
    assert (server.outcome, parked.outcome, target.outcome) == ("handed_over", "parked", "finished")
    assert (server.read_s, target.read_s) == (None, None)
    assert parked.read_s == pytest.approx(0.4)  # 20 tokens at 50/s
    (first, writer), (second, heir) = record.turns
    assert (first, writer, heir) == (0, 0, 2)
    assert record.generated[second][0] == target.first_content_s
    assert sum(tokens for _, tokens in record.generated[:second]) == server.tokens
    written = record.to_dict(timelines=True)
    assert written["turns"] == [[0, 0], [second, 2]]
    assert "turns" not in record.to_dict()
