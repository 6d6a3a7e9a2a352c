"""`timeout=` means the same to the constructor, to `with_options` and to a request, in either client."""

from __future__ import annotations

import contextlib

import anyio
import httpx2
import openai
import pytest
from defects.asking import (
    MODEL,
    SILENCE,
    MemoryServer,
    Reply,
    client,
    preset,
    prose,
    question,
    spoken,
    streamed,
    text_of,
)
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from scripted_server import chunk, sse

from disco import AsyncDisco, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.anyio

# What is given, and the clocks for silence that it means.
MEANS = [
    pytest.param(httpx2.Timeout(60.0, read=3.0), 3.0, id="Timeout"),
    pytest.param(httpx2.Timeout(None), None, id="Timeout(None)"),
    pytest.param(None, None, id="None"),
]
MUTE = Reply([SILENCE])
STALLS = Reply([sse(chunk("It is"), done=False), SILENCE])
both_places = pytest.mark.parametrize("where", ["constructor", "with_options"])


class Asked(SimulatedEndpoint):
    """A device that keeps the clocks it was asked with."""

    def __init__(self) -> None:
        super().__init__("device", SimulatedProfile(answer="It is wide.", decode_tps=1000.0), place="device")
        self.clocks = []

    def open(self, request, *prefix):
        self.clocks.append(request.timeouts)
        return super().open(request, *prefix)


@pytest.mark.parametrize("kind", [Disco, AsyncDisco])
@pytest.mark.parametrize("where", ["constructor", "with_options", "with_options, constructor"])
@pytest.mark.parametrize(("given", "silence_s"), MEANS)
async def test_a_client_takes_the_timeout(kind, given, silence_s, where):
    local = Asked()
    at_first = {"constructor": {"timeout": given}, "with_options": {}}.get(where, {"timeout": 7.0})
    one = kind(local=local, policy=preset("device_only"), **at_first)
    asker = one if where == "constructor" else one.with_options(timeout=given)
    answer, closed = asker.chat.completions.create(model=MODEL, messages=question()), one.close
    if kind is AsyncDisco:
        await answer
        await closed()
    else:
        closed()
    (clocks,) = local.clocks
    assert (clocks.first_content_s, clocks.gap_s) == (silence_s, silence_s)


async def seconds_of(script, where, given) -> tuple[float, str | None]:
    """How long an answer takes, and its text; None where it failed."""
    at_first = {"timeout": given} if where == "constructor" else {}
    async with client(MemoryServer(script), policy=preset("server_only"), **at_first) as one:
        asker = one if where == "constructor" else one.with_options(timeout=given)
        began_at, text = anyio.current_time(), None
        with contextlib.suppress(openai.APITimeoutError):
            text = await text_of(await streamed(asker))
        return anyio.current_time() - began_at, text


@both_places
@pytest.mark.parametrize("script", [MUTE, STALLS], ids=["mute", "stalls"])
async def test_a_read_timeout_ends_a_silence(script, where):
    took_s, text = await seconds_of(script, where, httpx2.Timeout(60.0, read=3.0))
    assert text is None
    assert 3.0 <= took_s < 4.0


@both_places
async def test_without_a_timeout_a_silence_is_waited_out(where):
    words = prose(3)
    took_s, text = await seconds_of(spoken(words, first_s=100.0, gap_s=100.0), where, None)
    assert text == "".join(words)
    assert took_s > 250.0
