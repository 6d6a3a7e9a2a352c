"""Every way of leaving an answer, at every moment, on both event loops: nothing of it runs on.

All of it in virtual time; each moment and each way at least once on each loop with a real model and real connections.
"""

from __future__ import annotations

import itertools

import moved_clock
import pytest
from faults.in_memory import no_thread  # noqa: F401 - a fixture
from leaving import (
    BROKEN_OFF,
    LEFT,
    READING,
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
ALL = [*LEFT, *BROKEN_OFF]


def can(moment: str, way: str, loop: str) -> bool:
    """Trio's tasks are cancelled by their scope; a complete answer may be handed over before the time is up."""
    return (way, loop) != ("task", "trio") and not (
        moment == "last token came" and way in ("deadline", "fail_after")
    )


@pytest.fixture
def anyio_backend(request):
    loop, kind = request.param
    return getattr(moved_clock, kind)(loop)


def at(cells, kind):
    """Parametrises a test with (moment, way, loop)."""
    return pytest.mark.parametrize(
        ("moment", "way", "anyio_backend"),
        [
            pytest.param(moment, way, (loop, kind), id=f"{moment}-{way}-{loop}")
            for moment, way, loop in cells
            if can(moment, way, loop)
        ],
        indirect=["anyio_backend"],
    )


def some(moments, ways):
    """Each moment in two ways on each loop, and each way at some moment."""
    turns = [(n, turn) for n in range(len(moments)) for turn in range(4)]
    return [(moments[n], ways[(3 * n + turn) % len(ways)], LOOPS[turn % 2]) for n, turn in turns]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@at(itertools.product(VIRTUAL_WAITING, BROKEN_OFF, LOOPS), "virtual")
async def test_a_call_that_waits(moment, way, stream):
    before = tasks()
    await break_off(virtual_scene(moment), way, stream=stream)
    assert tasks() == before


@at(itertools.product(VIRTUAL_READING, ALL, LOOPS), "virtual")
async def test_a_stream_that_is_read(moment, way):
    before = tasks()
    await leave(virtual_scene(moment), way)
    assert tasks() == before


@pytest.mark.real
@at(some(WAITING, BROKEN_OFF), "backend")
async def test_a_real_call_that_waits(device, moment, way):
    before = tasks()
    async with scene(moment, device) as found:
        await break_off(found, way, stream=way in ("scope", "deadline"))
        assert tasks() == before


@pytest.mark.real
@at(some(READING, ALL), "backend")
async def test_a_real_stream_that_is_read(device, moment, way):
    before = tasks()
    async with scene(moment, device) as found:
        await leave(found, way)
        assert tasks() == before
