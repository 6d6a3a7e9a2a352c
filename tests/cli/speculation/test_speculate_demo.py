"""`disco demo --speculate`: what it shows of an answer, here of a pair in memory and in virtual time."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import moved_clock
import pytest
from cli.test_screen import made
from endpoints.speculative.made_pair import ANSWER, TARGET, Pair, SlowDrafter
from endpoints.speculative.test_attempt import answer_of
from speculate.made_verifier import text_of

from disco.cli.demonstration.speculate import Answer, compare
from disco.cli.demonstration.speculate_picture import DRAFTED, SERVERS, DraftPicture
from disco.cost import Charge, Phase
from disco.events import SpeculationReport
from disco.speculate.effects import Effect, Send, Write

WRONG = frozenset({20, 33, 34})


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return moved_clock.virtual(request.param)


def spell(ids: Any) -> str:
    return "".join(f"<{token}>" for token in ids)


@pytest.mark.anyio
@pytest.mark.parametrize("parallel", [1, 2])
async def test_the_settled_text_is_the_answer_and_what_was_refuted_is_struck(parallel):
    pair = Pair(drafter=SlowDrafter(wrong=WRONG), parallel=parallel)
    picture, struck = DraftPicture(spell), []

    def see(effect: Effect) -> None:
        picture.see(effect)
        assert ANSWER.startswith(picture.text)
        if isinstance(effect, Send) and effect.draft:
            assert picture.window == len(effect.draft)
            assert spell(effect.draft) in "".join(text for text, _ in picture.lines(1.0)[2])
        if isinstance(effect, Write) and picture.rejected:
            struck.append(picture.rejected)
            assert (picture.rejected, "red strike") in picture.lines(1.0)[2]

    pair.pairing.watch = see
    *_, report, _ = await answer_of(pair)
    assert picture.text == ANSWER
    assert (picture.rounds, picture.accepted) == (report.rounds, report.accepted)
    assert picture.judged - picture.accepted == len(struck)
    first_wrong = [int(re.match(r"<(\d+)>", text)[1]) for text in struck]
    assert set(first_wrong) <= {TARGET[at] + 1000 for at in WRONG}
    assert len(first_wrong) >= 2
    guessed = [text for text, right in picture.settled if right]
    assert sum(map(len, guessed)) > len(ANSWER) / 2
    marked = picture.marked()
    assert marked.replace("⟨", "").replace("⟩", "") == ANSWER
    assert f"⟨{text_of(TARGET[:1])}" in marked  # nothing could be drafted before it
    styles = {style for text, style in picture.lines(1.0)[2] if text}
    assert styles == {DRAFTED, SERVERS}
    assert (
        f"{report.rounds} rounds; {report.accepted} of {picture.judged} drafted tokens right"
        in picture.status(1)
    )


def test_text_that_was_held_back_is_drafted_only_if_all_its_tokens_were():
    picture = DraftPicture(spell)
    picture.see(Send(0, 0, (1, 2, 9)))
    picture.see(Write(0, (1, 2), ({"text": "ab", "tokens": 2},), "distributed"))
    picture.see(Write(2, (3, 4), ({"text": "cd", "tokens": 2}, {"text": "!", "tokens": 0}), "distributed"))
    assert picture.settled == [("ab", True), ("cd!", False)]
    assert picture.rejected == "<9>"
    assert picture.lines(0.0)[0][0][0].endswith("window 3; 1 rounds; 2 of 3 drafted tokens right")
    picture.see(Send(1, 4, (), 256))
    assert "the server alone" in picture.status(0.0)


def answer(text: str, seconds: float, report: SpeculationReport | None, *charges: Charge) -> Answer:
    probe = Charge(None, "server", Phase.PROBE, 190, 16, 0, 0.1)
    record = SimpleNamespace(
        attempts=[SimpleNamespace(speculation=report)],
        ledger=SimpleNamespace(charges=(*charges, probe)),
        finish_reason="length",
    )
    return Answer(text, record, 11, seconds)  # type: ignore[arg-type]


REPORT = SpeculationReport(rounds=4, drafted=9, judged=8, accepted=7, windows=((2, 1), (4, 2)))


def test_the_figures_are_those_of_the_record_without_probes():
    charges = (
        Charge(0, "server", Phase.ANSWER, 46, 0, 6, 4e-6),
        Charge(0, "server", Phase.ANSWER, 0, 11, 0, 2e-6),
        Charge(0, "server", Phase.DRAFT, 0, 1, 0, 1e-6),
        Charge(0, "device", Phase.DRAFT, 47, 9, 0, 5e-7),
    )
    screen, out = made()
    alone = answer("The text.", 0.30, None, *charges[:2])
    assert compare(screen, answer("The text.", 0.20, REPORT, *charges), alone) == 0
    lines = [line.split("│")[1:-1] for line in out.getvalue().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["drafted", "20.0", "4", "7 of 8", "47+9", "6.2", "40+12", "0.0007"],
        ["alone", "30.0", "–", "–", "–", "–", "40+11", "0.0006"],
    ]
    assert len(next(line for line in out.getvalue().splitlines() if line.startswith("│"))) <= 80
    said = " ".join(out.getvalue().split())
    assert "One question, 11 tokens" in said
    assert "Rounds by drafted tokens: 2: 1, 4: 2." in said
    assert "came 1.50 times as fast as without." in said
    assert "Both texts are the same, byte for byte (9 bytes)." in said


@pytest.mark.parametrize(("other", "at"), [("The téxt.", 5), ("The text", 8), ("The text. More", 9)])
def test_texts_that_differ_are_never_called_the_same(other, at):
    screen, out = made()
    assert compare(screen, answer("The text.", 0.4, REPORT), answer(other, 0.2, None)) == 1
    said = " ".join(out.getvalue().split())
    assert "the same, byte" not in said
    assert f"they differ from character {at} on" in said
    assert "0.50 times as fast as without: drafting does not pay on this machine." in said


def test_an_answer_without_an_end_is_no_proof():
    screen, out = made()
    drafted = answer("The text.", 0.4, REPORT)
    drafted.record.finish_reason = None  # type: ignore[misc]
    assert compare(screen, drafted, answer("The text.", 0.2, None)) == 1
    assert "byte for byte" not in out.getvalue()
