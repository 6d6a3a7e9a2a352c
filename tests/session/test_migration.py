"""The migration rule, against exact tables and against a reader in simulation."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco.events import Delta
from disco.plan import Candidate
from disco.playback import Pace, Playback
from disco.playback.reader_metrics import late_tokens, lateness_s, tbt_s
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

SERVER = Candidate("server", "any", rates=Rates(1e-6, 4e-6), decode_tps=50.0, continues=True)
DEVICE = Candidate(
    "device",
    "device",
    rates=Rates(0.0, 1e-8),
    prefill_tps=500.0,
    overhead_s=0.2,
    decode_tps=40.0,
    continues=True,
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


def worth(cost_in: float = 0.0, cost_out: float = 1e-8, **more) -> Candidate:
    """The device at other rates."""
    return replace(DEVICE, rates=Rates(cost_in, cost_out), **more)


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


def moves_in_time(
    n: int, *, source: Candidate, target: Candidate, prompt: int, rest: int, r_c: float
) -> bool:
    """Whether the rule hands over after n tokens, as far as time is concerned: money is no object."""
    snapshot = replace(
        SNAPSHOT,
        source=replace(source, rates=Rates(0.0, 1.0)),
        target=replace(target, rates=Rates()),
        prompt_tokens=prompt,
        written_tokens=n,
        max_tokens=n + rest,
        slack_s=n / r_c - (n - 1) / source.decode_tps,
        pace_tps=r_c,
        lengths=AnswerLengths.geometric(1e9),
        margin=1.0,
        make_before_break=False,
    )
    return decide(snapshot).verdict is MigrationVerdict.GO


def fewest_in_time(**how) -> int | None:
    return next((n for n in range(1, 400) if moves_in_time(n, **how)), None)


@pytest.mark.parametrize(("r_c", "fewest"), [(4.8, 7), (25.0, 66)])
def test_the_rule_moves_the_worked_example_after_so_many_tokens(r_c: float, fewest: int) -> None:
    """`n* = ⌈r_c·(t_0 + p/v_t − 1/r_s) / (1 − r_c/r_s − r_c/v_t)⌉`."""
    assert fewest_in_time(source=SERVER, target=DEVICE, prompt=500, rest=20, r_c=r_c) == fewest


@settings(max_examples=80)
@given(
    r_c=st.sampled_from([4.8, 25.0, 75.0]),
    r_s=st.floats(20, 400),
    v_t=st.floats(100, 5000),
    overhead_s=st.floats(0, 1.5),
    prompt=st.integers(0, 1000),
)
def test_the_rule_moves_as_soon_as_no_token_is_late(
    r_c: float, r_s: float, v_t: float, overhead_s: float, prompt: int
) -> None:
    """After the fewest tokens with which the rule moves none is late, with one less there is."""
    source = replace(SERVER, decode_tps=r_s)
    target = replace(DEVICE, prefill_tps=v_t, overhead_s=overhead_s, decode_tps=1.5 * r_c)
    how = {"source": source, "target": target, "prompt": prompt, "rest": 20, "r_c": r_c}
    n = fewest_in_time(**how)
    assume(n is not None)
    assert n is not None
    assert late_tokens(hand_over(n, **how), r_c) == 0
    if n > 1:
        assert max(lateness_s(hand_over(n - 1, **how), r_c)) > 1e-9


def test_where_waiting_never_helps_no_number_of_tokens_is_enough() -> None:
    slow = replace(DEVICE, prefill_tps=5.0)
    how = {"source": SERVER, "target": slow, "prompt": 500, "rest": 5, "r_c": 4.8}
    assert fewest_in_time(**how) is None
    assert all(late_tokens(hand_over(n, **how), 4.8) > 0 for n in (1, 10, 100))
    # With nothing to prefill, a tiny overhead fits between two tokens even so.
    tiny = replace(slow, prefill_tps=20.0, overhead_s=0.0)
    assert fewest_in_time(source=SERVER, target=tiny, prompt=0, rest=5, r_c=16.0) == 1


def test_a_target_slower_than_the_reader_needs_more_slack_and_exactly_that() -> None:
    target = replace(DEVICE, decode_tps=4.0)
    rest, r_c = 60, 4.8
    for n in range(1, 300):
        t_m = target.time_to_first_token_s(500 + n)
        slack = n / r_c - (n - 1) / SERVER.decode_tps
        released = hand_over(n, source=SERVER, target=target, prompt=500, rest=rest, r_c=r_c)
        late = max(lateness_s(released, r_c)) > 1e-9
        assert late == (slack < slack_needed_s(t_m, rest, 4.0, r_c) - 1e-9)
        if not late:
            break
    assert n > r_c * t_m + 5  # the paper's B alone is too small


def test_too_little_bank_gives_the_gap_the_formula_says() -> None:
    """Gap `1/r_c + d_0` with `d_0 = t_m − S`; on the screen the 10 ms more by which the pacer runs ahead."""
    n, r_c = 4, 4.8
    t_m = DEVICE.time_to_first_token_s(500 + n)
    slack = n / r_c - (n - 1) / SERVER.decode_tps
    released = hand_over(n, source=SERVER, target=DEVICE, prompt=500, rest=30, r_c=r_c)
    assert t_m > slack
    assert max(tbt_s(released)) == pytest.approx(1 / r_c + t_m - slack + 0.01)
    assert max(lateness_s(released, r_c)) == pytest.approx(t_m - slack)


MONEY = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(0, 800),
        "cost_in": st.floats(0, 0.2),
        "source_cost_out": st.floats(0, 2),
        "target_cost_out": st.floats(0, 2),
    }
)


def exact_table(
    lengths: AnswerLengths,
    horizon: int,
    *,
    prompt_tokens: int,
    cost_in: float,
    source_cost_out: float,
    target_cost_out: float,
) -> tuple[list[float], list[bool], list[bool]]:
    """Exact expected cost of the rest of an answer that may move once, and where moving is optimal.

    `V(n) = min{C(n) + c_t·E[R_n], c_s + (1−h(n))·V(n+1)}` for n = 0 … horizon; at the horizon the choice is to move
    there or never.

    Returns:
        V, "moving now is optimal", and "moving costs the same as staying, but for rounding"; `horizon + 1` of each.
    """
    value, moves, ties = ([0.0] * (horizon + 1), [False] * (horizon + 1), [False] * (horizon + 1))
    stay = source_cost_out * lengths.expected_remaining(horizon)
    for n in range(horizon, -1, -1):
        if n < horizon:
            stay = source_cost_out + (1 - lengths.hazard(n)) * value[n + 1]
        left = lengths.expected_remaining(n)
        move = cost_in * (prompt_tokens + n) + target_cost_out * left
        moves[n] = move <= stay and left > 0
        ties[n] = abs(move - stay) <= 1e-7 * max(1.0, move)
        value[n] = move if moves[n] else stay
    return value, moves, ties


def decided(lengths: AnswerLengths, n: int, cap: int | None, money: dict) -> Decision:
    """What the rule decides for money's sake alone: the reader does not wait, and nothing is written in vain."""
    source = replace(SERVER, rates=Rates(0.0, money["source_cost_out"]))
    target = replace(DEVICE, rates=Rates(money["cost_in"], money["target_cost_out"]))
    return decide(
        replace(
            SNAPSHOT,
            source=source,
            target=target,
            prompt_tokens=money["prompt_tokens"],
            written_tokens=n,
            max_tokens=cap,
            slack_s=math.inf,
            lengths=lengths,
            make_before_break=False,
        )
    )


