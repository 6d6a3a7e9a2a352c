"""The wall's network does what a socket does: the same rows from a real server, to real connections."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import socket
import struct
from typing import Any

import openai._base_client
import pytest
import wall.ways
from wall.network import entered, quiet, run
from wall.script import CUT, DROP, REFUSE, RESET, Row, read_rows, rows_of
from wall.ways import REFERENCE, Way, client_of, look

pytestmark = pytest.mark.real

WAYS = [Way(setup, shape) for setup in (REFERENCE, "one server") for shape in ("stream", "whole")]
# What only time tells, and addresses that name this server's; what HTTP itself does not allow; and 10,000 reads.
ROWS = [
    row
    for row in read_rows()
    if not row.words
    and not row.has_responses
    and not any(
        r.wait_s or r.fault == REFUSE or r.status >= 600 or "location" in r.headers for r in row.replies
    )
    and sum(len(r.steps) for r in row.replies) < 1000
]


class _Server:
    """Plays a row. Mutable: `asked`, the requests so far."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.asked = itertools.count(1)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._play(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        reply = self.row.reply(head.split(" ")[1], body, next(self.asked))
        if reply.fault == DROP:
            return
        headers = {**reply.headers, "connection": "close"}
        has_body = reply.status not in (204, 304)
        if has_body:
            headers["transfer-encoding"] = "chunked"
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for step in reply.steps if has_body else ():
            if step == CUT:
                return
            if step == RESET:
                await writer.drain()
                await asyncio.sleep(0.05)  # what was written is read first
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                return
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, bytes) and step:
                writer.write(b"%x\r\n%s\r\n" % (len(step), step))
                await writer.drain()
        if has_body:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _on_a_socket(row: Row, way: Way, monkeypatch: pytest.MonkeyPatch) -> Any:
    async with await asyncio.start_server(_Server(row), "127.0.0.1", 0) as server:
        monkeypatch.setattr(wall.ways, "FIRST", server.sockets[0].getsockname()[1])
        return await look(row, way)


def _facts(seen: Any) -> Any:
    return {**seen.answer(), "error": seen.error, "status": seen.status}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_socket_shows_the_same(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.0)
    for way in WAYS:
        if not way.is_named(row.ways):
            continue
        with quiet():
            with entered():
                in_memory = run(look, row, way)
            on_a_socket = asyncio.run(_on_a_socket(row, way, monkeypatch))
        assert _facts(on_a_socket) == _facts(in_memory), way


async def _left(way: Way, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the loop is told of streams that are left after their first chunk, by `close` and by `break` alone."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
    (row,) = rows_of("[a slow server]\nsay a\nsay b\npause 10\nstop")
    async with await asyncio.start_server(_Server(row), "127.0.0.1", 0) as server:
        monkeypatch.setattr(wall.ways, "FIRST", server.sockets[0].getsockname()[1])
        async with client_of(row, way) as client:
            for closes in (True, False):
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
                )
                await anext(aiter(stream))
                if closes:
                    await stream.close()
                del stream
                gc.collect()
                await asyncio.sleep(0.05)
                gc.collect()
        return list(told)  # before the server is ended, in the middle of its answers


@pytest.mark.parametrize("setup", ["one server", "budget", "backup", "device"])
def test_a_stream_that_is_left_early_is_quiet(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet():
        assert asyncio.run(_left(Way(setup, "stream"), monkeypatch)) == []
