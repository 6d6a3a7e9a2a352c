"""Servers as processes of their own, which end in every way while a program is attached: its answers are complete."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from disco import AsyncDisco
from disco.endpoints.attached.announcement import live_announcements
from disco.endpoints.llamacpp.model.model_files import resolve_model
from tests.server.command_process import ROOT, running

pytestmark = [
    pytest.mark.real,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there, processes are ended otherwise"),
]

TOKENS = 60
ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell a long story about the sea."}],
    "max_tokens": TOKENS,
    "logit_bias": {"0": -100, "2": -100},  # no early end
    "extra_body": {"disco": {"pace_tps": "off"}},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def model():
    return str(resolve_model("smollm2-135m"))


def serve(model, folder, *options):
    return running(
        "--preset", "private", "--local", model, *options, DISCO_ATTACH=str(folder), DISCO_STATE="off"
    )


def program(model, **more):
    return AsyncDisco(local=model, preset="private", attach="auto", **more)


async def answer(client, *, at=-1, do=lambda: None):
    """The route record of one answer, which is complete; `do()` is done at its piece number `at`."""
    text, pieces = "", 0
    async with await client.chat.completions.create(**ASKED, stream=True) as stream:
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                pieces += 1
                if pieces == at:
                    do()
    record = stream.route
    assert (record.finish_reason, record.answer_tokens) == ("length", TOKENS)
    assert len(text) > TOKENS
    return record


def has_loaded(client) -> bool:
    return client.router.local.own.capabilities().ready


async def test_a_server_that_is_killed_in_mid_answer_is_replaced_by_the_own_model(model, folder):
    async with program(model) as client:
        with serve(model, folder) as (process, _):
            assert client.router.local.served.serve_pid == process.pid
            record = await answer(client, at=TOKENS // 2, do=process.kill)
            assert [a.failure for a in record.attempts] == ["connection", None]
            assert has_loaded(client)
            process.wait()
            assert live_announcements(folder) == []
            assert len((await answer(client)).attempts) == 1


async def test_a_host_that_is_killed_in_mid_answer_is_started_again_and_announced_again(model, folder):
    async with program(model) as client:
        with serve(model, folder) as (process, _):
            first = client.router.local.served
            record = await answer(client, at=TOKENS // 2, do=lambda: os.kill(first.pid, signal.SIGKILL))
            assert [a.failure for a in record.attempts] == ["connection", None]
            with anyio.fail_after(60):
                while not [one for one in live_announcements(folder) if one.pid != first.pid]:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            await anyio.sleep(1.0)
            assert client.router.local.served.serve_pid == process.pid
            assert len((await answer(client)).attempts) == 1


async def test_a_program_that_is_killed_harms_nobody(model, folder):
    code = "import asyncio, sys; sys.path.insert(0, sys.argv[2])\n"
    code += "from attached.test_processes import answer, program\n"
    code += "async def main():\n async with program(sys.argv[1]) as client:\n"
    code += "  while True: await answer(client, at=3, do=lambda: print('x', flush=True))\n"
    code += "asyncio.run(main())"
    with serve(model, folder):
        async with program(model) as client:
            tests = str(Path(__file__).parents[1])
            path = os.pathsep.join([str(ROOT), tests])
            host = client.router.local.served.pid
            other = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here
                [sys.executable, "-c", code, model, tests],
                stdout=subprocess.PIPE,
                env={**os.environ, "DISCO_ATTACH": str(folder), "PYTHONPATH": path},
            )
            with other:
                assert other.stdout.readline()
                record = await answer(client, at=5, do=other.kill)
            assert len(record.attempts) == 1
            assert client.router.local.served.pid == host
            assert len((await answer(client)).attempts) == 1
            assert not has_loaded(client)


@pytest.mark.slow
@pytest.mark.parametrize(("grace", "runtime"), [("0", "engine"), ("600", "engine"), ("600", "llama-server")])
async def test_a_server_that_is_told_to_end_takes_no_new_answers(model, folder, grace, runtime):
    """Within the grace the answer in progress ends there; without, it goes on here. The file goes at once."""
    async with program(model) as client:
        with serve(model, folder, "--grace", grace, "--runtime", runtime) as (process, _):
            record = await answer(client, at=5, do=lambda: process.send_signal(signal.SIGTERM))
            assert len(record.attempts) == (2 if grace == "0" else 1)
            assert live_announcements(folder) == []
            await answer(client)
            assert has_loaded(client)
            assert process.wait(60) == 0


@pytest.mark.slow
async def test_of_several_servers_another_is_used_when_one_is_gone_and_one_that_comes_later_too(
    model, folder
):
    async with program(model) as client:
        with serve(model, folder) as (first, _), serve(model, folder) as (second, _):
            assert [one.serve_pid for one in live_announcements(folder)] == [first.pid, second.pid]
            await client.warm_up()
            await answer(client, at=20, do=first.kill)
            assert client.router.local.served.serve_pid == second.pid
            second.kill()
            second.wait()
            await answer(client)
            assert has_loaded(client)
        with serve(model, folder) as (third, _):
            await anyio.sleep(1.0)
            assert client.router.local.served.serve_pid == third.pid
            assert len((await answer(client)).attempts) == 1
            assert len(list(folder.iterdir())) == 1  # what the killed ones left was swept away


@pytest.mark.slow
async def test_whenever_it_is_killed_every_answer_is_complete(model, folder):
    """At the proof, in the prefill, in mid-answer, after the end; several answers at once, some of which wait there."""
    rng = random.Random(5)
    loaded = 0
    for _ in range(12):
        async with program(model) as client:
            with serve(model, folder) as (process, _):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(answer, client)
                    await anyio.sleep(rng.uniform(0.0, 0.9))
                    process.kill()
            loaded += has_loaded(client)
    assert loaded > 0


@pytest.mark.slow
async def test_only_a_server_that_holds_a_model_and_may_be_attached_to_is_announced(model, folder):
    with (
        serve(model, folder, "--no-attach"),
        running(
            *("--local", "none", "--preset", "fast"),
            OPENAI_API_KEY="k",
            OPENAI_BASE_URL="http://127.0.0.1:9/v1",
            DISCO_ATTACH=str(folder),
            DISCO_STATE="off",
        ),
    ):
        assert live_announcements(folder) == []
        with serve(model, folder) as (process, _):
            assert [one.serve_pid for one in live_announcements(folder)] == [process.pid]
            async with program(model) as client:
                await answer(client)
                assert not has_loaded(client)


@pytest.mark.slow
async def test_a_verify_server_may_be_attached_to_as_well(model, folder):
    with running("--preset", "private", "--verify", model, DISCO_ATTACH=str(folder), DISCO_STATE="off"):
        async with program(model) as client:
            await answer(client)
            assert not has_loaded(client)
