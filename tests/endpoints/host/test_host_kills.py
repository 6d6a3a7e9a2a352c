"""The host of the local model is killed in each phase of its work; the program of 200 is bench_host_kills.py."""

from __future__ import annotations

import contextlib
import os
import signal

import anyio
import pytest
from faults.host_kills import OF_LLAMA_SERVER, PHASES, Lab, verify_server
from server.command_process import signals
from servers import model_server

from disco.endpoints.host import HostEndpoint
from disco.errors import FailureKind
from tests.endpoints.llamacpp.answers import ask, fails, until

pytestmark = [pytest.mark.anyio, pytest.mark.real, signals]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def server():
    with model_server() as server:
        yield server


@pytest.mark.parametrize("program", ["engine", "llama-server"])
async def test_every_answer_is_complete_and_exact(program, server):
    phases = PHASES if program == "engine" else OF_LLAMA_SERVER
    with contextlib.ExitStack() as stack:
        verifier = stack.enter_context(verify_server()) if "drafting" in phases else None
        lab = Lab(server, verifier, program, seed=1)
        try:
            trials = [await lab.until_struck(phase) for phase in phases]
        finally:
            await lab.aclose()
    assert {one.phase: one.wrong for one in trials} == {phase: [] for phase in phases}
    assert (
        sum(one.struck for one in trials) >= len(phases) - 1
    )  # on a busy machine an answer may be over before


@pytest.mark.parametrize("program", ["engine", "llama-server"])
async def test_a_host_that_was_stopped_is_replaced_when_it_is_asked(program):
    endpoint = HostEndpoint(runtime=program, context_tokens=512, threads=1, slots=1, hang_s=1.0)
    try:
        await endpoint.warm_up()
        stopped = endpoint.process_id
        os.kill(stopped, signal.SIGSTOP)
        with anyio.fail_after(60):
            failure = await fails(endpoint, ask("Hi"))
        assert failure.kind is FailureKind.CRASHED
        with anyio.fail_after(60):
            await until(lambda: endpoint.process_id != stopped and endpoint.capabilities().ready)
    finally:
        await endpoint.aclose()
