"""Every way of leaving an answer, at every moment, on both event loops: nothing of it runs on."""

from __future__ import annotations

import anyio
import pytest
from leaving import BROKEN_OFF, LEFT, READING, WAITING, break_off, leave, scene, tasks

pytestmark = pytest.mark.anyio


def only_on_asyncio(way: str, backend: str) -> None:
    if way == "task" and backend[0] == "trio":
        pytest.skip("trio's tasks are cancelled by their scope")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("way", BROKEN_OFF)
@pytest.mark.parametrize("moment", WAITING)
async def test_a_call_that_waits(device, anyio_backend, moment, way, stream):
    only_on_asyncio(way, anyio_backend)
    before = tasks()
    async with scene(moment, device) as found:
        await break_off(found, way, stream=stream)
        assert tasks() == before


@pytest.mark.parametrize("way", [*LEFT, *BROKEN_OFF])
@pytest.mark.parametrize("moment", READING)
async def test_a_stream_that_is_read(device, anyio_backend, moment, way):
    only_on_asyncio(way, anyio_backend)
    if moment == "last token came" and way in ("deadline", "fail_after"):
        pytest.skip("the answer may be complete before the time is up")
    before = tasks()
    async with scene(moment, device) as found:
        with anyio.fail_after(300):
            await leave(found, way)
        assert tasks() == before
