"""Every way of leaving an answer, at every moment, on both event loops: nothing of it runs on.

All of it in virtual time; each moment and each way at least once with a real model and real connections.
"""

from __future__ import annotations

import itertools

import moved_clock
import pytest
from faults.in_memory import no_thread  # noqa: F401 - a fixture
from leaving import (
    BROKEN_OFF,
    LEFT,
    VIRTUAL_READING,
    VIRTUAL_WAITING,
    WAITING,
    break_off,
    leave,
    scene,
    tasks,
    virtual_scene,
)

pytestmark = pytest.mark.anyio

LOOPS = ("asyncio", "trio")
ALL = (*LEFT, *BROKEN_OFF)


@pytest.fixture
def anyio_backend(request):
    loop, kind = request.param
    return getattr(moved_clock, kind)(loop)


def at(cells, kind):
    """Parametrises a test with (moment, way, loop)."""
    # Trio's tasks are cancelled by their scope; a complete answer may be handed over before the time is up.
    cannot = [("task", "trio")], [("last token came", "deadline"), ("last token came", "fail_after")]
    rows = [
        pytest.param(moment, way, (loop, kind), id=f"{moment}-{way}-{loop}")
        for moment, way, loop in cells
        if (way, loop) not in cannot[0] and (moment, way) not in cannot[1]
    ]
    return pytest.mark.parametrize(("moment", "way", "anyio_backend"), rows, indirect=["anyio_backend"])


# Each moment and each way.
REAL = [
    ("model loads", "scope", "asyncio"),
    ("prefill", "client", "asyncio"),
    ("prefill", "fail_after", "trio"),
    ("before headers", "deadline", "asyncio"),
    ("before headers", "scope", "trio"),
    ("before the first token", "task", "asyncio"),
    ("server writes", "async with", "asyncio"),
    ("server writes", "fail_after", "trio"),
    ("device writes", "drop", "asyncio"),
    ("device writes", "deadline", "trio"),
    ("move", "task", "asyncio"),
    ("move", "client", "trio"),
    ("last token came", "scope", "asyncio"),
    ("last token came", "close", "trio"),
]


@at(
    [*itertools.product(VIRTUAL_WAITING, BROKEN_OFF, LOOPS), *itertools.product(VIRTUAL_READING, ALL, LOOPS)],
    "virtual",
)
async def test_in_virtual_time(moment, way):
    before = tasks()
    if moment in VIRTUAL_WAITING:
        await break_off(virtual_scene(moment), way)
        await break_off(virtual_scene(moment), way, stream=False)
    else:
        await leave(virtual_scene(moment), way)
    assert tasks() == before


@pytest.mark.real
@at(REAL, "backend")
async def test_for_real(thread_model, moment, way):
    before = tasks()
    async with scene(moment, thread_model) as found:
        if moment in WAITING:
            await break_off(found, way, stream=way in ("scope", "deadline"))
        else:
            await leave(found, way)
        assert tasks() == before
