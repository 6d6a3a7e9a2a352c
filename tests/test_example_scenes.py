"""What the examples of cascade, assist and drafting print, here of simulated endpoints in virtual time."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from defects.asking import client, device
from example_files import example
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures

from disco.cost import Charge, Ledger, Phase
from disco.dispatch import load_preset
from disco.dispatch.assist import Undivided
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.events import SpeculationReport
from disco.profiles import DeviceProfile
from disco.session.switching.assist import AssistOutcome

cascade, assist, speculate = example("cascade"), example("assist"), example("speculate")

SENTENCES = "The sea is wide. The lamp is bright. The charts are old. The tide is low."
CASCADE = load_preset({"dispatch": {"policy": "cascade"}, "cascade": {"beta": 0.5}})
ASSIST = load_preset({"dispatch": {"policy": "assist"}, "playback": {"pace_tps": 10.0}})
ANSWER = "A word after another one and so on without a stop " * 20
PROMPT = "wave " * 1_000


def tier(name: str, **more) -> SimulatedEndpoint:
    script = {"answer": SENTENCES, "decode_tps": 100.0, "mean_logp": -1.0, **more}
    return SimulatedEndpoint(name, SimulatedProfile(**script), place="server")


@pytest.mark.anyio
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "guard"])
async def test_each_answer_of_the_cascade_stands_with_its_writers_and_the_verdicts(streams, capsys):
    questions = tuple(f"What is number {n}?" for n in range(12))
    task = cascade.Task("Numbers.", "numbers", "Count.", questions, streams=streams)
    below = device(answer=SENTENCES, decode_tps=100.0, mean_logp=-1.0)
    async with client(local=below, tiers=[tier("middle"), tier("server")], preset=CASCADE) as asker:
        routes = [await cascade.ask(asker, task, question) for question in questions]
    assert all(route.seamless for route in routes)
    cascade.summary(routes)
    printed, _, table = capsys.readouterr().out.partition("\ntier ")
    rows = {
        name: counts for name, *counts in re.findall(r"^(\w+) +(\d+) +(\d+) +(\d+)$", table, re.MULTILINE)
    }
    assert list(rows) == ["device", "middle", "server"]
    answers, judged, risen = zip(*(map(int, row) for row in rows.values()), strict=True)
    assert 0 < risen[0] < judged[0] == answers[0] == 12
    assert answers[1:] == risen[:2]
    assert printed.count(": handed_up\n") == sum(risen)
    assert printed.count(": kept\n") == sum(judged) - sum(risen)
    score = r"^    device: score 0\.\d{3}, threshold (none yet|0\.\d{3}): \w+$"
    assert len(re.findall(score, printed, re.MULTILINE)) == 12
    assert {name for name in rows if f"[{name}] " in printed} >= {"device", "middle"}
    if streams:
        assert "middle goes on behind character" in printed
        assert re.sub(r"\[\w+\] ?", "", printed).count("The lamp is bright.") == 12
    else:
        assert printed.count(SENTENCES) == 12


@pytest.mark.anyio
async def test_an_empty_answer_of_the_cascade_is_named(capsys):
    nothing = {"answer": "", "answer_tokens": 0}
    task = cascade.Task("Numbers.", "numbers", "Count.", ())
    async with client(
        local=device(mean_logp=-1.0, **nothing), tiers=[tier("server", **nothing)], preset=CASCADE
    ) as asker:
        await cascade.ask(asker, task, "What is number 1?")
    assert "(an empty answer)\n    device: not judged (empty): stood" in capsys.readouterr().out


async def divided(*, read_tps: float, prompt: str):
    local = device(answer=ANSWER, prefill_tps=read_tps, decode_tps=30.0)
    known = DeviceProfile(name="sim", source="test", prefill_tps=read_tps, decode_tps=30.0, c_s=0.01)
    server = tier("server", answer=ANSWER, ttft_s=0.6, decode_tps=50.0)
    async with client(local=local, device_profile=known, tiers=[server], preset=ASSIST) as asker:
        route = await assist.ask(asker, prompt, max_tokens=150)
    assert (route.seamless, route.finish_reason) == (True, "length")
    assist.explain(route)
    assist.compare({"assist": route})
    return route


@pytest.mark.anyio
async def test_a_divided_answer_is_shown_with_its_course_its_seam_and_its_figures(capsys):
    route = await divided(read_tps=250.0, prompt=PROMPT)
    printed, limit = capsys.readouterr().out, route.assist.tokens
    lines = re.findall(
        rf"^  device has read ([\d,]+) of ([\d,]+) tokens; server has written (\d+) of at most {limit}; (\d+) in hand; "
        r"shown (?:at \d+\.\d tokens/s|as it comes)$",
        printed,
        re.MULTILINE,
    )
    assert len(lines) >= 3
    read, written = ([int(line[n].replace(",", "")) for line in lines] for n in (0, 2))
    assert (read, written) == (sorted(read), sorted(written))
    assert read[0] < read[-1]
    assert max(written) <= limit
    assert any(int(line[3]) > 0 for line in lines)
    (move,) = route.migrations
    before, after = re.search(r"^\[server\] (.*)\n\[device\] (.*)$", printed, re.MULTILINE).groups()
    assert len(before) == move.cut_char
    assert ANSWER.startswith(before + after)
    assert f"-> handed_over: the limit of server was {limit} tokens" in printed
    assert f"device went on behind character {move.cut_char}; late tokens: 0" in printed
    assert f"{route.bill_usd:.7f} USD" in printed.splitlines()[-1]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("read_tps", "prompt", "why"),
    [(50_000.0, PROMPT, "device_first"), (40.0, PROMPT, "not_cheaper"), (8.0, "wave " * 100, "reading_pace")],
)
async def test_where_the_device_is_too_fast_or_too_slow_the_reason_is_said(read_tps, prompt, why, capsys):
    await divided(read_tps=read_tps, prompt=prompt)
    printed = capsys.readouterr().out
    assert f"-> not divided: {why} (docs/concepts/assist.md has the reasons)" in printed
    assert "in hand" not in printed


def test_every_reason_and_every_outcome_of_an_assist_has_a_line_in_the_docs():
    page = (Path(__file__).parents[1] / "docs" / "concepts" / "assist.md").read_text(encoding="utf-8")
    names = {*get_args(Undivided), *get_args(AssistOutcome), "undivided"} - {"running"}
    assert [name for name in sorted(names) if f"| `{name}` |" not in page] == []


REPORT = SpeculationReport(rounds=4, drafted=9, judged=8, accepted=7, windows=((2, 1), (4, 2)))
CHARGES = (
    Charge(0, "server", Phase.ANSWER, 46, 0, 6, 4e-6, 0.0, 4e-6),
    Charge(0, "server", Phase.ANSWER, 0, 11, 0, 2e-6, 0.0, 2e-6),
    Charge(0, "server", Phase.DRAFT, 0, 1, 0, 1e-6, 0.0, 1e-6),
    Charge(0, "device", Phase.DRAFT, 47, 9, 0, 0.0, 2.5, 5e-7),
)


def answer(text, seconds, report, *charges, finish_reason="length"):
    ledger = Ledger({})
    for charge in charges:
        ledger.enter(charge)
    route = SimpleNamespace(
        attempts=[SimpleNamespace(speculation=report)],
        ledger=ledger,
        answer_tokens=11,
        bill_usd=sum(charge.bill_usd for charge in charges),
        finish_reason=finish_reason,
    )
    return speculate.Answer(text, route, seconds)


def test_the_figures_of_a_drafted_answer_stand_beside_those_without_drafts(capsys):
    alone = answer("The text.", 0.30, None, *CHARGES[:2])
    assert speculate.compare(answer("The text.", 0.20, REPORT, *CHARGES), alone) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^drafted +20\.0 +47\+9 +40\+12 +0\.0000070 USD$", printed, re.MULTILINE)
    assert re.search(r"^alone +30\.0 +- +40\+11 +0\.0000060 USD$", printed, re.MULTILINE)
    assert "4 rounds; 7 of 8 drafted tokens right" in printed
    assert "came 1.50 times as fast as without." in printed
    assert "Both texts are the same, byte for byte (9 bytes)." in printed


@pytest.mark.parametrize("other", ["The téxt.", "The text", "The text. More"])
def test_texts_that_differ_are_never_called_the_same(other, capsys):
    assert speculate.compare(answer("The text.", 0.4, REPORT), answer(other, 0.2, None)) == 1
    printed = capsys.readouterr().out
    assert "The texts are not the same." in printed
    assert "0.50 times as fast as without: drafting does not pay on this machine." in printed


def test_an_answer_without_an_end_is_no_proof(capsys):
    drafted = answer("The text.", 0.4, REPORT, finish_reason=None)
    assert speculate.compare(drafted, answer("The text.", 0.2, None)) == 1
    assert "byte for byte" not in capsys.readouterr().out
