"""The machine of rounds: whatever happens on the way, the answer is the target's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from disco.speculate import Window, window_of
from disco.speculate.effects import Draft, Fail, Finish, Send, StopDraft, StopStream, Write
from disco.speculate.messages import Verdict
from disco.speculate.rounds import Rounds
from tests.speculate.made_verifier import MadeVerifier, Run, Weather, text_of

FINE = Weather()
ROUGH = Weather(
    reorders=0.5,
    duplicates=0.2,
    loses=0.1,
    times_out=0.1,
    forgets=0.05,
    stops_early=0.2,
    drafter_dies=0.002,
    late=0.5,
    gaps=0.05,
)
MIXED = Weather(reorders=0.5, duplicates=0.3, stops_early=0.2, late=0.3)


class AnyNumber(Window):
    """Asks for any number of tokens, also for ones that no message could hold."""

    stop_below = 0.0

    def __init__(self, chance: random.Random) -> None:
        self._random = chance

    def choose(self, seen):
        return self._random.choice((0, 1, 1, 2, 3, 5, 8, 100))

    def judged(self, drafted, accepted):
        assert 0 <= accepted <= drafted


def a_window(name: str, chance: random.Random, parallel: int) -> Window:
    if name == "any":
        return AnyNumber(chance)
    settings = {"parallel": parallel} if name == "optimal" else {}
    return window_of(name, **settings)


def a_drafter(
    target: Sequence[int], right: float, chance: random.Random
) -> Callable[[Sequence[int]], int | None]:
    """A drafter that knows the answer, and errs; once it has erred, all that follows is wrong as well."""

    def guess(sequence: Sequence[int]) -> int | None:
        place = len(sequence)
        if place >= len(target) + 3:
            return None
        follows = list(sequence) == list(target[:place])
        if follows and place < len(target) and chance.random() < right:
            return target[place]
        return chance.randrange(1000, 1010)

    return guess


def a_run(
    seed: int,
    *,
    length: int = 40,
    window: str = "any",
    right: float = 0.7,
    parallel: int = 1,
    weather: Weather = FINE,
    reason: str = "stop",
    has_limit: bool = False,
    alone_tokens: int = 256,
    has_drafter: bool = True,
) -> Run:
    chance = random.Random(seed)
    target = [chance.randrange(5) for _ in range(length)]
    holds = frozenset(place for place in range(length) if chance.random() < 0.2)
    rounds = Rounds(
        a_window(window, chance, parallel),
        parallel=parallel,
        has_drafter=has_drafter,
        limit=length if has_limit else None,
        alone_tokens=alone_tokens,
        retries=10**6,
    )
    verifier = MadeVerifier(target, reason, holds)
    run = Run(rounds, verifier, a_drafter(target, right, chance), chance, weather)
    run.drive(most_turns=400 + 100 * length)
    return run


WINDOWS = st.sampled_from(("any", "static", "dynamic", "confidence", "optimal"))


@given(
    seed=st.integers(0, 2**32),
    length=st.integers(0, 60),
    window=WINDOWS,
    right=st.sampled_from((0.0, 0.3, 0.8, 1.0)),
    parallel=st.integers(1, 3),
    weather=st.sampled_from((FINE, ROUGH, MIXED)),
    reason=st.sampled_from(("stop", "length")),
    has_limit=st.booleans(),
    alone_tokens=st.sampled_from((0, 3, 256)),
)
@example(0, 40, "static", 1.0, 3, ROUGH, "length", True, 3)
def test_the_answer_is_the_targets_own_whatever_happens(
    seed, length, window, right, parallel, weather, reason, has_limit, alone_tokens
):
    """`Run` checks on every step that what is written is new and a prefix of the target's answer."""
    if length == 0 and reason == "length":
        return
    run = a_run(
        seed,
        length=length,
        window=window,
        right=right,
        parallel=parallel,
        weather=weather,
        reason=reason,
        has_limit=has_limit,
        alone_tokens=alone_tokens,
    )
    assert run.end == Finish(reason)
    assert run.written == run.verifier.target
    assert run.text == text_of(run.verifier.target)
    tally = run.rounds.tally
    assert sum(tally.tokens.values()) == length
    assert 0 <= tally.accepted <= tally.judged <= tally.sent <= tally.drafted
    assert tally.sent == sum(size * count for size, count in tally.windows.items())
    assert 0 <= tally.agreed <= tally.compared
    timed = tally.timed_windows
    assert len(timed) <= sum(tally.windows.values())
    assert sum(right for *_, right in timed) <= tally.accepted
    assert all(sent <= known and 0 <= right <= drafted for sent, known, drafted, right in timed)
    assert run.rounds.drafter_state != "dead" or weather.drafter_dies > 0


