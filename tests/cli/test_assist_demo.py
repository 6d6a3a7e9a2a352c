"""`disco demo --assist`: what it shows of live answers, here of simulated endpoints in virtual time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from cli.test_screen import made
from defects.asking import client, device
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures

from disco.cli.console import Screen
from disco.cli.demonstration.assist import compare, show_answer
from disco.cli.demonstration.assist_picture import OUTCOMES, SEAM, UNDIVIDED, explain, gap_at
from disco.cli.demonstration.comparison import spent
from disco.cli.demonstration.scene import MAINS
from disco.dispatch.assist import Undivided
from disco.dispatch.presets import DispatchSection, PlaybackSection, Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import DeviceProfile
from disco.session.records.route_record import RouteRecord
from disco.session.switching.assist import AssistOutcome

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "assist.md"
PRESET = Preset(
    name="assist", dispatch=DispatchSection(policy="assist"), playback=PlaybackSection(pace_tps=10.0)
)
ANSWER = "A word after another one and so on without a stop " * 20
PROMPT = "wave " * 1_000


async def shown(screen: Screen, *, read_tps: float = 250.0, prompt: str = PROMPT) -> RouteRecord:
    local = device(answer=ANSWER, prefill_tps=read_tps, decode_tps=30.0)
    known = DeviceProfile(name="sim", source="test", prefill_tps=read_tps, decode_tps=30.0, c_s=0.01)
    server = SimulatedEndpoint(
        "server", SimulatedProfile(answer=ANSWER, ttft_s=0.6, decode_tps=50.0), place="server"
    )
    async with client(local=local, device_profile=known, tiers=[server], preset=PRESET) as asker:
        record = await show_answer(screen, asker, "any", prompt, 150)
    assert record.seamless
    assert record.finish_reason == "length"
    return record


async def test_a_divided_answer_is_shown_with_its_seam_and_with_the_figures_of_its_record():
    screen, out = made()
    record = await shown(screen)
    assert record.assist is not None
    assert record.assist.outcome == "handed_over"
    limit = record.assist.tokens
    explain(screen, record)
    compare(screen, {"assist": record})
    text = out.getvalue()
    assert "\x1b" not in text
    lines = re.findall(
        rf"^ +(\d+\.\d) s  device has read ([\d,]+) of ([\d,]+) tokens; server has written (\d+) of at most {limit}; "
        r"(\d+) tokens in hand; shown (?:at \d+\.\d tokens/s|as it comes)$",
        text,
        re.MULTILINE,
    )
    assert len(lines) >= 3
    read, written = ([int(line[n].replace(",", "")) for line in lines] for n in (1, 3))
    assert read == sorted(read)
    assert read[0] < read[-1]
    assert written == sorted(written)
    assert max(written) <= limit
    assert any(int(line[4]) > 0 for line in lines)
    (move,) = record.migrations
    answer = next(line for line in text.splitlines() if line.startswith("[server] "))
    before, after = answer.removeprefix("[server] ").split(f" {SEAM} [device] ")
    assert len(before) == move.cut_char
    assert (before + " " + after).split() == ANSWER.split()[: len(answer.split()) - 3]
    assert f"limit of server: {limit} tokens; charged for {limit}" in text
    assert f"went on behind character {move.cut_char}" in text
    gap_s = gap_at(record, move)
    assert gap_s is not None
    assert 0 < gap_s <= 0.12  # the slowest pace, and a frame
    assert f"longest gap for the reader there {gap_s:.2f} s; late tokens: 0" in text
    took = spent(record, MAINS)
    assert f"{took.ct:.4f} ct" in text
    assert f"{took.joules:.1f} J" in text


async def test_on_a_terminal_the_picture_changes_in_place_and_the_text_stays():
    screen, out = made(terminal=True)
    await shown(screen)
    text = out.getvalue()
    assert text.count("tokens in hand") > 20
    assert "█" in text
    assert "tokens in hand" not in text[text.rindex("\x1b[2K") :]  # erased before the last picture
    assert SEAM in text[text.rindex("\x1b[2K") :]


@pytest.mark.parametrize(
    ("read_tps", "prompt", "why"),
    [(50_000.0, PROMPT, "device_first"), (40.0, PROMPT, "not_cheaper"), (8.0, "wave " * 100, "reading_pace")],
)
async def test_where_the_device_is_too_fast_or_too_slow_that_is_said(read_tps, prompt, why):
    screen, out = made()
    record = await shown(screen, read_tps=read_tps, prompt=prompt)
    explain(screen, record)
    assert record.assist is not None
    assert record.assist.why == why
    assert f"The answer was not divided: {UNDIVIDED[why]}." in out.getvalue()
    assert "tokens in hand" not in out.getvalue()


def test_every_reason_and_every_outcome_has_words_here_and_a_line_in_the_docs():
    assert set(UNDIVIDED) == set(get_args(Undivided))
    assert set(OUTCOMES) == {*get_args(AssistOutcome), "undivided"} - {"running"}
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in (*UNDIVIDED, *OUTCOMES) if f"| `{name}` |" not in page] == []
