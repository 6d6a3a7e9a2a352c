"""The clocks of an answer run when they should, say what they are, and know a pause from a silence."""

from __future__ import annotations

import math

import anyio
import moved_clock
import openai
import pytest
from defects.asking import RESET, MemoryServer, Reply, ask, client, device, preset, prose, streamed, text_of
from defects.parts import ScriptedDevice
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from scripted_server import chunk, sse

from disco import AnswerTimeoutError, Timeouts
from disco.endpoints.simulation.simulated_script import Fault
from disco.events import Delta, Ended, Usage

pytestmark = pytest.mark.anyio

WORDS = prose(200)
TEXT = "".join(WORDS)
DIES = Reply([sse(chunk("".join(WORDS[:4])), done=False), 0.5, RESET])
REFUSES = Reply([b'{"error": {"message": "No."}}'], 500, {"content-type": "application/json"})


async def failing(server, local, *, stream=True, clocks=None, **options):
    """The error of an answer that begins at the server, and after how many seconds it came."""
    settings = {"local": local, "policy": preset("server_only"), "timeouts": clocks or Timeouts()}
    async with client(MemoryServer(server), **settings) as one:
        began_at = anyio.current_time()
        with pytest.raises(openai.OpenAIError) as caught:
            await ask(one, stream=stream, **options)
        return caught.value, anyio.current_time() - began_at


async def test_the_gap_clock_runs_after_a_takeover():
    silent = Fault(after_tokens=5, silence_s=math.inf, kind=None)
    clocks = Timeouts(first_content_s=120.0, gap_s=5.0, total_s=600.0)
    error, took_s = await failing(DIES, device(ttft_s=0.5, answer=TEXT, fault=silent), clocks=clocks)
    assert error.route.attempts[1].failure == "stalled"
    assert 5.0 <= took_s < 9.0


@pytest.mark.parametrize("fails", [DIES, REFUSES], ids=["in mid-answer", "at once"])
@pytest.mark.parametrize(
    "given", [{"deadline_s": 4.0}, {"clocks": Timeouts(total_s=4.0)}], ids=["deadline", "total"]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline_after_a_failover_is_a_timeout_and_not_the_failure_that_was_mended(
    fails, given, stream
):
    slow = device(ttft_s=0.5, answer=TEXT, decode_tps=10.0)  # 20 s for an answer that has 4
    error, took_s = await failing(fails, slow, stream=stream, **given)
    assert [t.endpoint for t in error.route.attempts] == ["server", "device"]
    assert 3.9 <= took_s < 5.0
    assert TEXT.startswith(error.partial_text)
    assert isinstance(error, AnswerTimeoutError)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
async def test_a_pause_of_the_whole_process_is_no_silence_of_an_endpoint():
    """The clock jumps by 20 s while the next piece waits to be read; the gap clock allows 5 s.

    Which of the two is looked at first is chance: sixteen jumps leave it none.
    """
    feed, fed = anyio.create_memory_object_stream[list[Delta] | Ended](math.inf)
    local = ScriptedDevice(lambda _: [fed.receive] * 17)
    clocks = Timeouts(first_content_s=5.0, gap_s=5.0, total_s=None)

    async def write():
        for word in WORDS[:16]:
            await anyio.sleep(0.5)
            feed.send_nowait([Delta(word)])
            moved_clock.skip(20.0)
        await anyio.sleep(0.5)
        feed.send_nowait(Ended("stop", Usage(10, 16)))

    with feed, fed:
        async with (
            client(local=local, policy=preset("device_only"), timeouts=clocks) as one,
            anyio.create_task_group() as group,
        ):
            group.start_soon(write)
            stream = await streamed(one)
            text = await text_of(stream)
    assert text == "".join(WORDS[:16])
    assert [t.failure for t in stream.route.attempts] == [None]
