"""Route records of every kind of answer, made by sessions in virtual time; and lines that are no records."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import strategies as st
from recordings import RATES, SERVER, device, played
from session.plays import play, record_of
from session.test_any_session import crowds
from session.test_assist import divided
from session.test_rise import HIGH, LOW, UP, Doubting, ladder, ladders

from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.plan import CoolDown, Plan, Start
from disco.session.records.route_record import RouteRecord

AT_S = 1_764_115_200.0

DIES = replace(SERVER, fault=Fault(9, kind=FailureKind.CONNECTION))
REFUSES = replace(SERVER, fault=Fault(0, kind=FailureKind.RATE_LIMIT))


def kinds() -> dict[str, RouteRecord]:
    """A record of each kind, by its name, asked for one second after the other."""
    here = device(0.2)
    both = {"device": here, "server": SERVER}
    made = {
        "the server alone": played(both, Start("server"), fallbacks=("device",)),
        "the device alone, and no server": played({"device": here}, Start("device")),
        "a race": played({"device": device(0.5), "server": SERVER}, Start("device"), Start("server")),
        "a server that never answered": played(both, Start("device"), Start("server")),
        "failed over in mid-stream": played(
            {"device": here, "server": DIES}, Start("server"), fallbacks=("device",)
        ),
        "failed over before a word": played(
            {"device": here, "server": REFUSES}, Start("server"), fallbacks=("device",)
        ),
        "failed in mid-stream": played({"server": DIES}, Start("server")),
        "failed without content": played({"server": REFUSES}, Start("server")),
        "cancelled in mid-stream": played(both, Start("server"), cancel_at=0.5),
        "cancelled before a word": played(both, Start("server"), cancel_at=0.1),
        "moved": played(
            both,
            Start("server"),
            move=True,
            pace_tps=5.0,
            rates={**RATES, "server": replace(RATES["server"], cost_out=1e-3)},
        ),
        "an empty answer": played({"server": replace(SERVER, answer_tokens=0)}, Start("server")),
        "an assist": record_of(divided().session),
        "a cascade that rose": record_of(
            ladder({"device": LOW, "server": HIGH}, {"device": Doubting(UP)}).session
        ),
        "a device that was spared": record_of(
            play(
                both,
                Plan((Start("server"),), ("device",), deprioritised=(CoolDown("device", "low"),)),
            ).session
        ),
    }
    return {name: replace(record, created_s=AT_S + n) for n, (name, record) in enumerate(made.items())}


def lines_of_all_kinds() -> list[str]:
    """The lines of a recording that holds every kind, and what a killed program and a stranger leave in it."""
    lines = [record.to_json(timelines=True) for record in kinds().values()]
    return [*lines[:4], lines[4][:200], "", "[]", '{"hello": "world"}', "nothing of the kind", *lines[4:]]


@st.composite
def any_records(draw: st.DrawFn) -> RouteRecord:
    """The record of a session in which anything may have happened."""
    run = play(**draw(crowds())) if draw(st.booleans()) else ladder(**draw(ladders()))
    return record_of(run.session, created_s=AT_S + draw(st.floats(0.0, 1e5)))


NO_RECORDS = st.sampled_from(
    [
        b"",
        b"[]",
        b"{}",
        b"7",
        b"null",
        b'{"schema": 99, "attempts": []}',
        b'{"attempts": 3}',
        b'"\xff"',
        b"{" * 5_000,
    ]
)


@st.composite
def any_lines(draw: st.DrawFn) -> list[bytes]:
    """Lines of a recording: records of any kind, some cut in half, some with a field changed, and other lines."""
    lines = []
    for record in draw(st.lists(any_records(), min_size=1, max_size=5)):
        row = record.to_dict(timelines=draw(st.booleans()))
        damage = draw(st.sampled_from(["none", "none", "cut", "field"]))
        if damage == "field":
            row[draw(st.sampled_from(sorted(row)))] = draw(
                st.sampled_from([None, -1, math.nan, math.inf, "x", [], {}, [None], [{}], 10**400])
            )
        text = json.dumps(row).encode()
        lines.append(text[: draw(st.integers(0, len(text) - 1))] if damage == "cut" else text)
    return draw(st.permutations([*lines, *draw(st.lists(NO_RECORDS, max_size=3))]))