@given(st.floats(1, 400), st.integers(2, 300), MONEY)
def test_the_rule_is_the_exact_table_where_hazards_do_not_fall(mean: float, cap: int, money: dict) -> None:
    lengths = AnswerLengths.geometric(mean)
    assume(money["source_cost_out"] > money["target_cost_out"] + 1e-6)
    _, moves, ties = exact_table(lengths.capped(cap), cap, **money)
    for n in range(cap):
        if not ties[n]:  # they fall either way
            assert (decided(lengths, n, cap, money).verdict is MigrationVerdict.GO) == moves[n]


@given(st.lists(st.integers(1, 80), min_size=1, max_size=30), MONEY)
def test_for_any_lengths_the_table_moves_only_where_the_rule_finds_it_worth_it(
    samples: list[int], money: dict
) -> None:
    """Whether to wait a little the rule judges by a hazard averaged over some tokens; that it pays, exactly."""
    lengths = AnswerLengths.from_samples(samples)
    assume(money["source_cost_out"] > money["target_cost_out"] + 1e-6)
    _, moves, _ = exact_table(lengths, max(samples), **money)
    slightly_cheaper = {**money, "source_cost_out": money["source_cost_out"] * (1 + 1e-7) + 1e-7}
    for n in range(max(samples)):
        if moves[n] and lengths.survival(n) > 0:
            assert decided(lengths, n, None, slightly_cheaper).reason in (None, Reason.ENDS_SOON)