@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 60),
    window=st.sampled_from(("any", "static", "dynamic")),
    right=st.sampled_from((0.3, 0.8, 1.0)),
    parallel=st.integers(1, 3),
    weather=st.sampled_from((FINE, MIXED)),
)
def test_judged_and_accepted_are_exact(seed, length, window, right, parallel, weather):
    """Unless a round is lost: a drafted token is judged if all that the drafter had before it was right.

    Counted here from the drafter's whole sequence at each window, which the machine never looks at.
    """
    run = a_run(seed, length=length, window=window, right=right, parallel=parallel, weather=weather)
    target = list(run.verifier.target)
    judged = accepted = 0
    for send, sequence in run.sends.values():
        for place in range(send.at, min(len(sequence), length)):
            if sequence[:place] == target[:place]:
                judged += 1
                accepted += sequence[place] == target[place]
    assert (run.rounds.tally.judged, run.rounds.tally.accepted) == (judged, accepted)


def test_in_turn_the_server_counts_the_same_as_the_client():
    for seed in range(20):
        run = a_run(seed, window="static", right=0.8, length=60, reason="length")
        tally = run.rounds.tally
        assert tally.judged > 0
        assert (tally.judged, tally.accepted) == (run.verifier.judged, run.verifier.accepted)
        assert sum(right for *_, right in tally.timed_windows) == tally.accepted


@given(seed=st.integers(0, 2**32), parallel=st.integers(1, 3), weather=st.sampled_from((FINE, ROUGH)))
def test_without_a_drafter_the_target_goes_on_alone(seed, parallel, weather):
    run = a_run(seed, parallel=parallel, weather=weather, has_drafter=False, alone_tokens=7)
    tally = run.rounds.tally
    assert run.written == run.verifier.target
    assert (tally.drafted, tally.sent, tally.tokens["distributed"]) == (0, 0, 0)


class Ready:
    """A machine in distributed mode: it knows 3 tokens, has proved its drafter, and has ordered a draft of 4."""

    def __init__(self, parallel: int = 1, **settings) -> None:
        self.rounds = Rounds(window_of("static", n=4), parallel=parallel, **settings)
        assert self.rounds.start(0.0) == [Send(0, 0, (), 256)]
        (shadow,) = self.rounds.drafter_ready(0.0)
        assert shadow == Draft(0, 0, (), 4)
        assert self.rounds.drafted(0.04, 0, (1, 2, 9, 9), 0.04) == []
        for place, token in enumerate((1, 2)):
            (write,) = self.verified(0.1 + 0.01 * place, 0, place, (token,))
            assert write == Write(place, (token,), (), "alone")
        write, stop, draft = self.verified(0.12, 0, 2, (3,))
        assert (stop, draft) == (StopStream(0), Draft(1, 2, (3,), 4))

    def verified(self, now, number, at, ids, **fields):
        return self.rounds.verified(now, Verdict(number, at, ids, **fields))


def test_a_round_in_turn():
    ready = Ready()
    assert ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04) == [Send(1, 3, (4, 5, 6, 7))]
    write, draft = ready.verified(0.3, 1, 3, (4, 5, 8))
    assert write == Write(3, (4, 5, 8), (), "distributed")
    assert draft == Draft(2, 5, (8,), 4)
    assert (ready.rounds.tally.judged, ready.rounds.tally.accepted, ready.rounds.tally.rejected) == (3, 2, 1)


