"""With the server alone: however a body is coded and however its stream is left, as the SDK does it, and quietly."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import time
import warnings
import zlib

import anyio
import httpx2
import openai
import pytest
from compat.compat_cases import entered, got, items
from scripted_server import STREAM_HEAD, WAIT_FOR_CLOSE, chunk, piece, scripted_server, sse, stream
from sdk_parity.side_by_side import BASE, CHAT, SAID, Body, Server, ask, chat_events, facts, http_client

from disco import AsyncDisco, Disco
from disco.errors import UnreadableAnswerError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(request):
    """asyncio, where a test does not ask for both: trio complains of the generators that the SDK leaves open."""
    return getattr(request, "param", "asyncio")


BOTH_LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)


KINDS = {"async": (openai.AsyncOpenAI, AsyncDisco), "sync": (openai.OpenAI, Disco)}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kinds(request):
    return request.param


def raw_deflated(data):
    return zlib.compress(data)[2:-4]


CODINGS = {
    "identity": bytes,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate ": raw_deflated,
    "gzip, deflate": lambda data: zlib.compress(gzip.compress(data)),
    "identity, gzip": gzip.compress,
    "br": bytes,  # the HTTP package may lack it
    "made-up": bytes,
    "gzip broken": bytes,
}


def wire(*bodies):
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies) + b"data: [DONE]\n\n"


def coded(coding, data, size=64):
    body = CODINGS[coding](data)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    fields = {"content-type": "text/event-stream", "content-encoding": coding.removesuffix(" broken").strip()}
    return httpx2.Response(200, headers=fields, stream=Body(pieces))


async def lines(client):
    """The lines of a response that the application reads itself."""
    raw = client.chat.completions.with_streaming_response
    async with entered(raw.create(**CHAT, stream=True)) as response:
        return await items(response.iter_lines())


async def parsed(client):
    """The chunks of a raw response."""
    response = await got(client.chat.completions.with_raw_response.create(**CHAT, stream=True))
    return await items(response.parse())


async def helped(client):
    async with entered(client.chat.completions.stream(**CHAT)) as helper:
        return await got(helper.get_final_completion())


ASKED = {
    "streamed": lambda c: c.chat.completions.create(**CHAT, stream=True),
    "raw lines": lines,
    "parsed": parsed,
    "helper": helped,
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("way", ASKED)
async def test_a_coded_stream_is_what_the_sdk_makes_of_it(kinds, way, coding):
    def answer(_):
        return coded(coding, wire(*chat_events(usage=True)))

    routes = []
    plain = await ask(kinds[0], ASKED[way], answer)
    ours = await ask(kinds[1], ASKED[way], answer, on_route=routes.append)
    unreadable = isinstance(plain.error, ValueError)  # Python's own error
    kind = UnreadableAnswerError if unreadable else type(plain.error)
    assert (type(ours.error), facts(ours.value)) == (kind, facts(plain.value))
    (route,) = routes
    if plain.error is None and (way, coding) != ("raw lines", "x-gzip"):
        (attempt,) = route.attempts
        assert (route.finish_reason, attempt.completion_tokens, attempt.prompt_tokens) == ("stop", 9, 20)
        assert route.segments[0].end_char == len(SAID)


# ---------------------------------------------------------------------- leaving


async def _first(stream):
    async for _ in stream:
        break


async def close(client):
    stream = await client.chat.completions.create(**CHAT, stream=True)
    await anext(stream)
    await stream.close()


async def with_block(client):
    async with await client.chat.completions.create(**CHAT, stream=True) as stream:
        await _first(stream)


async def broken_off(client):
    await _first(await client.chat.completions.create(**CHAT, stream=True))


async def unread(client):
    await (await client.chat.completions.create(**CHAT, stream=True)).close()


async def cancelled(client):
    with anyio.move_on_after(0.05):
        await items(await client.chat.completions.create(**CHAT, stream=True))


async def of_helper(client):
    async with client.chat.completions.stream(**CHAT) as helper:
        await _first(helper)


async def of_raw(client):
    raw = await client.chat.completions.with_raw_response.create(**CHAT, stream=True)
    async with raw.parse() as stream:
        await _first(stream)


async def in_a_cycle(client):
    stream = await client.chat.completions.create(**CHAT, stream=True)
    stream.owner = stream
    await anext(stream)


LEFT = [close, with_block, broken_off, unread, cancelled, of_helper, of_raw, in_a_cycle]
QUIET_ON_TRIO = [
    close,
    with_block,
    unread,
    cancelled,
    of_raw,
]  # trio wants every generator closed by its owner


@pytest.mark.real
@BOTH_LOOPS
@pytest.mark.parametrize("leave", LEFT, ids=lambda way: way.__name__)
async def test_a_stream_that_is_left_early_is_quiet(leave, anyio_backend):
    seen, routes = [], []
    if anyio_backend == "asyncio":
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    elif leave not in QUIET_ON_TRIO:
        pytest.skip("trio complains, as of the SDK's own streams")
    words = sse(*[chunk(f"w{n} ") for n in range(20)], done=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with scripted_server([STREAM_HEAD, piece(words), WAIT_FOR_CLOSE]) as server:
            made = {"base_url": server.base_url, "api_key": "k", "price": (0, 0)}
            async with AsyncDisco(**made, on_route=routes.append) as client:
                for _ in range(2):
                    await leave(client)
                    gc.collect()
                    await anyio.wait_all_tasks_blocked()
                    gc.collect()
                    await anyio.wait_all_tasks_blocked()
    assert seen == []
    assert [str(w.message) for w in warned if "generator" in str(w.message)] == []
    assert [route.finish_reason for route in routes] == ["cancelled"] * 2


@pytest.mark.real
async def test_a_connection_is_used_again_after_a_whole_answer_and_only_then():
    said = stream(sse(chunk("a"), chunk("b"), chunk(finish="stop")))
    for leave, connections in ((None, 1), (close, 2)):
        async with scripted_server(said) as server:
            async with AsyncDisco(base_url=server.base_url, api_key="k") as client:
                for _ in range(2):
                    if leave is None:
                        assert (
                            len(await items(await client.chat.completions.create(**CHAT, stream=True))) == 3
                        )
                    else:
                        await leave(client)
            assert server.connections == connections


async def test_a_second_reader_gets_an_error_and_does_not_end_the_stream():
    class Slow(httpx2.AsyncByteStream):
        async def __aiter__(self):
            for event in chat_events(usage=False):
                await anyio.lowlevel.checkpoint()
                yield b"data: " + json.dumps(event).encode() + b"\n\n"

    server = Server(lambda _: httpx2.Response(200, stream=Slow()))
    made = {"base_url": BASE, "api_key": "k", "http_client": http_client(AsyncDisco, server)}
    seen = []
    async with AsyncDisco(**made) as client:
        reading = await client.chat.completions.create(**CHAT, stream=True)

        async def read():
            try:
                seen.append(len(await items(reading)))
            except RuntimeError:
                seen.append("refused")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
    assert seen[0] == "refused"
    assert reading.route.finish_reason != "cancelled"


async def test_a_stream_that_its_reader_closed_ends_in_an_error_and_not_as_if_it_were_whole(kinds):
    made = {
        "base_url": BASE,
        "api_key": "k",
        "http_client": http_client(
            kinds[1],
            Server(
                lambda _: httpx2.Response(
                    200,
                    stream=Body(
                        [b"data: " + json.dumps(e).encode() + b"\n\n" for e in chat_events(usage=False)]
                    ),
                )
            ),
        ),
    }
    async with entered(kinds[1](**made)) as client:
        read = await got(client.chat.completions.create(**CHAT, stream=True))
        await got(read.__anext__() if hasattr(read, "__anext__") else read.__next__())
        await got(read.close())
        with pytest.raises(openai.APIConnectionError) as caught:
            await items(read)
        assert caught.value.route.finish_reason == "cancelled" or kinds[1] is Disco


# ---------------------------------------------------------------------- what little may become

GOOD = b"data: " + json.dumps(chat_events(usage=False)[1]).encode() + b"\n\n"
END = wire(chat_events(usage=False)[-1])
MUCH = {
    "line ends": b"\n" * 2**21,
    "carriage returns": b"\r" * 2**21,
    "comments": b":\n\n" * 2**19,
    "empty data": b"data:\n\n" * 2**18,
    "objects": b"data: {}\n\n" * 2**14,
    "odd chunks": b'data: {"choices":[{}]}\n\n' * 2**13,
}


@pytest.mark.parametrize("much", MUCH)
async def test_a_few_bytes_that_become_many_events_leave_the_loop_to_others(much):
    """Others run after some 10 ms of work: at least once in each 50 ms that this thread computes."""
    steps = 0

    async def others():
        nonlocal steps
        while True:
            await anyio.lowlevel.checkpoint()
            steps += 1

    server = Server(lambda _: coded("gzip", GOOD + MUCH[much] + END, 2**16))
    made = {"base_url": BASE, "api_key": "k", "http_client": http_client(AsyncDisco, server)}
    async with AsyncDisco(**made) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        reading = await client.chat.completions.create(**CHAT, stream=True)
        await anext(reading)
        before, at = steps, time.thread_time()
        await items(reading)
        took = time.thread_time() - at
        tasks.cancel_scope.cancel()
    assert steps - before >= int(took / 0.05)


async def test_a_time_out_ends_what_waits_for_nothing():
    server = Server(lambda _: coded("gzip", GOOD + b":\n\n" * 2**22 + END, 2**16))
    made = {"base_url": BASE, "api_key": "k", "http_client": http_client(AsyncDisco, server)}
    async with AsyncDisco(**made) as client:
        reading = await client.chat.completions.create(**CHAT, stream=True)
        await anext(reading)
        at = time.thread_time()
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await items(reading)
        assert time.thread_time() - at < 0.5


async def test_a_whole_body_that_is_no_answer_is_not_read_as_a_stream(kinds):
    def call(client):
        return client.chat.completions.with_raw_response.create(**CHAT)

    at = time.thread_time()
    outcome = await ask(kinds[1], call, lambda _: httpx2.Response(200, content=b"\n" * 2**24))
    assert outcome.value.route.finish_reason == "stop"
    assert time.thread_time() - at < 5


# ---------------------------------------------------------------------- odd streams and their records


def said(*deltas, reason="stop", **more):
    choices = [({"content": d} if isinstance(d, str) else d, None) for d in deltas]
    if reason is not None:
        choices.append(({}, reason))
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}], **more}
        for delta, end in choices
    ]


USED = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
FAILED = {"choices": [], "error": {"message": "upstream provider disconnected", "code": 502}}
SMILE = ["a", "\ud83d", "\ude00", "b"]
ODD = {
    "a character in halves": (said(*SMILE), "stop", "a\U0001f600b"),
    "half a character": (said("a", "\ud83d"), "stop", None),
    "no reason": (said("Rhine", reason=None), "stop", "Rhine"),
    "usage late": ([*said("Rhine"), USED], "stop", "Rhine"),
    "text behind the reason": ([*said("Rh"), *said("ine", reason=None)], "stop", "Rhine"),
    "an error object": ([*said("Rhine", reason=None), FAILED], None, "Rhine"),
    "usage of another shape": (said("Rhine", usage={"prompt_tokens": "x"}), "stop", "Rhine"),
    "usage that is a text": (said("Rhine", usage="none"), "stop", "Rhine"),
    "a reason that is a number": (said("Rhine", reason=7), None, "Rhine"),
    "calls of another shape": (said({"tool_calls": "x"}, {"tool_calls": [{}]}), "stop", ""),
    "content that is a list": (said({"content": [{"type": "text", "text": "x"}]}), "stop", None),
    "nothing of a chunk": ([5, [], "x", {"choices": {}}, *said("Rhine")], "stop", "Rhine"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("way", ["streamed", "parsed", "raw lines"])
async def test_an_odd_stream_gives_what_the_sdk_gives_and_its_record_is_right(kinds, way, odd):
    bodies, reason, text = ODD[odd]
    routes = []

    def answer(_):
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Body([wire(*bodies)])
        )

    plain = await ask(kinds[0], ASKED[way], answer)
    ours = await ask(kinds[1], ASKED[way], answer, on_route=routes.append)
    assert (type(ours.error), repr(ours.error)) == (type(plain.error), repr(plain.error))
    assert repr(ours.value) == repr(plain.value)
    (route,) = routes
    json.dumps(route.to_dict()).encode()
    if reason is not None and ours.error is None:
        assert route.finish_reason == reason
    if text is not None and ours.error is not None:
        assert ours.error.partial_text == text
    if text is not None and ours.error is None:
        assert (route.segments[-1].end_char if route.segments else 0) == len(text)
    if odd == "usage late":
        assert (route.attempts[0].prompt_tokens, route.attempts[0].completion_tokens) == (7, 3)


@pytest.mark.parametrize("sign", [b"data:\n\n", b"data: \n\n", b"event: ping\n\n", b":\n\n"], ids=repr)
async def test_signs_of_life_are_passed_over(kinds, sign):
    events = wire(*said("Rh", "ine")).split(b"\n\n")
    body = sign.join(event + b"\n\n" for event in events if event)
    outcome = await ask(
        kinds[1],
        ASKED["streamed"],
        lambda _: httpx2.Response(200, stream=Body([body])),
        on_route=lambda _: None,
    )
    assert outcome.error is None
    assert "".join(c.choices[0].delta.content or "" for c in outcome.value) == "Rhine"
