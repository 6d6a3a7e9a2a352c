"""The machine of rounds: whatever happens on the way, the answer is the target's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disco.speculate.effects import Fail, Finish
from disco.speculate.rounds import Rounds
from disco.speculate.windows import Window, window_of
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


class Any_(Window):
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
        return Any_(chance)
    settings = {"parallel": parallel} if name == "optimal" else {}
    return window_of(name, **settings)


def a_drafter(target: Sequence[int], right: float, chance: random.Random) -> Callable[[Sequence[int]], int | None]:
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