def test_in_parallel_the_next_window_begins_with_the_guess_of_the_bonus():
    ready = Ready(parallel=2)
    send, draft = ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04)
    assert (send, draft) == (Send(1, 3, (4, 5, 6, 7)), Draft(2, 7, (), 4))
    assert ready.rounds.drafted(0.21, 2, (8, 9, 10, 11), 0.04) == [Send(2, 7, (8, 9, 10, 11))]
    write, draft = ready.verified(0.3, 1, 3, (4, 5, 6, 7, 8))
    assert write == Write(3, (4, 5, 6, 7, 8), (), "distributed")
    assert draft == Draft(3, 11, (), 4)
    (write, stop) = ready.verified(0.31, 2, 7, (8, 9, 12))
    assert write == Write(8, (9, 12), (), "distributed")
    assert stop == StopDraft(3)
    assert ready.rounds.drafter_state == "busy"
    assert ready.rounds.drafted(0.32, 3, (13,), 0.01) == [Draft(4, 9, (12,), 4)]


def test_a_verdict_that_overtakes_another_waits_for_it():
    ready = Ready(parallel=2)
    ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04)
    ready.rounds.drafted(0.21, 2, (8, 9, 10, 11), 0.04)
    assert ready.verified(0.29, 2, 7, (8, 9, 10, 11, 12)) == []
    effects = ready.verified(0.3, 1, 3, (4, 5, 6, 7, 8))
    assert effects[0] == Write(3, (4, 5, 6, 7, 8), (), "distributed")
    assert effects[1] == Write(8, (9, 10, 11, 12), (), "distributed")
    assert ready.verified(0.31, 1, 3, (4, 5, 6, 7, 8)) == []


def test_deltas_are_written_once_also_where_text_was_held_back():
    """The second verdict repeats token 7; the text of 6 and 7 was held back, and comes with token 8."""
    ready = Ready(parallel=2)
    ready.rounds.drafted(0.2, 1, (4, 5, 6), 0.04)
    ready.rounds.drafted(0.21, 2, (7, 8), 0.04)
    first = ({"text": "4", "at": 3}, {"text": "5", "at": 4})
    assert ready.verified(0.3, 1, 3, (4, 5, 6, 7), deltas=first)[0].deltas == ({"text": "4"}, {"text": "5"})
    second = ({"text": "678", "tokens": 3, "at": 7}, {"text": "9", "at": 8})
    (write, *_) = ready.verified(0.3, 2, 6, (7, 8, 9), deltas=second)
    assert write == Write(7, (8, 9), ({"text": "678", "tokens": 3}, {"text": "9"}), "distributed")


def test_a_late_drafter_does_not_hold_up_the_answer():
    ready = Ready()
    wake = ready.rounds.wake_at
    assert 0.12 < wake < 1.0
    assert ready.rounds.woken(wake - 0.001) == []
    assert ready.rounds.woken(wake) == [StopDraft(1), Send(1, 3, (), 256)]
    assert (ready.rounds.mode, ready.rounds.drafter_state) == ("alone", "late")
    assert ready.verified(wake + 1, 1, 3, (4,)) == [Write(3, (4,), (), "alone")]
    assert ready.rounds.drafted(wake + 2, 1, (4, 5), 2.0) == []
    assert ready.rounds.tally.late == 1
    _, draft = ready.verified(wake + 3, 1, 4, (5,))
    assert draft == Draft(2, 5, (), 4)  # it followed so far, and now shows again what it is worth


def test_a_dead_drafter_is_not_asked_again():
    ready = Ready()
    assert ready.rounds.failed(0.2, "drafter", 1) == [Send(1, 3, (), 256)]
    assert ready.verified(0.3, 1, 3, (4,)) == [Write(3, (4,), (), "alone")]
    assert ready.rounds.drafted(0.3, 1, (4, 5, 6, 7), 0.1) == []


def test_a_failed_round_is_sent_again_as_it_was_and_only_so_often():
    ready = Ready(retries=2)
    ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04)
    assert ready.rounds.failed(0.3, "verifier", 1) == [Send(1, 3, (4, 5, 6, 7))]
    assert ready.rounds.failed(0.4, "verifier", 1) == [Send(1, 3, (4, 5, 6, 7))]
    assert ready.rounds.failed(0.5, "verifier", 1) == [Fail("3 rounds failed in a row")]
    assert ready.rounds.is_over
    assert ready.verified(0.6, 1, 3, (4,)) == []


