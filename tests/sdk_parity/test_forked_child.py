"""S11: a child that is forked after a client was used can use it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.real,  # it starts a program, which takes two seconds
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

WITHIN_S = 120  # importing and the answers take two seconds

SCRIPT = f"""
import asyncio, os, signal, sys
from disco import AsyncDisco, Disco
from sdk_parity.side_by_side import BASE, CHAT, SAID, Server, answering, behind, http_client, taken, text_of

clients = [
    kind(base_url=BASE, api_key="k", http_client=http_client(kind, Server(answering)), **more)
    for kind in (Disco, AsyncDisco)
    for more in ({{}}, behind())
]


async def ask(client):
    whole = await taken(client.chat.completions.create(**CHAT))
    chunks = await taken(client.chat.completions.create(**CHAT, stream=True))
    assert (whole.choices[0].message.content, text_of(chunks)) == (SAID, SAID)


async def close(client):
    await taken(client.close())


def each(use):
    for client in clients:
        asyncio.run(use(client))


each(ask)
child = os.fork()
if child == 0:
    signal.alarm({WITHIN_S // 4})  # a child that hangs ends
    try:
        each(ask)
        each(close)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
each(ask)
each(close)
sys.exit(0 if code == 0 else f"the child ended with {{code}}")
"""


def test_a_child_answers_and_so_does_its_parent_afterwards():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
