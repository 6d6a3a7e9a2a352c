"""The migration rule, against exact tables and numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.candidate import Candidate
from disco.rates import Rates
from disco.session.switching.migration_rule import (
    AnswerLengths,
    Decision,
    MigrationVerdict,
    Reason,
    Snapshot,
    decide,
    slack_needed_s,
)

GO, BANK, RETRY, NEVER = (getattr(MigrationVerdict, name) for name in ("GO", "BANK", "RETRY", "NEVER"))
SERVER = Candidate("server", "any", rates=Rates(1e-6, 4e-6), decode_tps=50.0, continues=True)
DEVICE = replace(
    SERVER,
    name="device",
    reach="device",
    rates=Rates(0.0, 1e-8),
    prefill_tps=500.0,
    overhead_s=0.2,
    decode_tps=40.0,
)
SNAPSHOT = Snapshot(
    source=SERVER,
    target=DEVICE,
    prompt_tokens=500,
    written_tokens=10,
    max_tokens=None,
    target_has_prompt=False,
    slack_s=10.0,
    pace_tps=4.8,
    lengths=AnswerLengths.geometric(300),
)


MONEY = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(0, 800),
        "cost_in": st.floats(0, 0.2),
        "source_cost_out": st.floats(0, 2),
        "target_cost_out": st.floats(0, 2),
    }
).filter(lambda money: money["source_cost_out"] > money["target_cost_out"] + 1e-6)


def moves_best(
    lengths, horizon, *, prompt_tokens, cost_in, source_cost_out, target_cost_out
) -> list[bool | None]:
    """Whether moving after n tokens is optimal for an answer that may move once; None where it is all the same.

    `V(n) = min{C(n) + c_t·E[R_n], c_s + (1−h(n))·V(n+1)}` for n = 0 … horizon; at the horizon the choice is to move
    there or never.
    """
    moves: list[bool | None] = []
    stay = value = source_cost_out * lengths.expected_remaining(horizon)
    for n in range(horizon, -1, -1):
        if n < horizon:
            stay = source_cost_out + (1 - lengths.hazard(n)) * value
        left = lengths.expected_remaining(n)
        move = cost_in * (prompt_tokens + n) + target_cost_out * left
        value = move if move <= stay and left > 0 else stay
        moves.append(None if abs(move - stay) <= 1e-7 * max(1.0, move) else move <= stay and left > 0)
    return moves[::-1]


def decided(lengths: AnswerLengths, n: int, cap: int | None, money: dict) -> Decision:
    """What the rule decides for money's sake alone: the reader does not wait, and nothing is written in vain."""
    source = replace(SERVER, rates=Rates(0.0, money["source_cost_out"]))
    target = replace(DEVICE, rates=Rates(money["cost_in"], money["target_cost_out"]))
    facts = {
        "prompt_tokens": money["prompt_tokens"],
        "written_tokens": n,
        "max_tokens": cap,
        "lengths": lengths,
    }
    return decide(replace(SNAPSHOT, **facts, **UNWAITED, source=source, target=target))


@settings(max_examples=50)
@given(st.floats(1, 400), st.integers(2, 200), st.lists(st.integers(1, 80), min_size=1, max_size=30), MONEY)
def test_the_rule_is_the_exact_table_where_hazards_do_not_fall_and_else_finds_its_moves_worth_it(
    mean, cap, samples, money
):
    """Whether to wait a little the rule judges by a hazard averaged over some tokens; that it pays, exactly."""
    lengths = AnswerLengths.geometric(mean)
    for n, best in enumerate(moves_best(lengths.capped(cap), cap, **money)[:cap]):
        if best is not None:
            assert (decided(lengths, n, cap, money).verdict is GO) == best
    lengths = AnswerLengths.from_samples(samples)
    for n, best in enumerate(moves_best(lengths, max(samples), **money)[:-1]):
        if best and lengths.survival(n) > 0:
            assert decided(lengths, n, None, money).reason in (None, Reason.ENDS_SOON)


def to(**device) -> dict:
    """A target that differs from the device."""
    return {"target": replace(DEVICE, **device)}


def lasts(mean: float) -> dict:
    return {"lengths": AnswerLengths.geometric(mean)}