def test_gain_is_what_is_left_to_save_less_the_price() -> None:
    money = {"prompt_tokens": 100, "cost_in": 0.01, "source_cost_out": 0.03, "target_cost_out": 0.01}
    assert decided(AnswerLengths.geometric(200), 50, None, money).gain == pytest.approx(200 * 0.02 - 1.5)


MOSTLY_SHORT = AnswerLengths.from_samples([5] * 95 + [2000] * 5)
SHORT_OR_ENDLESS = AnswerLengths.from_samples([20] * 90 + [5000] * 10)
BREAK = {"make_before_break": False}
UNREAD = {
    "slack_s": math.inf,
    "target": replace(DEVICE, decode_tps=2.0, prefill_tps=10.0),
    "make_before_break": False,
}
UNPACED = {"pace_tps": None, "slack_s": 0.0}
FAST_TARGET = replace(DEVICE, decode_tps=100.0)


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, MigrationVerdict.GO, None),
        ({"target": replace(DEVICE, continues=False)}, MigrationVerdict.NEVER, Reason.CANNOT_CONTINUE),
        ({"target": replace(DEVICE, context_tokens=512)}, MigrationVerdict.NEVER, Reason.CONTEXT),
        # It saves nothing.
        ({"source": DEVICE, "target": SERVER}, MigrationVerdict.NEVER, Reason.NOT_WORTH_IT),
        ({"lengths": AnswerLengths.geometric(2)}, MigrationVerdict.NEVER, Reason.NOT_WORTH_IT),
        ({"max_tokens": 10}, MigrationVerdict.NEVER, Reason.NOT_WORTH_IT),
        ({"max_tokens": 12}, MigrationVerdict.NEVER, Reason.NOT_WORTH_IT),
        # A long answer promises a longer one.
        (
            {"target": worth(2e-6), "lengths": MOSTLY_SHORT, "written_tokens": 1},
            MigrationVerdict.RETRY,
            Reason.NOT_WORTH_IT,
        ),
        ({"target": worth(2e-6), "lengths": MOSTLY_SHORT, "written_tokens": 6}, MigrationVerdict.GO, None),
        # The answer is likely to end now.
        (
            {"target": worth(2e-6), "lengths": SHORT_OR_ENDLESS, "written_tokens": 19},
            "later",
            Reason.ENDS_SOON,
        ),
        (
            {"target": worth(2e-6), "lengths": SHORT_OR_ENDLESS, "written_tokens": 20},
            MigrationVerdict.GO,
            None,
        ),
        # Slack cannot grow fast enough.
        ({"slack_s": 1.0, "pace_tps": 60.0, **BREAK}, MigrationVerdict.NEVER, Reason.INFEASIBLE),
        (
            {"slack_s": 1.0, "target": replace(DEVICE, prefill_tps=5.0), **BREAK},
            MigrationVerdict.NEVER,
            Reason.INFEASIBLE,
        ),
        # Too little would be left when it has grown.
        (
            {"slack_s": 0.0, "pace_tps": 25.0, "max_tokens": 70, **BREAK},
            MigrationVerdict.NEVER,
            Reason.TOO_SHORT,
        ),
        # Where no reader waits, no slack is needed.
        (UNREAD, MigrationVerdict.GO, None),
        ({**UNREAD, "pace_tps": None}, MigrationVerdict.GO, None),
        # Keeping a fast source writing for the 51 s that this target needs would eat up the saving.
        ({**UNREAD, "make_before_break": True}, MigrationVerdict.NEVER, Reason.NOT_WORTH_IT),
        # Without a pace, only a target that makes up for the gap: R > t_m·r_s·r_t/(r_t − r_s) = 152.5.
        (UNPACED, MigrationVerdict.NEVER, Reason.NO_BUFFER),
        (
            {**UNPACED, "target": FAST_TARGET, "lengths": AnswerLengths.geometric(153)},
            MigrationVerdict.GO,
            None,
        ),
        (
            {**UNPACED, "target": FAST_TARGET, "lengths": AnswerLengths.geometric(152)},
            MigrationVerdict.NEVER,
            Reason.NO_BUFFER,
        ),
    ],
)
def test_verdicts_and_their_reasons(changes: dict, verdict: MigrationVerdict, reason: Reason | None) -> None:
    decision = decide(replace(SNAPSHOT, **changes))
    assert (decision.verdict, decision.reason) == (verdict, reason)


