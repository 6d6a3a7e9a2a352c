"""Runs the endpoint contract (`conformance.py`) on every endpoint, under asyncio and under trio.

A real model takes seconds for what a simulated one does in none: it runs each check on one loop, and on the other
with `make test-slow`, which also runs those checks that test nothing of an endpoint's own.
"""

from contextlib import asynccontextmanager

import anyio
import moved_clock
import openai
import pytest
from loops import by_turns
from promptly import cpu_s
from quirks.ollama import Ollama
from quirks.server import running
from quirks.writers import RealModel

from disco import LocalServer
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from tests.endpoints import conformance_following, conformance_stopping, conformance_writing
from tests.endpoints.conformance import CHECKS, Subject

pytestmark = pytest.mark.real

assert conformance_writing, conformance_stopping  # they add their checks
BY_NAME = {check.__name__: check for check in CHECKS}
# Servers have no followers, and do not say how they come on.
OF_SERVERS = [check for check in CHECKS if check.__module__ != conformance_following.__name__]


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


# ---------------------------------------------------------------- simulated, in virtual time


def simulated(place, **numbers):
    numbers = {"prefill_tps": 5000.0, "overhead_s": 0.002, "decode_tps": 400.0, **numbers}
    profile = SimulatedProfile(context_tokens=2048, answer_tokens=2000, **numbers)
    return lambda: SimulatedEndpoint(place, profile, place=place)


SIMULATED = {
    "device": simulated("device", mean_logp=-0.7),
    "server": simulated("server", packet_tokens=3, role_at_s=0.001),
    "echo": simulated("server", seam="echoes", decode_tps=2000.0),
}


def run_simulated(check, make, backend):
    subject = Subject(exact=True, within_s=1.0, work_s=lambda: 0.0)
    run(subject, check, closing(make()), *moved_clock.virtual(backend))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("check", CHECKS, ids=BY_NAME)
@pytest.mark.parametrize("kind", SIMULATED)
def test_simulated(kind, check, backend):
    run_simulated(check, SIMULATED[kind], backend)


def test_the_suite_notices_an_echo():
    leaky = simulated("server", seam="leaks")
    with pytest.raises(AssertionError, match="an echo"):
        run_simulated(BY_NAME["it_continues_exactly_where_the_prefix_ends"], leaky, "asyncio")


# ---------------------------------------------------------------- the model of this machine


@asynccontextmanager
async def shared_unless_closed(check, endpoint, **options):
    """The endpoint that other tests use, too; one of its own for a check that closes it."""
    if "closing_the_endpoint" not in check.__name__:
        yield endpoint
        return
    async with closing(LlamaCppEndpoint(name="closing", context_tokens=2048, threads=1, **options)) as own:
        yield own


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS))
def test_llama_cpp(thread_model, check, backend):
    run(Subject(), check, shared_unless_closed(check, thread_model), backend)


# Written and counted by the same code as in the thread; `test_process.py` compares both.
AS_IN_THE_THREAD = {
    "text_is_always_complete_utf8",
    "the_same_request_gives_the_same_answer",
    "max_tokens_is_respected_under_both_its_names",
    "what_is_written_already_lowers_max_tokens",
    "it_continues_exactly_where_the_prefix_ends",
    "it_goes_on_with_its_own_answer",
    "two_attempts_at_once_both_complete_unmixed",
    "log_probabilities_are_given_to_those_who_want_them",
}


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 1, seldom=AS_IN_THE_THREAD))
def test_llama_cpp_apart(process_model, check, backend):
    subject = Subject(work_s=lambda: cpu_s(process_model.process_id))
    run(subject, check, shared_unless_closed(check, process_model, isolation="process"), backend)


# ---------------------------------------------------------------- servers


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS))
def test_openai_api(check, backend, llama_server):
    client = openai.AsyncOpenAI(api_key="none", base_url=llama_server.base_url, max_retries=0)
    continuation = Continuation(method="completions", template=str(llama_server.gguf))

    @asynccontextmanager
    async def made():
        async with client, closing(OpenAIEndpoint(client=client, continuation=continuation)) as endpoint:
            yield endpoint

    # llama-cpp-python's server notices a hang-up between two chunks only: a prefill goes on to its end.
    subject = Subject(
        prompt_s=15.0,
        within_s=120.0,
        work_s=lambda: cpu_s(llama_server.pid),
        long_tokens=150,
        limits=frozenset({"max_completion_tokens", "context"}),
    )
    run(subject, check, made(), backend)


def run_local(base_url, check, backend):
    endpoint = LocalServer(base_url=base_url, continuation="flags").endpoint()
    # It notices between two batches of its prefill that its client has left.
    run(Subject(prompt_s=10.0, long_tokens=300), check, closing(endpoint), backend)


@pytest.mark.parametrize(("check", "backend"), by_turns(OF_SERVERS, 1))
def test_llama_server(check, backend, native_server):
    run_local(native_server.base_url, check, backend)


# In these something of Ollama's own API takes part; in the rest the llama-server behind it, which `test_llama_server`
# asks. It cuts off what is too long, and its sockets are this process's.
OF_OLLAMA = {
    "it_yields_batches_then_ended_then_stops",
    "max_tokens_is_respected_under_both_its_names",
    "usage_grows_and_is_exact_in_the_end",
    "stopping_before_the_first_token",
    "stopping_in_mid_answer",
    "closing_the_endpoint_stops_its_attempts",
    "capabilities_are_consistent",
}
NOT_OF_OLLAMA = {"a_prompt_over_the_context_fails_as_such", "opening_does_nothing_until_iterated"}
AT_OLLAMA = [check for check in OF_SERVERS if check.__name__ not in NOT_OF_OLLAMA]


@pytest.mark.parametrize(("check", "backend"), by_turns(AT_OLLAMA, seldom=set(BY_NAME) - OF_OLLAMA))
def test_ollama(check, backend, native_server):
    with running(Ollama(RealModel(native_server.base_url))) as server:
        run_local(server.base_url, check, backend)