def test_a_verdict_that_contradicts_settled_tokens_ends_the_answer():
    ready = Ready()
    stop, fail = ready.verified(0.3, 1, 1, (2, 4))
    assert stop == StopDraft(1)
    assert isinstance(fail, Fail)


def test_the_end_stops_the_drafter():
    ready = Ready(parallel=2)
    ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04)
    effects = ready.verified(0.3, 1, 3, (4,), finish_reason="stop")
    assert effects == [Write(3, (4,), (), "distributed"), StopDraft(2), Finish("stop")]
    assert ready.rounds.wake_at == float("inf")


def test_no_draft_goes_beyond_the_limit():
    """Of 9 tokens 3 are there; the target adds one of its own, so the longest draft has 5."""
    rounds = Rounds(window_of("static", n=12), ids=(1, 2, 3), limit=9)
    assert rounds.start(0.0) == [Send(0, 3, (), 5)]
    assert rounds.drafter_ready(0.0) == [Draft(0, 0, (1, 2, 3), 5)]


def test_while_verdicts_are_under_way_a_drafter_with_nothing_to_say_is_not_asked_again():
    ready = Ready(parallel=2)
    ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04)
    assert ready.rounds.drafted(0.21, 2, (), 0.01) == []
    assert ready.rounds.woken(9.0) == []
    assert ready.verified(0.3, 1, 3, (4, 5, 8))[1:] == [Draft(3, 5, (8,), 4)]


def test_a_drafter_with_nothing_to_say_leaves_the_target_alone():
    ready = Ready()
    assert ready.rounds.drafted(0.2, 1, (), 0.01) == [Send(1, 3, (), 256)]
    assert ready.rounds.mode == "alone"


def test_a_window_that_asks_for_none_is_heard_once_all_verdicts_are_in():
    ready = Ready(parallel=2)
    ready.rounds._window = window_of("static", n=0)
    assert ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04) == [Send(1, 3, (4, 5, 6, 7))]
    write, send = ready.verified(0.3, 1, 3, (4, 5, 6, 7, 8))
    assert (write.ids, send) == ((4, 5, 6, 7, 8), Send(2, 8, (), 256))


def three_windows() -> Ready:
    """4 to 15 are drafted, in windows of 4 from position 3 on."""
    ready = Ready(parallel=3)
    for number in range(3):
        first = 4 + 4 * number
        ready.rounds.drafted(0.2, 1 + number, range(first, first + 4), 0.04)
    assert ready.rounds.in_flight == 3
    return ready


def test_a_window_that_the_server_did_not_wait_for_is_drafted_again():
    """And so is the one behind it, though nothing was wrong."""
    ready = three_windows()
    assert ready.verified(0.3, 2, 3, ()) == [Draft(4, 7, (), 4)]
    # The third window no longer takes a place, so another one may be drafted.
    send, draft = ready.rounds.drafted(0.31, 4, (8, 9, 10, 11), 0.04)
    assert (send, draft) == (Send(4, 7, (8, 9, 10, 11)), Draft(5, 11, (), 4))
    ready.verified(0.32, 1, 3, (4, 5, 6, 7, 8))
    ready.verified(0.33, 4, 7, (8, 9, 10, 11, 12))
    assert ready.rounds.ids == tuple(range(1, 13))
    assert (ready.rounds.tally.judged, ready.rounds.tally.accepted) == (8, 8)


def test_a_verdict_whose_predecessor_never_comes_is_given_up():
    ready = Ready(parallel=2)
    ready.rounds.drafted(0.2, 1, (4, 5, 6, 7), 0.04)
    ready.rounds.drafted(0.21, 2, (8, 9, 10, 11), 0.04)
    assert ready.verified(0.3, 2, 7, (8, 9, 10, 11, 12)) == []
    assert ready.rounds.ended(0.4, 1) == [Draft(3, 3, (), 4)]
    assert ready.rounds.in_flight == 0
