"""C9: `timeout=` means the same to the constructor, to `with_options` and to a request."""

from __future__ import annotations

import contextlib

import anyio
import httpx2
import openai
import pytest
from defects.asking import (
    MODEL,
    SILENCE,
    Reply,
    Server,
    client,
    preset,
    prose,
    question,
    spoken,
    streamed,
    text_of,
    virtually,
)
from scripted_server import chunk, sse

from disco import Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

SERVER_ONLY = preset("server_only")
HERE = preset("device_only")
# What is given, and the clocks for silence that it means.
MEANS = [
    pytest.param(httpx2.Timeout(60.0, read=3.0), 3.0, id="Timeout"),
    pytest.param(httpx2.Timeout(None), None, id="Timeout(None)"),
    pytest.param(None, None, id="None"),
]
MUTE = Reply([SILENCE])
STALLS = Reply([sse(chunk("It is"), done=False), SILENCE])


class Asked(SimulatedEndpoint):
    """A device that keeps the clocks it was asked with."""

    def __init__(self) -> None:
        super().__init__("device", SimulatedProfile(answer="It is wide.", decode_tps=1000.0), place="device")
        self.clocks = []

    def open(self, request, *prefix):
        self.clocks.append(request.timeouts)
        return super().open(request, *prefix)


def check(local: Asked, silence_s: float | None) -> None:
    (clocks,) = local.clocks
    assert clocks.first_content_s == silence_s
    assert clocks.gap_s == silence_s


@pytest.mark.parametrize("where", ["constructor", "with_options", "with_options, constructor"])
@pytest.mark.parametrize(("timeout", "silence_s"), MEANS)
def test_the_synchronous_client_takes_the_timeout(timeout, silence_s, where):
    """On c5a62d7 the clocks were 30 s and 15 s, whatever of these was given."""
    local = Asked()
    given = {"timeout": timeout} if where == "constructor" else {}
    if where == "with_options, constructor":
        given = {"timeout": 7.0}
    with Disco(local=local, policy=HERE, **given) as one:
        asker = one if where == "constructor" else one.with_options(timeout=timeout)
        asker.chat.completions.create(model=MODEL, messages=question())
    check(local, silence_s)


@pytest.mark.parametrize("where", ["constructor", "with_options", "with_options, constructor"])
@pytest.mark.parametrize(("timeout", "silence_s"), MEANS)
def test_the_asynchronous_client_takes_the_timeout(timeout, silence_s, where):
    """On c5a62d7 the clocks were 30 s and 15 s, whatever was given."""

    async def main():
        given = {"timeout": timeout} if where == "constructor" else {}
        if where == "with_options, constructor":
            given = {"timeout": 7.0}
        async with client(local=local, policy=HERE, **given) as one:
            asker = one if where == "constructor" else one.with_options(timeout=timeout)
            await text_of(await streamed(asker))

    local = Asked()
    virtually(main)
    check(local, silence_s)


@contextlib.asynccontextmanager
async def asking(script, where: str, given_timeout):
    given = {"timeout": given_timeout} if where == "constructor" else {}
    async with client(Server(script), policy=SERVER_ONLY, **given) as one:
        yield one if where == "constructor" else one.with_options(timeout=given_timeout)


@pytest.mark.parametrize("where", ["constructor", "with_options"])
@pytest.mark.parametrize("script", [MUTE, STALLS], ids=["mute", "stalls"])
def test_a_read_timeout_ends_a_silence(script, where):
    """On c5a62d7 the error came after 30 s (mute) or 15 s (stalls) instead of 3 s."""

    async def main():
        async with asking(script, where, httpx2.Timeout(60.0, read=3.0)) as one:
            began_at = anyio.current_time()
            with pytest.raises(openai.APITimeoutError):
                await text_of(await streamed(one))
            assert 3.0 <= anyio.current_time() - began_at < 4.0

    virtually(main)


@pytest.mark.parametrize("where", ["constructor", "with_options"])
def test_without_a_timeout_a_silence_is_waited_out(where):
    """On c5a62d7 an AnswerTimeoutError came after 30 s (first_content_s)."""
    words = prose(3)

    async def main():
        async with asking(spoken(words, first_s=100.0, gap_s=100.0), where, None) as one:
            began_at = anyio.current_time()
            assert await text_of(await streamed(one)) == "".join(words)
            assert anyio.current_time() - began_at > 250.0

    virtually(main)
