"""The solver's share is what a search finds, its tokens are never late, and with one token fewer one is late."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco.dispatch.assist_solver import (
    AssistCase,
    NoShare,
    Refining,
    Share,
    best_share,
    least_tokens,
    shares,
)
from disco.rates import Rates
from disco.session.switching.answer_lengths import AnswerLengths

LONG = AnswerLengths.geometric(200)
PHONE = AssistCase(
    prompt_tokens=500,
    server_ttft_s=0.6,
    server_tpot_s=0.02,
    device_read_s=0.008,
    device_tpot_s=0.05,
    slowest_tpot_s=0.1,
    lengths=LONG,
    server_rates=Rates(1e-6, 8e-6),
    device_rates=Rates(1e-8, 1e-7, cached_share=0.0),
)
EPS_S = 1e-9
MOST = 400


def milliseconds(low: int, high: int) -> st.SearchStrategy[float]:
    return st.integers(low, high).map(lambda ms: ms / 1000)


CASES = st.builds(
    AssistCase,
    prompt_tokens=st.integers(0, 400),
    server_ttft_s=milliseconds(1, 3000),
    server_tpot_s=milliseconds(1, 60),
    device_read_s=milliseconds(1, 60),
    device_tpot_s=milliseconds(1, 60),
    slowest_tpot_s=milliseconds(20, 100),
    lengths=st.just(LONG),
    device_overhead_s=milliseconds(0, 500),
    lost_at_cut=st.integers(0, 4),
)
REFINERS = st.lists(
    st.builds(
        Refining,
        name=st.sampled_from(["lexical", "server"]),
        kept=st.sampled_from([0.2, 0.5, 1.0]),
        ready_s=milliseconds(0, 400),
        by_server=st.booleans(),
    ),
    max_size=2,
).map(tuple)


def late_tokens(case: AssistCase, read_s: float, tokens: int) -> int:
    """Play server, device and display token by token, and count the tokens that come after their time.

    The device learns at the arrival of the server's last token which token is the last before the cut.
    """
    shown = tokens - case.lost_at_cut
    arrivals_s = [case.server_ttft_s + i * case.server_tpot_s for i in range(tokens)]
    now_s = read_s
    for i in range(shown):
        known_s = arrivals_s[-1] if i == shown - 1 else arrivals_s[i]
        now_s = max(now_s, known_s) + case.device_read_s
    now_s += case.device_overhead_s
    available_s = [*arrivals_s[:shown], *(now_s + j * case.device_tpot_s for j in range(50))]
    due_s = [case.server_ttft_s + i * case.slowest_tpot_s for i in range(len(available_s))]
    return sum(at > due + EPS_S for at, due in zip(available_s, due_s, strict=True))


@settings(max_examples=150)
@given(CASES, REFINERS)
def test_the_share_is_the_smallest_one_without_a_late_token(case, refinings):
    case = replace(case, refinings=refinings)
    for share in list(shares(case))[1:]:
        read_s = case.read_s(share.refining)
        found = share.reason or share.tokens
        assert found == least_tokens(case, read_s)
        least = case.lost_at_cut + 1
        if share.tokens is not None:
            assert late_tokens(case, read_s, share.tokens) == 0
            assert share.tokens == least or late_tokens(case, read_s, share.tokens - 1) > 0
            assert share.ready_s <= case.due_s(share.tokens) + EPS_S
        elif case.device_tpot_s <= case.slowest_tpot_s:
            # A pace that is too slow by one millisecond shows within the tokens that are played; a server's shows in
            # its second token.
            begin = least + (share.reason is NoShare.SERVER_PACE)
            assert all(late_tokens(case, read_s, tokens) for tokens in range(begin, MOST, 40))


@given(CASES, REFINERS, milliseconds(0, 5000))
def test_a_share_for_a_fast_server_is_enough_for_a_slow_one(case, refinings, later_s):
    slow = replace(case, server_ttft_s=case.server_ttft_s + later_s, refinings=refinings)
    for share in list(shares(replace(case, refinings=refinings)))[1:]:
        if share.tokens is not None:
            assert slow.ready_s(slow.read_s(share.refining), share.tokens) <= slow.due_s(share.tokens) + EPS_S


@settings(max_examples=60)
@given(
    CASES,
    REFINERS,
    st.lists(st.integers(1, 80), min_size=1, max_size=6),
    st.tuples(*[st.sampled_from([0.0, 1.0, 3.0])] * 4),
    st.integers(0, 400),
)
def test_the_cheapest_of_all_candidates_is_chosen(case, refinings, answers, prices, cached):
    case = replace(
        case,
        refinings=refinings,
        lengths=AnswerLengths.from_samples(answers),
        server_rates=Rates(*prices[:2]),
        device_rates=Rates(*prices[2:], cached_share=0.0),
        cached_tokens=min(cached, case.prompt_tokens),
    )

    def cost(share: Share) -> float:
        """Charge every answer token by token."""
        total = 0.0
        for n in answers:
            if share.tokens is None:
                total += prices[0] * case.prompt_tokens + prices[1] * n
                continue
            by_server = min(n, share.tokens)
            by_device = n - by_server + case.lost_at_cut if n > share.tokens else 0
            total += prices[0] * case.prompt_tokens + prices[1] * by_server
            total += prices[2] * (case.read_tokens(share.refining) + by_server) + prices[3] * by_device
        return total / len(answers)

    candidates = [share for share in shares(case) if share.reason is None]
    assert [share.cost for share in candidates] == pytest.approx([cost(share) for share in candidates])
    best = best_share(case)
    assert best.cost == pytest.approx(min(map(cost, candidates)))
    if best.tokens is None:
        assert best.reason is (NoShare.NOT_CHEAPER if len(candidates) > 1 else best.reason)
        assert best.reason is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"server_tpot_s": 0.11}, NoShare.SERVER_PACE),
        ({"server_tpot_s": 0.1}, NoShare.SERVER_PACE),
        ({"device_tpot_s": 0.11}, NoShare.DEVICE_PACE),
        ({"device_read_s": 0.1}, NoShare.READING_PACE),
        ({"most_tokens": 38}, NoShare.TOO_MANY),
        ({"server_rates": Rates()}, NoShare.NOT_CHEAPER),
    ],
    ids=str,
)
def test_where_no_share_is_given_the_reason_is_named(change, reason):
    best = best_share(replace(PHONE, **change))
    assert (best.tokens, best.reason) == (None, reason)


def test_the_kept_share_and_the_time_of_the_mask_decide_how_much_is_read():
    # 4 s of reading and a server's first token at 0.6 s: 3.4 s to hide at 0.092 s a token, and 2 tokens lost.
    assert best_share(PHONE).tokens == 39
    assert best_share(replace(PHONE, cached_tokens=500)).tokens == 3
    # The whole prompt is read until the mask comes; the rest is refined.
    late_mask = Refining("server", 0.25, ready_s=0.2, by_server=True)
    assert PHONE.read_s(late_mask) == pytest.approx(0.8 + 0.25 * 3.2)
    assert PHONE.read_s(Refining("lexical", 0.25)) == pytest.approx(1.0)
    assert PHONE.read_s(Refining("lexical", 0.25, ready_s=9.0)) == pytest.approx(4.0)
    both = replace(PHONE, refinings=(late_mask, Refining("lexical", 0.25)))
    best = best_share(both)
    assert (best.kept, best.tokens, best.refining) == (0.25, 7, both.refinings[1])


@given(st.builds(Refining, name=st.just("x"), kept=st.floats(0.01, 1), by_server=st.booleans()), CASES)
def test_a_refiner_never_delays_the_device(refining, case):
    assume(case.prompt_tokens)
    assert case.read_s(refining) <= case.read_s() + EPS_S


@pytest.mark.parametrize("change", [{"kept": 0.0}, {"kept": 1.1}, {"ready_s": -1.0}], ids=str)
def test_a_refiner_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match="kept must lie"):
        Refining(**{"name": "x", "kept": 0.5} | change)


@pytest.mark.parametrize(
    "change",
    [{"device_read_s": -1.0}, {"slowest_tpot_s": 0.0}, {"cached_tokens": 501}, {"lost_at_cut": -1}],
    ids=str,
)
def test_a_case_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match="must"):
        replace(PHONE, **change)
