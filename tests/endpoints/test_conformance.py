"""Runs the endpoint contract (`conformance.py`) on every endpoint, under asyncio and under trio.

A real model takes seconds for what a simulated one does in none: it runs each check on one loop, and on the other
with `make test-slow`.
"""

from contextlib import asynccontextmanager

import anyio
import moved_clock
import openai
import pytest
from loops import by_turns
from promptly import cpu_s

from disco.cli.demonstration.demo_server import DemoServer
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from tests.endpoints import conformance_following
from tests.endpoints.conformance import CHECKS, Subject

assert conformance_following  # it adds its checks

CONTEXT_TOKENS = 2048


def simulated(place, **numbers):
    numbers = {"prefill_tps": 5000.0, "overhead_s": 0.002, "decode_tps": 400.0, **numbers}
    profile = SimulatedProfile(context_tokens=CONTEXT_TOKENS, answer_tokens=2000, **numbers)

    @asynccontextmanager
    async def make():
        endpoint = SimulatedEndpoint(place, profile, place=place)
        try:
            yield endpoint
        finally:
            await endpoint.aclose()

    return Subject(make, CONTEXT_TOKENS, exact=True, within_s=1.0, work_s=lambda: 0.0)


SIMULATED = {
    "simulated-device": simulated("device", mean_logp=-0.7),
    "simulated-server": simulated("server", packet_tokens=3, role_at_s=0.001),
    "simulated-echo": simulated("server", seam="echoes", decode_tps=2000.0),
}


def run(subject, check, backend, options=None):
    async def main():
        with anyio.fail_after(300):
            async with subject.make() as endpoint:
                await check(subject, endpoint)

    anyio.run(main, backend=backend, backend_options=options)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", SIMULATED.values(), ids=SIMULATED)
def test_simulated(subject, check, backend):
    run(subject, check, *moved_clock.virtual(backend))


@pytest.fixture(scope="module")
def llama_cpp():
    """One model, which outlives the event loops; the check that closes it costs a new one."""
    made = []

    @asynccontextmanager
    async def make():
        if not made or not made[-1].capabilities().ready:
            made.append(LlamaCppEndpoint(name="device", context_tokens=CONTEXT_TOKENS, threads=1))
        yield made[-1]

    yield Subject(make, CONTEXT_TOKENS)
    for endpoint in made:
        anyio.run(endpoint.aclose)


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS))
def test_llama_cpp(llama_cpp, check, backend):
    run(llama_cpp, check, backend)


@pytest.fixture(scope="module")
def apart():
    """The same in a process of its own, which outlives the event loops; the check that closes it costs a new one."""
    made = []

    @asynccontextmanager
    async def make():
        if not made or made[-1].process_id is None:
            made.append(
                LlamaCppEndpoint(name="device", context_tokens=CONTEXT_TOKENS, threads=1, isolation="process")
            )
        yield made[-1]

    def work_s():
        return cpu_s(*(one.process_id for one in made if one.process_id is not None))

    yield Subject(make, CONTEXT_TOKENS, work_s=work_s)
    for endpoint in made:
        anyio.run(endpoint.aclose)


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 1))
def test_llama_cpp_apart(apart, check, backend):
    run(apart, check, backend)


@pytest.fixture(scope="module")
def server():
    with DemoServer(context_tokens=CONTEXT_TOKENS) as server:
        yield server


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS))
def test_openai_api(check, backend, server):
    @asynccontextmanager
    async def make():
        client = openai.AsyncOpenAI(api_key="none", base_url=server.base_url, max_retries=0)
        continuation = Continuation(method="completions", template=str(server.model))
        async with client:
            endpoint = OpenAIEndpoint(client=client, name="server", continuation=continuation)
            try:
                yield endpoint
            finally:
                await endpoint.aclose()

    # llama-cpp-python's server notices a hang-up between two chunks only: a prefill goes on to its end.
    limits = frozenset({"max_completion_tokens", "context"})
    subject = Subject(
        make,
        CONTEXT_TOKENS,
        prompt_s=15.0,
        within_s=120.0,
        work_s=lambda: cpu_s(server.pid),
        long_tokens=150,
        limits=limits,
    )
    run(subject, check, backend)


LEAKY = simulated("server", seam="leaks")


def test_the_suite_notices_an_echo():
    by_name = {check.__name__: check for check in CHECKS}
    with pytest.raises(AssertionError, match="an echo"):
        run(LEAKY, by_name["it_continues_exactly_where_the_prefix_ends"], *moved_clock.virtual("asyncio"))
