"""Runs the endpoint contract (`disco.testing`; `conformance.py` for devices) on every endpoint, on asyncio and on trio.

A real model takes seconds for what a simulated one does in none: it runs each check on one loop, and on the other
with `make test-slow`.
"""

from contextlib import asynccontextmanager

import anyio
import httpx2
import moved_clock
import openai
import pytest
from loops import by_turns

from disco import LocalServer
from disco.endpoints.continuation import Continuation
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.testing.answering import it_continues_exactly_where_the_prefix_ends
from disco.testing.stopwatch import cpu_s
from tests.endpoints import conformance_assist  # noqa: F401 - its checks enter OF_DEVICES
from tests.endpoints.conformance import CHECKS, NEEDED, OF_DEVICES, Subject

pytestmark = pytest.mark.real


def run(subject, check, endpoint, backend, options=None):
    async def main():
        with anyio.fail_after(300):
            async with endpoint as made:
                await check(subject, made)

    anyio.run(main, backend=backend, backend_options=options)


@asynccontextmanager
async def closing(endpoint):
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


def run_simulated(check, backend, place="server", **numbers):
    speeds = {"prefill_tps": 5000.0, "overhead_s": 0.002, "decode_tps": 400.0}
    profile = SimulatedProfile(context_tokens=2048, answer_tokens=2000, **(speeds | numbers))
    made = closing(SimulatedEndpoint(place, profile, place=place))
    run(Subject(exact=True, within_s=1.0, work_s=lambda: 0.0), check, made, *moved_clock.virtual(backend))


SERVERS = [{"packet_tokens": 3, "role_at_s": 0.001}, {"seam": "echoes", "decode_tps": 2000.0}]
SIMULATED = [({"place": "device", "mean_logp": -0.7}, check) for check in (*CHECKS, *OF_DEVICES)]
SIMULATED += [(numbers, check) for numbers in SERVERS for check in CHECKS]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("numbers", "check"), SIMULATED, ids=lambda of: getattr(of, "__name__", None))
def test_simulated(numbers, check, backend):
    run_simulated(check, backend, **numbers)


def test_the_suite_notices_an_echo():
    with pytest.raises(AssertionError, match="an echo"):
        run_simulated(it_continues_exactly_where_the_prefix_ends, "asyncio", seam="leaks")


@asynccontextmanager
async def shared_unless_closed(check, endpoint, kind=HostEndpoint, **options):
    """The endpoint that other tests use, too; one of its own for a check that closes it."""
    if "closing_the_endpoint" not in check.__name__:
        yield endpoint
        return
    async with closing(kind(name="closing", context_tokens=2048, threads=1, **options)) as own:
        yield own


@pytest.mark.parametrize(("check", "backend"), by_turns([*CHECKS, *OF_DEVICES]))
def test_llama_cpp(thread_model, check, backend):
    run(Subject(), check, shared_unless_closed(check, thread_model, EngineEndpoint, slots=1), backend)


# `test_llama_cpp` runs the others on the same engine in every run.
SEVERAL = {"an_attempt_that_waits", "a_paused_", "parking", "a_follower_reads", "an_attempt_can_become"}
SELDOM_SEVERAL = {
    one.__name__
    for one in (*CHECKS, *OF_DEVICES)
    if not any(one.__name__.startswith(what) for what in SEVERAL)
}


@pytest.mark.parametrize(("check", "backend"), by_turns([*CHECKS, *OF_DEVICES], 1, SELDOM_SEVERAL))
def test_llama_cpp_with_several_slots(slots_model, check, backend):
    run(Subject(slots=4), check, shared_unless_closed(check, slots_model, EngineEndpoint, slots=4), backend)


# `test_engine_host.py` compares what the engine writes in this process and in a host.
@pytest.mark.parametrize(("check", "backend"), by_turns([*CHECKS, *OF_DEVICES], 1))
def test_engine_host(engine_host, check, backend):
    subject = Subject(work_s=lambda: cpu_s(engine_host.process_id))
    run(subject, check, shared_unless_closed(check, engine_host, runtime="engine", slots=1), backend)


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS))
def test_openai_api(check, backend, llama_server):
    @asynccontextmanager
    async def made():
        continuation = Continuation(method="completions", template=str(llama_server.gguf))
        async with (
            # llama-server ends a connection after a streamed answer.
            httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0)) as http,
            openai.AsyncOpenAI(
                api_key="none", base_url=llama_server.base_url, max_retries=0, http_client=http
            ) as client,
            closing(OpenAIEndpoint(client=client, continuation=continuation)) as endpoint,
        ):
            yield endpoint

    subject = Subject(prompt_s=10.0, long_tokens=300, work_s=lambda: cpu_s(llama_server.pid))
    run(subject, check, made(), backend)


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 1))
def test_llama_server(check, backend, native_server):
    endpoint = LocalServer(base_url=native_server.base_url, continuation="flags").endpoint()
    # It notices between two batches of its prefill that its client has left.
    run(Subject(prompt_s=10.0, long_tokens=300), check, closing(endpoint), backend)


# `test_llama_server` runs these on the same server in every run.
SELDOM_SERVER = {one.__name__ for one in CHECKS if "closing" not in one.__name__}


# A check that needs what llama-server lacks is skipped, and names it.
@pytest.mark.parametrize(("check", "backend"), by_turns([*CHECKS, *OF_DEVICES], 1, SELDOM_SERVER))
def test_server_host(server_host, check, backend):
    subject = Subject(work_s=lambda: cpu_s(server_host.process_id))
    run(subject, check, shared_unless_closed(check, server_host, runtime="llama-server", slots=1), backend)


def test_of_what_checks_need_the_engine_has_all_and_llama_server_all_but_two(
    thread_model, engine_host, server_host
):
    for able in (thread_model.capabilities(), engine_host.capabilities()):
        assert [name for name in sorted(NEEDED) if not getattr(able, name)] == []
    # The list stands in the documentation of the local model, too.
    server = server_host.capabilities()
    assert [name for name in sorted(NEEDED) if not getattr(server, name)] == ["follows", "pauses"]
