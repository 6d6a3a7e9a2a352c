"""`speculate="auto"` over many answers, in virtual time: where drafting does not pay, it settles; where it does, not.

The verify server takes 20 ms and 1 ms a row, the network 10 ms there and back, a drafter what each test says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import moved_clock
import pytest
from endpoints.speculative.made_pair import ANSWER, FACTS, REQUEST, Pair, SlowDrafter, SlowVerifier

from disco.events import Ended
from disco.speculate.messages import VerifierFacts

pytestmark = pytest.mark.anyio

ROUND_TRIP_S = 0.010
ROUND_S = ROUND_TRIP_S + 0.020 + 0.009  # of a window of 8
ALONE_S = ROUND_TRIP_S / 2 + 61 * 0.021
CURVE = tuple((rows, 0.020 + 0.001 * rows) for rows in (1, 2, 3, 5, 9, 17))
AS_MEASURED = VerifierFacts(FACTS.model, FACTS.vocabulary, 4096, 4, CURVE, fingerprint="f1")
RIGHT, WRONG = frozenset(), frozenset(range(0, 60, 2))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return moved_clock.virtual("asyncio")


@dataclass
class One:
    """What came of an answer."""

    took_s: float
    distributed: int
    drafted: int
    opened: bool


async def answers(pair: Pair, count: int, **server: Any) -> list[One]:
    found = []
    for _ in range(count):
        pair.verifier = SlowVerifier(**{"round_trip_s": ROUND_TRIP_S, **server})
        opens, began_at, text = pair.drafter.opens, anyio.current_time(), ""
        async with pair.endpoint().open(REQUEST) as attempt:
            async for event in attempt:
                text += "" if isinstance(event, Ended) else "".join(delta.text for delta in event)
        assert text == ANSWER
        report = attempt.speculation
        took_s = anyio.current_time() - began_at
        found.append(One(took_s, report.distributed_tokens, report.drafted, pair.drafter.opens > opens))
    return found


def a_pair(token_s: float, wrong: frozenset[int], **settings: Any) -> Pair:
    drafter = SlowDrafter(token_s=token_s, wrong=wrong, read_s=0.05)
    return Pair(
        drafter=drafter,
        facts=AS_MEASURED,
        **{"always": False, "window": "optimal", "parallel": 2, **settings},
    )


@pytest.mark.parametrize(("window", "parallel"), [("optimal", 1), ("optimal", 2), ("dynamic", 2), (4, 1)])
async def test_where_drafting_pays_it_goes_on(window, parallel):
    pair = a_pair(0.002, RIGHT, window=window, parallel=parallel)
    first, *others = await answers(pair, 6)
    assert first.took_s < ALONE_S
    for one in others:
        assert one.opened
        assert one.distributed > 40
        assert one.took_s < 0.6 * ALONE_S
    await pair.aclose()


SLOWER, FAR = (0.025, RIGHT, 0.010), (0.005, WRONG, 0.3)  # than the target; away
MIXED, USELESS = (0.015, WRONG, 0.010), (0.002, frozenset(range(60)), 0.010)


@pytest.mark.parametrize(
    ("token_s", "wrong", "round_trip_s", "window", "parallel"),
    [
        (*SLOWER, "optimal", 1),
        (*SLOWER, "dynamic", 2),
        (*FAR, "optimal", 2),
        (*FAR, 4, 1),
        (*MIXED, "optimal", 2),
        (*USELESS, "optimal", 2),
        (*USELESS, "dynamic", 1),
    ],
)
async def test_where_it_does_not_it_settles(token_s, wrong, round_trip_s, window, parallel):
    pair = a_pair(token_s, wrong, window=window, parallel=parallel)
    found = await answers(pair, 24, round_trip_s=round_trip_s)
    alone_s = ALONE_S + (round_trip_s - ROUND_TRIP_S) / 2
    round_s = ROUND_S + round_trip_s - ROUND_TRIP_S + 8 * token_s
    assert max(one.took_s for one in found) < alone_s + 3 * round_s, "the bound of `SpeculativeEndpoint`"
    assert sum(one.opened for one in found) <= 6
    assert sum(one.distributed for one in found[2:]) <= 30
    assert sum(one.took_s for one in found) < 1.02 * 24 * alone_s
    await pair.aclose()


async def test_a_device_that_becomes_fast_is_found_out_and_one_that_becomes_slow_is_given_up():
    pair = a_pair(0.030, RIGHT)
    await answers(pair, 12)
    pair.drafter.token_s = 0.002  # nothing else uses it any more, say
    found = await answers(pair, 12)
    begins = next(place for place, one in enumerate(found) if one.distributed > 20)
    assert begins <= 9
    assert all(one.distributed > 30 for one in found[begins + 1 :])
    pair.drafter.token_s = 0.030
    found = await answers(pair, 12)
    assert found[0].took_s < 1.5 * ALONE_S
    assert sum(one.distributed for one in found[3:]) == 0
    assert sum(one.opened for one in found[3:]) <= 5
    await pair.aclose()


async def test_a_text_that_becomes_harder_or_easier_to_guess_is_noticed():
    pair = a_pair(0.004, RIGHT)
    assert (await answers(pair, 5))[-1].distributed > 40
    pair.drafter.wrong = frozenset(range(60))
    hard = await answers(pair, 16)
    assert sum(one.distributed for one in hard[6:]) <= 30
    assert sum(one.took_s for one in hard) < 1.1 * 16 * ALONE_S
    pair.drafter.wrong = RIGHT
    assert (await answers(pair, 12))[-1].distributed > 40
    await pair.aclose()


async def test_always_is_always():
    pair = a_pair(0.030, WRONG, always=True)
    assert all(one.opened and one.distributed > 30 for one in await answers(pair, 3))
    await pair.aclose()


@pytest.mark.parametrize("first", range(10))
async def test_one_wrong_draft_in_ten_does_not_put_it_off(first):
    """Wherever the first wrong one is: an estimate that begins too low would never find out what drafting gives."""
    pair = a_pair(0.013, frozenset(range(first, 60, 10)))
    found = await answers(pair, 6)
    assert sum(one.distributed > 40 for one in found) >= 4
    await pair.aclose()
