"""The measurements of `disco speculate check`, on a drafter and a verify server in memory and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import moved_clock
import pytest
from cli.test_screen import made
from endpoints.speculative.made_pair import FACTS, PROMPT, TARGET, SlowDrafter, SlowVerifier

from disco.cli.speculation import check
from disco.cli.speculation.pair_measurement import Drafts, PairMeasurement, Proof
from disco.endpoints.drafter import NgramDrafter
from disco.speculate.messages import Opening

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return moved_clock.virtual("asyncio")


class Measured(PairMeasurement):
    """Of a server that writes `target`, and `later` in place of it once it has written an answer."""

    def __init__(self, drafter: Any, later: tuple[int, ...] = TARGET) -> None:
        super().__init__(None, "target", drafter, 60)  # type: ignore[arg-type]
        self.targets = [TARGET, TARGET]
        self.later = later
        self.servers: list[SlowVerifier] = []

    @asynccontextmanager
    async def _verifier(self, opening: Opening) -> AsyncIterator[Any]:
        self.servers.append(SlowVerifier(self.targets.pop() if self.targets else self.later))
        yield self.servers[-1]


@pytest.mark.parametrize("window", [1, 4, 12])
async def test_a_server_whose_answer_does_not_depend_on_drafts_is_proved(window):
    measured, proof = Measured(None), Proof()
    written = await measured.alone("Tell me.", 0.8)
    assert (written.ids, written.prompt_ids, len(written.compute_s)) == (
        TARGET,
        PROMPT,
        60,
    )  # the end is computed, too
    await measured.prove(written, window, proof)
    assert (proof.answers, proof.differing) == (1, 0)
    asked = measured.servers[-1].asked
    assert proof.windows == len(asked) - 1  # the first reads the prompt
    assert max(len(one.draft) for one in asked) == window
    wrong = [one for one in asked if one.draft != TARGET[one.at : one.at + len(one.draft)]]
    assert len(wrong) >= 60 // 7 - 1  # some drafted tokens are wrong, so corrections are proved
    assert measured.servers[-1].answer.is_finished  # an answer that is left keeps its slot


@pytest.mark.parametrize("place", [0, 17, 59])
@pytest.mark.parametrize("ends", [False, True])
async def test_a_server_whose_answer_depends_on_drafts_is_found_out(place, ends):
    other = (*TARGET[:place], *([] if ends else [TARGET[place] + 1]), *([] if ends else TARGET[place + 1 :]))
    measured, proof = Measured(None, later=other), Proof()
    written = await measured.alone("Tell me.", 0.8)
    measured.targets.clear()
    await measured.prove(written, 4, proof)
    assert (proof.answers, proof.differing) == (1, 1)


async def test_drafted_tokens_are_compared_up_to_the_first_wrong_one():
    drafter = SlowDrafter(wrong=frozenset({3, 20, 21}))
    measured, drafts = Measured(drafter), Drafts()
    await measured.draft(await measured.alone("Tell me.", 0.8), drafts)
    assert drafts.compared - drafts.accepted == 3
    assert drafts.accepted >= 40  # the others were drafted, or came with a verdict on others
    assert drafts.seconds == pytest.approx(drafts.tokens * 0.005)
    assert drafter.open_ones == 0


async def test_a_position_without_a_guess_counts_as_wrong():
    measured, drafts = Measured(NgramDrafter()), Drafts()
    written = await measured.alone("Tell me.", 0.8)
    await measured.draft(written, drafts)
    assert 0 < drafts.compared <= 60
    assert drafts.accepted < drafts.compared


async def test_a_server_that_is_not_proved_is_not_measured_on():
    screen, out = made()
    measured = Measured(SlowDrafter(), later=tuple(token + 1 for token in TARGET))
    assert await check._measure(screen, measured, FACTS, measured._drafter, ["Tell me."]) is None
    assert "rounds: 0 of 10 answers" in out.getvalue()
    assert "does not verify reliably" in out.getvalue()
