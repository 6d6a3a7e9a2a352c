"""The migration rule, against exact tables and against a reader in simulation."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco.events import Delta
from disco.plan import Candidate
from disco.playback import Pace, Playback
from disco.playback.reader_metrics import late_tokens, lateness_s
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


def hand_over(n: int, *, source: Candidate, target: Candidate, prompt: int, rest: int, r_c: float) -> list:
    """Released timeline when the source writes n tokens, stops, and the target goes on after t_m."""
    playback = Playback(Pace(r_c))
    playback.banking = True
    switched_at = (n - 1) / source.decode_tps + target.time_to_first_token_s(prompt + n)
    arrivals = [i / source.decode_tps for i in range(n)]
    arrivals += [switched_at + j / target.decode_tps for j in range(rest)]
    released = []

    def release(until: float) -> None:
        while playback.next_at is not None and playback.next_at < until:
            wake = playback.next_at
            released.extend((wake, d.tokens) for d in playback.release(wake))

    for i, at in enumerate(arrivals):
        release(at)  # what fell due before the arrival leaves then, not with it
        playback.push(at, Delta(f" w{i}."))
        released += [(at, d.tokens) for d in playback.release(at)]
    release(math.inf)
    assert sum(k for _, k in released) == n + rest
    return released


def slack_of(n: int, r_c: float, r_s: float) -> float:
    return n / r_c - (n - 1) / r_s


def fewest_in_time(*, source: Candidate, target: Candidate, prompt: int, rest: int, r_c: float) -> int | None:
    """After how many tokens the rule hands over, as far as time is concerned: money is no object."""
    snapshot = replace(
        SNAPSHOT,
        source=replace(source, rates=Rates(0.0, 1.0)),
        target=replace(target, rates=Rates()),
        prompt_tokens=prompt,
        pace_tps=r_c,
        lengths=AnswerLengths.geometric(1e9),
        margin=1.0,
        make_before_break=False,
    )
    for n in range(1, 400):
        slack_s = slack_of(n, r_c, source.decode_tps)
        if decide(replace(snapshot, written_tokens=n, max_tokens=n + rest, slack_s=slack_s)).verdict is GO:
            return n
    return None


@pytest.mark.parametrize(("r_c", "fewest"), [(4.8, 7), (25.0, 66)])
def test_the_rule_moves_the_worked_example_after_so_many_tokens(r_c, fewest):
    """`n* = ⌈r_c·(t_0 + p/v_t − 1/r_s) / (1 − r_c/r_s − r_c/v_t)⌉`."""
    assert fewest_in_time(source=SERVER, target=DEVICE, prompt=500, rest=20, r_c=r_c) == fewest


@settings(max_examples=30)
@given(
    r_c=st.sampled_from([4.8, 25.0, 75.0]),
    r_s=st.floats(20, 400),
    v_t=st.floats(100, 5000),
    overhead_s=st.floats(0, 1.5),
    prompt=st.integers(0, 1000),
)
def test_the_rule_moves_as_soon_as_no_token_is_late(r_c, r_s, v_t, overhead_s, prompt):
    """After the fewest tokens with which the rule moves none is late, with one less there is."""
    source = replace(SERVER, decode_tps=r_s)
    target = replace(DEVICE, prefill_tps=v_t, overhead_s=overhead_s, decode_tps=1.5 * r_c)
    how = {"source": source, "target": target, "prompt": prompt, "rest": 20, "r_c": r_c}
    n = fewest_in_time(**how)
    assume(n is not None)
    assert late_tokens(hand_over(n, **how), r_c) == 0
    if n > 1:
        assert max(lateness_s(hand_over(n - 1, **how), r_c)) > 1e-9


def test_a_target_slower_than_the_reader_needs_more_slack_and_exactly_that():
    target = replace(DEVICE, decode_tps=4.0)
    rest, r_c = 60, 4.8
    for n in range(1, 300):
        t_m = target.time_to_first_token_s(500 + n)
        released = hand_over(n, source=SERVER, target=target, prompt=500, rest=rest, r_c=r_c)
        late = max(lateness_s(released, r_c)) > 1e-9
        assert late == (slack_of(n, r_c, 50.0) < slack_needed_s(t_m, rest, 4.0, r_c) - 1e-9)
        if not late:
            break
    assert n > r_c * t_m + 5  # the paper's B alone is too small
    # The rule plans for a long rest.
    slow = replace(SNAPSHOT, target=target)
    needed = slack_needed_s(1.25 * 1.22, slow.lengths.remaining_quantile(10, 0.9), 4.0, 4.8)
    assert decide(replace(slow, slack_s=needed)).verdict is GO
    assert decide(replace(slow, slack_s=needed - 0.01)).missing_s == pytest.approx(0.01)


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
@given(st.floats(1, 400), st.integers(2, 200), MONEY)
def test_the_rule_is_the_exact_table_where_hazards_do_not_fall(mean, cap, money):
    lengths = AnswerLengths.geometric(mean)
    for n, best in enumerate(moves_best(lengths.capped(cap), cap, **money)[:cap]):
        if best is not None:
            assert (decided(lengths, n, cap, money).verdict is GO) == best


@settings(max_examples=50)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=30), MONEY)
def test_for_any_lengths_the_table_moves_only_where_the_rule_finds_it_worth_it(samples, money):
    """Whether to wait a little the rule judges by a hazard averaged over some tokens; that it pays, exactly."""
    lengths = AnswerLengths.from_samples(samples)
    for n, best in enumerate(moves_best(lengths, max(samples), **money)[:-1]):
        if best and lengths.survival(n) > 0:
            assert decided(lengths, n, None, money).reason in (None, Reason.ENDS_SOON)


def to(**device) -> dict:
    """A target that differs from the device."""
    return {"target": replace(DEVICE, **device)}


def lasts(mean: float) -> dict:
    return {"lengths": AnswerLengths.geometric(mean)}


BREAK = {"make_before_break": False}
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
        (lasts(2), NEVER, Reason.NOT_WORTH_IT),
        ({"max_tokens": 10}, NEVER, Reason.NOT_WORTH_IT),
        ({"max_tokens": 12}, NEVER, Reason.NOT_WORTH_IT),
        # A long answer promises a longer one.
        ({**MOSTLY_SHORT, "written_tokens": 1}, RETRY, Reason.NOT_WORTH_IT),
        ({**MOSTLY_SHORT, "written_tokens": 6}, GO, None),
        # The answer is likely to end now.
        ({**SHORT_OR_ENDLESS, "written_tokens": 19}, RETRY, Reason.ENDS_SOON),
        ({**SHORT_OR_ENDLESS, "written_tokens": 20}, GO, None),
        # Slack is missing; a failed try doubles the margin.
        ({"slack_s": 1.25 * 1.22 - 0.01}, BANK, Reason.SLACK),
        ({"slack_s": 1.25 * 1.22}, GO, None),
        ({"slack_s": 1.6, "margin": 2.5}, BANK, Reason.SLACK),
        # It cannot grow fast enough, or too little would be left when it has grown.
        ({"slack_s": 1.0, "pace_tps": 60.0, **BREAK}, NEVER, Reason.INFEASIBLE),
        ({"slack_s": 1.0, **to(prefill_tps=5.0), **BREAK}, NEVER, Reason.INFEASIBLE),
        ({"slack_s": 0.0, "pace_tps": 25.0, "max_tokens": 70, **BREAK}, NEVER, Reason.TOO_SHORT),
        # Where no reader waits, no slack is needed.
        (SLUGGISH, GO, None),
        ({**SLUGGISH, "pace_tps": None}, GO, None),
        # Keeping a fast source writing for the 51 s that this target needs would eat up the saving.
        ({**SLUGGISH, "make_before_break": True}, NEVER, Reason.NOT_WORTH_IT),
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
