"""`disco demo --cascade`: what it prints of live answers, here of simulated tiers in virtual time."""

from __future__ import annotations

import re

import pytest
from cli.test_screen import made
from defects.asking import client, device
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures

from disco.cli.console import Screen
from disco.cli.demonstration.cascade import QuestionScene, Totals, ask_all
from disco.dispatch.presets import CascadeSection, DispatchSection, MigrationSection, PlaybackSection, Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.anyio

SENTENCES = "The sea is wide. The lamp is bright. The charts are old. The tide is low."
PRESET = Preset(
    name="cascade",
    dispatch=DispatchSection(policy="cascade"),
    cascade=CascadeSection(beta=0.5),
    migration=MigrationSection(enabled=False),
    playback=PlaybackSection(pace_tps=8.0),
)


def tier(name: str, **more) -> SimulatedEndpoint:
    script = SimulatedProfile(answer=SENTENCES, decode_tps=100.0, mean_logp=-1.0, **more)
    return SimulatedEndpoint(name, script, place="server")


async def shown(screen: Screen, *, streams: bool) -> Totals:
    totals = Totals()
    questions = tuple(f"What is number {n}?" for n in range(12))
    scene = QuestionScene("Numbers", "A story.", "numbers", "Count.", questions, streams=streams)
    below = device(answer=SENTENCES, decode_tps=100.0, mean_logp=-1.0)
    async with client(local=below, tiers=[tier("middle"), tier("server")], preset=PRESET) as asker:
        records = await ask_all(scene, screen, asker, "any", totals)
    assert len(records) == 12
    assert all(record.seamless for record in records)
    return totals


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "guard"])
async def test_every_answer_is_shown_with_what_its_record_says_of_each_tier(streams):
    screen, out = made()
    totals = await shown(screen, streams=streams)
    text = out.getvalue()
    assert "\x1b" not in text
    assert text.count("What is number") == 12
    assert 0 < totals.risen["device"] < totals.judged["device"] == 12
    assert text.count("handed up\n") == totals.risen["device"] + totals.risen["middle"]
    assert text.count(": kept\n") == sum(totals.judged.values()) - sum(totals.risen.values())
    assert re.search(
        r"^    device: score 0\.\d{3} after \d+ tokens, threshold 0\.\d{3} of \d+ earlier scores?: ",
        text,
        re.MULTILINE,
    )
    if streams:
        lines = re.findall(r"^ +\d+\.\d s \[(\w+)\] (.*)$", text, re.MULTILINE)
        assert {sentence for _, sentence in lines} == {s + "." for s in SENTENCES[:-1].split(". ")}
        assert len(lines) == 12 * 4
        assert {tier for tier, _ in lines} >= {"device", "middle"}
        assert "goes on behind character" in text
    else:
        assert text.count(SENTENCES) == 12
        assert "server: not judged: no tier is above it" in text


async def test_an_empty_answer_is_named():
    screen, out = made()
    nothing = {"answer": "", "answer_tokens": 0, "decode_tps": 100.0, "mean_logp": -1.0}
    above = SimulatedEndpoint("server", SimulatedProfile(**nothing), place="server")
    scene = QuestionScene("Numbers", "A story.", "numbers", "Count.", ("What is number 1?",))
    async with client(local=device(**nothing), tiers=[above], preset=PRESET) as asker:
        await ask_all(scene, screen, asker, "any", Totals())
    assert "(an empty answer)" in out.getvalue()
    assert "device: not judged (empty): stood, for want of a higher tier" in out.getvalue()


async def test_on_a_terminal_each_tier_has_its_colour():
    screen, out = made(terminal=True)
    await shown(screen, streams=False)
    colours = {
        tier: re.search(rf"(\x1b\[\d+m) *(?:\[{tier}\]|{tier}:)", out.getvalue())[1]
        for tier in ("device", "middle", "server")
    }
    assert len(set(colours.values())) == 3
