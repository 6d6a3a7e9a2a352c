"""C2, C8 and A2: the clocks of an answer run when they should, say what they are, and know a pause from a silence."""

from __future__ import annotations

import math

import anyio
import openai
import pytest
import trio.testing
from defects.asking import (
    RESET,
    Reply,
    Server,
    client,
    device,
    preset,
    prose,
    streamed,
    text_of,
    virtually,
    whole,
    with_clock,
)
from defects.parts import CustomAttempt, CustomEndpoint, Delta, Ended, Usage
from scripted_server import chunk, sse

from disco import AnswerTimeoutError, Timeouts
from disco.endpoints.simulation.simulated_script import Fault

SERVER_FIRST = preset("server_only")
WORDS = prose(200)
TEXT = "".join(WORDS)
DIES = Reply([sse(chunk("".join(WORDS[:4])), done=False), 0.5, RESET])
REFUSES = Reply([b'{"error": {"message": "No."}}'], status=500, content_type="application/json")


def test_the_gap_clock_runs_after_a_takeover():
    """On c5a62d7 the failure came 120.5 s after the request, with the clock for the first content, not after 6 s."""

    async def main():
        falls_silent = device(
            ttft_s=0.5, answer=TEXT, fault=Fault(after_tokens=5, silence_s=math.inf, kind=None)
        )
        clocks = Timeouts(first_content_s=120.0, gap_s=5.0, total_s=600.0)
        async with client(Server(DIES), local=falls_silent, policy=SERVER_FIRST, timeouts=clocks) as one:
            began_at = anyio.current_time()
            with pytest.raises(openai.OpenAIError) as caught:
                await text_of(await streamed(one))
            took_s = anyio.current_time() - began_at
        assert caught.value.route.attempts[1].failure == "stalled"
        assert 5.0 <= took_s < 9.0

    virtually(main)


async def read_stream(one, **options):
    return await text_of(await streamed(one, **options))


@pytest.mark.parametrize("fails", [DIES, REFUSES], ids=["in mid-answer", "at once"])
@pytest.mark.parametrize("option", ["deadline_s", "total_s"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_after_a_failover_is_a_timeout_and_not_the_failure_that_was_mended(fails, option, stream):
    """On c5a62d7 the caller got the first endpoint's APIConnectionError or InternalServerError."""

    async def main():
        slow = device(ttft_s=0.5, answer=TEXT, decode_tps=10.0)  # 20 s for an answer that has 4
        clocks = Timeouts(total_s=4.0) if option == "total_s" else Timeouts()
        options = {"deadline_s": 4.0} if option == "deadline_s" else {}
        async with client(Server(fails), local=slow, policy=SERVER_FIRST, timeouts=clocks) as one:
            began_at = anyio.current_time()
            with pytest.raises(openai.OpenAIError) as caught:
                await (read_stream(one, **options) if stream else whole(one, **options))
            took_s = anyio.current_time() - began_at
        assert [t.endpoint for t in caught.value.route.attempts] == ["server", "device"]
        assert 3.9 <= took_s < 5.0
        assert TEXT.startswith(caught.value.partial_text)
        assert isinstance(caught.value, AnswerTimeoutError)

    virtually(main)


class Fed(CustomEndpoint):
    """A device that writes what a test puts into its channel, the moment it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.feed, self.fed = anyio.create_memory_object_stream[list[Delta] | Ended](math.inf)

    def open(self, request, prefix=None):
        return FedAttempt(self.fed)


class FedAttempt(CustomAttempt):
    def __init__(self, fed) -> None:
        super().__init__()
        self.fed = fed

    async def _next(self):
        return await self.fed.receive()


def test_a_pause_of_the_whole_process_is_no_silence_of_an_endpoint():
    """The clock jumps by 20 s while the next piece waits to be read; the gap clock allows 5 s.

    On c5a62d7 an AnswerTimeoutError (gap_s) ended the answer, at the first jump or a later one: whether the piece or
    the clock was looked at first was left to chance. Sixteen jumps leave it none.
    """

    async def main(clock):
        local = Fed()
        clocks = Timeouts(first_content_s=5.0, gap_s=5.0, total_s=None)

        async def write():
            for word in WORDS[:16]:
                await anyio.sleep(0.5)
                local.feed.send_nowait([Delta(word)])
                clock.jump(20.0)
            await anyio.sleep(0.5)
            local.feed.send_nowait(Ended("stop", Usage(10, 16)))

        async with (
            client(local=local, policy=preset("device_only"), timeouts=clocks) as one,
            anyio.create_task_group() as group,
        ):
            group.start_soon(write)
            stream = await streamed(one)
            text = await text_of(stream)
        local.feed.close()
        local.fed.close()
        assert text == "".join(WORDS[:16])
        assert [t.failure for t in stream.route.attempts] == [None]

    clock = trio.testing.MockClock(autojump_threshold=0)
    with_clock(clock, main, clock)
