"""The demonstration's own table: what an answer took, and what is said of it beside one endpoint alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from disco.cli.demonstration.comparison import Row, beside, cells
from disco.cli.demonstration.demo import SCENES
from disco.cost import Charge, Ledger, Phase
from disco.record import read_record

RECORDS = Path(__file__).parents[3] / "docs" / "pictures" / "records"
MOVED = read_record((RECORDS / "move.jsonl").read_bytes())


def row(how, *, first_s=0.4, late=0, usd=0.0, joules=0.0, **more):
    pace = replace(MOVED.pace, ttft_released_s=first_s, late_tokens=late)
    ledger = Ledger({})
    for endpoint, bill_usd, energy_j in (("server", usd, 0.0), ("device", 0.0, joules)):
        ledger.enter(Charge(0, endpoint, Phase.ANSWER, 10, 10, 0, bill_usd, energy_j, bill_usd))
    return Row(1, how, replace(MOVED, pace=pace, ledger=ledger), **more)


@pytest.mark.parametrize(
    ("mine", "other", "said"),
    [
        (
            row("disco", first_s=0.1, usd=0.000015, joules=2.3),
            row("server", first_s=0.94, usd=0.00011),
            "Beside the server alone: got the first word 0.84 s sooner and 0.000095 $ less; paid 2.3 J more.",
        ),
        (
            row("disco", first_s=0.1, usd=0.000015, joules=2.3),
            row("device", first_s=0.12, joules=2.3),
            "Beside the device alone: got nothing more this time; paid 0.000015 $ more.",
        ),
        (
            row("disco", usd=0.00003, joules=2.2),
            row("server", usd=0.00003, became="was refused (401)"),
            "Beside the server alone: got a whole answer, where the server alone was refused (401); paid 2.2 J more.",
        ),
        (
            row("disco", first_s=1.0, late=3),
            row("device", first_s=0.4, late=2, joules=4.0),
            "Beside the device alone: got 4.0 J less; paid the first word 0.60 s later and 1 token more late.",
        ),
        (
            row("disco"),
            row("server"),
            "Beside the server alone: got nothing more this time; paid nothing more.",
        ),
    ],
)
def test_the_line_says_what_was_got_and_what_was_paid_for_it(mine, other, said):
    assert beside(mine, other) == said


def test_the_table_has_what_the_line_is_made_of():
    shown = cells(row("disco", first_s=0.37, usd=0.0000427, joules=3.21))
    assert shown[:5] == (1, "disco", "complete", "0.37 s", 0)
    assert shown[-2:] == ("0.000043 $", "3.2 J")


def test_each_scene_is_compared_with_the_server_alone():
    """Also where it fails: beside a healthy server, the table would leave out what disco is for."""
    assert all("server" in scene.beside for scene in SCENES)
    assert any(scene.kills for scene in SCENES)
    assert any(scene.refused for scene in SCENES)
