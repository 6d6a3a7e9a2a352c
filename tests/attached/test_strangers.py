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
    "half a page": b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n<html",
    "no page": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    "a page": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_hangs_or_is_no_host_gets_nothing_of_the_prompt(folder, lie):
    """There is no proof of who listens: where there are sockets, only this user can. But no host, no prompt."""
    heard = b""

    async def handle(stream):
        nonlocal heard
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                heard += await stream.receive()
                if LIES[lie]:
                    await stream.send(LIES[lie])
                else:
                    await anyio.sleep_forever()

    async with stranger(handle) as port:
        written(folder, announcement(port=port))
        assert await answers_own(folder)
    assert heard.startswith(b"GET ")
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
