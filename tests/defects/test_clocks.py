"""The clocks of an answer: given in any place, run when they should, and know a pause from a silence."""

from __future__ import annotations

import contextlib
import math
import os

import anyio
import anyio.abc
import httpx2
import moved_clock
import openai
import pytest
from defects.asking import ask, client, create, device, preset, prose, text_of, tried
from faults.in_memory import RESET, SILENCE, MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture
from scripted_server import STREAM_END, STREAM_HEAD, chunk, piece, sse

from disco import AnswerTimeoutError, AsyncDisco, Disco, Timeouts
from disco.endpoints.simulation.simulated_script import Fault

pytestmark = pytest.mark.anyio

# What is given, and the clocks for silence that it means.
MEANS = [(httpx2.Timeout(60.0, read=3.0), 3.0), (httpx2.Timeout(None), None), (None, None)]
WORDS = prose(200)
TEXT = "".join(WORDS)
DIES = Reply([sse(chunk("".join(WORDS[:4])), done=False), 0.5, RESET])
REFUSES = Reply([b'{"error": {"message": "No."}}'], 500, {"content-type": "application/json"})
MUTE, STALLS = Reply([SILENCE]), Reply([sse(chunk("It is"), done=False), SILENCE])


@pytest.mark.parametrize("kind", [Disco, AsyncDisco])
@pytest.mark.parametrize("where", ["constructor", "with_options", "with_options, constructor"])
def test_timeout_means_the_same_in_the_constructor_and_in_a_copy(kind, where):
    for given, silence_s in MEANS:
        at_first = {"constructor": {"timeout": given}, "with_options": {}}.get(where, {"timeout": 7.0})
        one = kind(api_key="x", **at_first)
        asker = one if where == "constructor" else one.with_options(timeout=given)
        clocks = asker.timeouts
        assert (clocks.first_content_s, clocks.gap_s) == (silence_s, silence_s)


@pytest.mark.parametrize(
    ("script", "given", "says", "least_s", "most_s"),
    [
        (MUTE, httpx2.Timeout(60.0, read=3.0), None, 3.0, 4.0),
        (STALLS, httpx2.Timeout(60.0, read=3.0), None, 3.0, 4.0),
        (spoken(WORDS[:3], first_s=100.0, gap_s=100.0), None, "".join(WORDS[:3]), 250.0, 400.0),
    ],
    ids=["mute", "stalls", "waited out"],
)
async def test_a_read_timeout_ends_a_silence_of_the_server_and_none_waits_it_out(
    script, given, says, least_s, most_s
):
    async with client(MemoryServer(script), policy=preset("server_only"), timeout=given) as one:
        began_at, text = anyio.current_time(), None
        with contextlib.suppress(openai.APITimeoutError):
            text = await text_of(await create(one, stream=True))
        assert least_s <= anyio.current_time() - began_at < most_s
    assert text == says


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
@pytest.mark.parametrize("given", [{"deadline_s": 4.0}, {"clocks": Timeouts(total_s=4.0)}], ids=str)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline_after_a_failover_is_a_timeout_and_not_the_failure_that_was_mended(
    fails, given, stream
):
    slow = device(ttft_s=0.5, answer=TEXT, decode_tps=10.0)  # 20 s for an answer that has 4
    error, took_s = await failing(fails, slow, stream=stream, **given)
    assert [name for name, _ in tried(error)] == ["server", "device"]
    assert 3.9 <= took_s < 5.0
    assert TEXT.startswith(error.partial_text)
    assert isinstance(error, AnswerTimeoutError)


CLOCKS = Timeouts(connect_s=10.0, first_content_s=5.0, gap_s=5.0, total_s=None)


@pytest.mark.real
@pytest.mark.parametrize(
    "anyio_backend", [*map(moved_clock.backend, ("asyncio", "trio"))], ids=["asyncio", "trio"]
)
async def test_after_a_pause_what_waits_in_the_socket_is_read_before_its_server_is_judged(anyio_backend):  # noqa: F811
    """The clock jumps by 20 s. What is looked at first on waking is chance: sixteen jumps leave it none."""

    async def serve(connection):
        async with connection:
            await connection.receive()
            await connection.send(STREAM_HEAD)
            file = connection.extra(anyio.abc.SocketAttribute.raw_socket).fileno()
            for word in WORDS[:16]:
                await anyio.sleep(0.03)
                os.write(file, piece(sse(chunk(word), done=False)))
                moved_clock.skip(20.0)
            await anyio.sleep(0.03)
            os.write(file, piece(sse(chunk(finish="stop"))) + STREAM_END)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
    settings = {"policy": preset("server_only"), "timeouts": CLOCKS, "max_retries": 0, "price": (1, 1)}
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        for local in (None, device(answer="Something else.")):
            async with AsyncDisco(
                local=local, base_url=url, api_key="k", continuation="trailing", **settings
            ) as one:
                stream = await create(one, stream=True)
                assert await text_of(stream) == "".join(WORDS[:16])
                assert tried(stream) == [("server", None)]
        group.cancel_scope.cancel()
