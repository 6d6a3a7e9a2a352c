"""Who watches a pair sees each draft before its verdict, and all that the server chose."""

from __future__ import annotations

from typing import Any

import moved_clock
import pytest
from endpoints.speculative.made_pair import TARGET, Pair, SlowDrafter
from endpoints.speculative.test_attempt import answer_of

from disco.speculate.effects import Effect, Finish, Send, Write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return moved_clock.virtual(request.param)


@pytest.mark.parametrize("parallel", [1, 2])
async def test_what_is_seen_is_what_was_sent_and_what_was_chosen(parallel):
    pair = Pair(drafter=SlowDrafter(wrong=frozenset({20, 33})), parallel=parallel)
    seen: list[Effect] = []
    pair.pairing.watch = seen.append
    text, *_ = await answer_of(pair)
    sends, writes = ([one for one in seen if isinstance(one, kind)] for kind in (Send, Write))
    assert [(one.at, one.draft) for one in sends if not one.alone] == [
        (asked.at, asked.draft) for asked in pair.verifier.asked if not asked.alone
    ]
    assert tuple(token for one in writes for token in one.ids) == TARGET
    assert "".join(delta["text"] for one in writes for delta in one.deltas) == text
    assert {one.mode for one in writes} == {"alone", "distributed"}
    assert isinstance(seen[-1], Finish)
