"""The endpoint contract of what an assisted answer needs: progress as events; see `conformance`."""

from __future__ import annotations

import itertools

from disco.events import Parked, Progress, Started
from disco.request import Prefix
from tests.endpoints.conformance import (
    check,
    check_of_devices,
    collect,
    complete,
    fresh,
)
from tests.endpoints.conformance_writing import STORY

REPORTS = frozenset({"progress"})


def rises(told: list[Progress]) -> None:
    """The reports are in order, one at least for every 128 tokens, from the beginning to the end of a prefill."""
    done = [one.tokens_done for one in told]
    assert all(0 < later - earlier <= 128 for earlier, later in itertools.pairwise(done))
    assert len({one.tokens_total for one in told}) == 1
    assert done[-1] == told[-1].tokens_total
    assert told[0].prefill_tps == 0
    assert all(one.prefill_tps > 0 for one in told[1:])


@check
async def progress_is_reported_to_those_who_want_it(subject, endpoint):
    await complete(endpoint, fresh(2, max_tokens=2))
    told: list[Progress] = []
    async with endpoint.open(fresh(50, max_tokens=3), wants=REPORTS) as attempt:
        await collect(attempt, told)
        assert (len(told) > 2) == endpoint.capabilities().progress
        if told:
            rises(told)
            assert attempt.usage.prompt_tokens == told[-1].tokens_total
            assert attempt.usage.cached_tokens == told[0].tokens_done


@check_of_devices
async def a_follower_reports_each_text_that_it_reads(subject, endpoint):
    async with endpoint.open(fresh(20), wants=REPORTS) as attempt:
        assert attempt.follow()
        assert isinstance(await anext(attempt), Started)
        for n in (1, 5):
            told = []
            while isinstance(event := await anext(attempt), Progress):
                told.append(event)
            assert isinstance(event, Parked)
            rises(told)
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))