def test_the_time_of_a_hand_over_is_the_targets_line() -> None:
    assert decide(SNAPSHOT).handover_s == pytest.approx(0.2 + 510 / 500)


def test_bank_says_how_much_slack_is_missing() -> None:
    decision = decide(replace(SNAPSHOT, slack_s=1.0))
    assert (decision.verdict, decision.reason) == (MigrationVerdict.BANK, Reason.SLACK)
    assert decision.missing_s == pytest.approx(1.25 * 1.22 - 1.0)
    assert decide(replace(SNAPSHOT, slack_s=1.25 * 1.22)).verdict is MigrationVerdict.GO
    # A failed try doubles the margin.
    assert decide(replace(SNAPSHOT, slack_s=1.6, margin=2.5)).verdict is MigrationVerdict.BANK


def test_a_warm_target_needs_neither_time_nor_money_for_the_prompt() -> None:
    cold, warm = decide(SNAPSHOT), decide(replace(SNAPSHOT, target_has_prompt=True))
    assert warm.handover_s == pytest.approx(0.2 + 10 / 500)
    dear = replace(SNAPSHOT, target=worth(3e-6))
    assert decide(dear).verdict is MigrationVerdict.NEVER
    assert decide(replace(dear, target_has_prompt=True)).verdict is MigrationVerdict.GO
    assert warm.gain > cold.gain


def test_the_sources_discarded_tokens_are_part_of_the_price() -> None:
    make, break_ = decide(SNAPSHOT), decide(replace(SNAPSHOT, make_before_break=False))
    assert break_.gain - make.gain == pytest.approx(50 * 1.22 * SERVER.rates.cost_out)


def test_a_target_slower_than_the_reader_is_planned_for_a_long_rest() -> None:
    slow = replace(SNAPSHOT, target=replace(DEVICE, decode_tps=4.0))
    assert decide(slow).verdict is MigrationVerdict.BANK
    needed = slack_needed_s(1.25 * 1.22, slow.lengths.remaining_quantile(10, 0.9), 4.0, 4.8)
    assert decide(replace(slow, slack_s=needed)).verdict is MigrationVerdict.GO
    assert decide(replace(slow, slack_s=needed - 0.01)).missing_s == pytest.approx(0.01)


def test_a_margin_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        replace(SNAPSHOT, margin=0.5)


@given(
    st.integers(0, 3000),
    st.floats(-10, 100),
    st.none() | st.integers(1, 4000),
    st.booleans(),
    st.floats(1, 3),
)
def test_decisions_are_repeatable_and_more_slack_never_hurts(
    n: int, slack: float, cap: int | None, warm: bool, margin: float
) -> None:
    snapshot = replace(
        SNAPSHOT, written_tokens=n, slack_s=slack, max_tokens=cap, target_has_prompt=warm, margin=margin
    )
    decision = decide(snapshot)
    assert decision == decide(snapshot)
    if decision.verdict is MigrationVerdict.GO:
        assert decide(replace(snapshot, slack_s=slack + 1)).verdict is MigrationVerdict.GO
    if decision.verdict is MigrationVerdict.BANK:
        assert (
            decide(replace(snapshot, slack_s=slack + decision.missing_s + 1e-6)).verdict
            is MigrationVerdict.GO
        )