BREAK = {"order": "break_before_make"}
UNWAITED = {"slack_s": math.inf, **BREAK}
DEAR = to(rates=Rates(2e-6, 1e-8))
MOSTLY_SHORT = {**DEAR, "lengths": AnswerLengths.from_samples([5] * 95 + [2000] * 5)}
SHORT_OR_ENDLESS = {**DEAR, "lengths": AnswerLengths.from_samples([20] * 90 + [5000] * 10)}
SLUGGISH = {**UNWAITED, **to(decode_tps=2.0, prefill_tps=10.0)}
UNPACED = {"pace_tps": None, "slack_s": 0.0}
UNPACED_FAST = {**UNPACED, **to(decode_tps=100.0)}


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, GO, None),
        (to(continues=False), NEVER, Reason.CANNOT_CONTINUE),
        (to(context_tokens=512), NEVER, Reason.CONTEXT),
        # It saves nothing.
        ({"source": DEVICE, "target": SERVER}, NEVER, Reason.NOT_WORTH_IT),
        # A long answer promises a longer one.
        ({**MOSTLY_SHORT, "written_tokens": 1}, RETRY, Reason.NOT_WORTH_IT),
        # The answer is likely to end now.
        ({**SHORT_OR_ENDLESS, "written_tokens": 19}, RETRY, Reason.ENDS_SOON),
        # Slack is missing; a failed try doubles the margin.
        ({"slack_s": 1.6, "margin": 2.5}, BANK, Reason.SLACK),
        # It cannot grow fast enough, or too little would be left when it has grown.
        ({"slack_s": 1.0, "pace_tps": 60.0, **BREAK}, NEVER, Reason.INFEASIBLE),
        ({"slack_s": 1.0, **to(prefill_tps=5.0), **BREAK}, NEVER, Reason.INFEASIBLE),
        ({"slack_s": 0.0, "pace_tps": 25.0, "max_tokens": 70, **BREAK}, NEVER, Reason.TOO_SHORT),
        # Where no reader waits, no slack is needed.
        (SLUGGISH, GO, None),
        # Keeping a fast source writing for the 51 s that this target needs would eat up the saving.
        ({**SLUGGISH, "order": "make_before_break"}, NEVER, Reason.NOT_WORTH_IT),
        # Without a pace, only a target that makes up for the gap: R > t_m·r_s·r_t/(r_t − r_s) = 152.5.
        (UNPACED, NEVER, Reason.NO_BUFFER),
        ({**UNPACED_FAST, **lasts(153)}, GO, None),
        ({**UNPACED_FAST, **lasts(152)}, NEVER, Reason.NO_BUFFER),
        # A warm target needs no money for the prompt.
        (to(rates=Rates(3e-6, 1e-8)), NEVER, Reason.NOT_WORTH_IT),
        ({**to(rates=Rates(3e-6, 1e-8)), "target_has_prompt": True}, GO, None),
    ],
)
def test_verdicts_and_their_reasons(changes, verdict, reason):
    decision = decide(replace(SNAPSHOT, **changes))
    assert (decision.verdict, decision.reason) == (verdict, reason)


def test_the_numbers_of_a_decision():
    assert decide(SNAPSHOT).handover_s == pytest.approx(0.2 + 510 / 500)
    assert decide(replace(SNAPSHOT, target_has_prompt=True)).handover_s == pytest.approx(0.2 + 10 / 500)
    assert decide(replace(SNAPSHOT, slack_s=1.0)).missing_s == pytest.approx(1.25 * 1.22 - 1.0)
    # What is left to save less the price, of which the source's discarded tokens are part.
    money = {"prompt_tokens": 100, "cost_in": 0.01, "source_cost_out": 0.03, "target_cost_out": 0.01}
    assert decided(AnswerLengths.geometric(200), 50, None, money).gain == pytest.approx(200 * 0.02 - 1.5)
    # A target that is slower than the reader is planned for a long rest.
    slow = replace(SNAPSHOT, **to(decode_tps=4.0))
    rest = slow.lengths.remaining_quantile(10, 0.9)
    needed = slack_needed_s(1.25 * 1.22, rest, 4.0, 4.8)
    assert needed == pytest.approx(1.25 * 1.22 + (rest - 1) * (1 / 4.0 - 1 / 4.8))
    assert decide(replace(slow, slack_s=needed)).verdict is GO
    assert decide(replace(slow, slack_s=needed - 0.01)).missing_s == pytest.approx(0.01)
    discarded = decide(replace(SNAPSHOT, **BREAK)).gain - decide(SNAPSHOT).gain
    assert discarded == pytest.approx(50 * 1.22 * SERVER.rates.cost_out)
    with pytest.raises(ValueError, match="margin"):
        replace(SNAPSHOT, margin=0.5)


@given(
    n=st.integers(0, 3000),
    slack=st.floats(-10, 100),
    cap=st.none() | st.integers(1, 4000),
    warm=st.booleans(),
    margin=st.floats(1, 3),
)
def test_more_slack_never_hurts_and_what_is_missing_is_enough(n, slack, cap, warm, margin):
    facts = {"written_tokens": n, "max_tokens": cap, "target_has_prompt": warm, "margin": margin}
    decision = decide(replace(SNAPSHOT, **facts, slack_s=slack))
    if decision.verdict in (GO, BANK):
        more_s = decision.missing_s + 1e-6
        assert decide(replace(SNAPSHOT, **facts, slack_s=slack + more_s)).verdict is GO
