"""Whoever listens where a server was announced: strangers get nothing, and every answer comes all the same."""

from __future__ import annotations

import contextlib
import json
import logging
from types import SimpleNamespace

import anyio
import pytest
from anyio.abc import SocketAttribute
from attached.made import CANARY, announcement, ask, attaching, collected, own_model, written
from security.recorder import recording

from disco import AsyncDisco
from disco.endpoints.attached.announcement import live_announcements
from disco.endpoints.attached.handshake import proof
from disco.endpoints.attached.proven_connection import ProvenConnection, ServeGoneError
from disco.events import Ended

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = [{"role": "user", "content": f"Tell me about the sea. {CANARY}"}]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@contextlib.asynccontextmanager
async def stranger(handle):
    """A program that listens where a server was announced."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def answers_own(folder, **more):
    """What an attempt comes to; the server is left alone afterwards."""
    endpoint = attaching(folder, **more)
    assert endpoint.served is not None
    events, text = await collected(endpoint.open(ask(f"Tell me. {CANARY}", max_tokens=4)))
    assert isinstance(events[-1], Ended)
    assert endpoint.served is None
    return text


LIES = {
    "nothing": b"",
    "rubbish": b"\x00\xff" * 50,
    "a page": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n<html",
    "no proof": b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"version":1}',
    "a false one": b'HTTP/1.1 200 OK\r\ncontent-length: 76\r\n\r\n{"proof":"' + b"0" * 64 + b'"}',
    "no end": b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n" + b"[" * 60_000,
    "too much": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"{" * 200_000,
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_stranger_on_the_port_gets_nothing_of_the_prompt(folder, lie):
    heard = b""

    async def handle(stream):
        nonlocal heard
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                heard += await stream.receive()
                if LIES[lie]:
                    await stream.send(LIES[lie])
                    while True:
                        heard += await stream.receive()

    async with stranger(handle) as port:
        one = announcement(port=port)
        written(folder, one)
        assert await answers_own(folder)
    assert heard.startswith(b"GET ")
    assert CANARY.encode() not in heard
    assert one.key.encode() not in heard


async def test_one_that_passes_the_question_on_to_the_real_server_proves_nothing(attachable, folder):
    """Its own connection to the server has other ends than the program's connection to it."""
    served, where = attachable
    heard = b""

    async def handle(stream):
        nonlocal heard
        async with (
            stream,
            await anyio.connect_tcp(*served.address) as real,
            anyio.create_task_group() as tasks,
        ):

            async def back():
                with contextlib.suppress(
                    anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
                ):
                    while True:
                        await stream.send(await real.receive())

            tasks.start_soon(back)
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    data = await stream.receive()
                    heard += data
                    await real.send(data)
            tasks.cancel_scope.cancel()

    async with stranger(handle) as port:
        (true,) = live_announcements(where)
        written(folder, true.model_copy(update={"port": port}))
        with pytest.raises(ServeGoneError):
            await ProvenConnection.to(live_announcements(folder)[0])
        await answers_own(folder)
    assert heard.count(b"GET ") == 2
    assert CANARY.encode() not in heard


async def test_a_server_that_is_gone_is_tried_again_after_a_while(folder):
    """The file is there, and nothing listens: after a `kill -9` whose id was taken over, say."""
    now = SimpleNamespace(s=100.0)
    written(folder, announcement())
    endpoint = attaching(folder, clock=lambda: now.s)
    assert endpoint.address == "attached"
    _, text = await collected(endpoint.open(ask(max_tokens=4)))
    assert text
    assert (endpoint.served, endpoint.address) == (None, None)
    assert endpoint.capabilities().parks  # the own model's
    now.s += 4.0
    assert endpoint.served is None
    now.s += 2.0
    assert endpoint.served is not None
    await endpoint.warm_up()
    now.s += 9.0  # the next time is twice as long
    assert endpoint.served is None
    now.s += 2.0
    assert endpoint.served is not None


@pytest.mark.parametrize("how", ["cannot be sent", "too long", "malformed"])
async def test_one_request_that_the_server_cannot_take_does_not_cost_the_others_its_model(folder, how):
    one = announcement()
    app = Refuser(one.key, 413 if how == "too long" else 400)
    async with stranger(app) as port:
        written(folder, one.model_copy(update={"port": port}))
        endpoint = attaching(folder)
        request = ask(max_tokens=4, user={1, 2} if how == "cannot be sent" else "u")
        _, text = await collected(endpoint.open(request))
        assert text  # of the own model
        assert endpoint.served is not None


class Refuser:
    """A server that proves itself, and refuses every order."""

    def __init__(self, key: str, status: int) -> None:
        self._key = key
        self._status = status

    async def __call__(self, stream) -> None:
        ends = {
            name: stream.extra(attribute)
            for name, attribute in (
                ("server", SocketAttribute.local_address),
                ("client", SocketAttribute.remote_address),
            )
        }
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                asked = await stream.receive()
                nonce = asked.partition(b"nonce=")[2][:64].decode()
                body = json.dumps({"proof": proof(self._key, nonce, **ends)}).encode()
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                await stream.receive()
                await stream.send(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % self._status)
                await stream.receive()


async def test_closing_while_the_own_model_takes_over_leaves_nothing_running(folder):
    written(folder, announcement())
    own = own_model()
    attempt = attaching(folder, own).open(ask(max_tokens=4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collected, attempt)
        await anyio.lowlevel.checkpoint()
        await attempt.aclose()
    assert own.busy == 0


async def test_no_server_hears_of_it_and_no_log_has_the_key_or_the_prompt(attachable, folder, caplog):
    """Local-only: the program has a server, too, which keeps every byte it is sent."""
    caplog.set_level(logging.DEBUG)
    _, where = attachable
    (announced,) = live_announcements(where)
    written(folder, announced)
    with recording() as recorder:
        endpoint = attaching(folder)
        async with AsyncDisco(local=endpoint, api_key="sk-0123456789", base_url=recorder.base_url) as client:
            answer = await client.chat.completions.create(
                model="m", messages=SEA, max_tokens=4, extra_body={"disco": {"local_only": True}}
            )
        await endpoint.aclose()
        assert recorder.untouched
    assert answer.choices[0].message.content
    said = json.dumps([record.getMessage() for record in caplog.records])
    assert announced.key not in said
    assert CANARY not in said
