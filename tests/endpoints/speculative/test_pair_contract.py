"""The endpoint contract on the pair: a model in this process drafts, and a verify server with a real model answers.

The server runs in a thread of this process, so that what it still computes for a stopped answer is measured, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import openai
import pytest
from loops import by_turns
from serving import Served, serving

from disco import AsyncDisco
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative import SpeculativeEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.verifier_client import verifier_facts
from disco.testing import CHECKS, Check, Subject
from disco.testing.asking import ask, collect, complete, first_content, text_of

pytestmark = pytest.mark.real

# The default run has the same ways through the pair in a shorter test.
SELDOM = {
    "stopping_before_the_first_token",
    "closing_the_endpoint_stops_its_attempts",
    "it_continues_exactly_where_the_prefix_ends",
    "an_answer_is_batches_and_an_end_with_exact_usage",
    "of_attempts_at_once_one_is_cancelled_and_the_others_are_unmixed",
    "progress_is_reported_to_those_who_want_it",
    "opening_does_nothing_until_iterated",
    "a_prompts_size_is_what_an_attempt_then_reports",
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    local = EngineEndpoint(model="smollm2-135m", name="verifier", slots=3, context_tokens=2048, threads=1)
    with serving(
        lambda **more: AsyncDisco(local=local, policy="private", **more), verifier=local.engine
    ) as made:
        yield made


@asynccontextmanager
async def pair(served: Served, drafter: EngineEndpoint) -> AsyncIterator[SpeculativeEndpoint]:
    """The pair as a client has it that has been used: its pool is full of idle connections."""
    async with openai.AsyncOpenAI(api_key="none", base_url=served.base_url, max_retries=0) as client:
        pairing = Pairing(drafter.drafter())

        async def connect() -> None:
            await client.models.list()

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(connect)
        assert await pairing.ask(client) is not None
        await pairing.tasks.start(
            anyio.lowlevel.checkpoint
        )  # the task that all of a client's others belong to
        made = SpeculativeEndpoint(OpenAIEndpoint(client=client), pairing, window=4, always=True)
        try:
            yield made
        finally:
            await made.aclose()
            await pairing.aclose()


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 0, SELDOM))
def test_the_pair_keeps_the_contract(
    served: Served, thread_model: EngineEndpoint, check: Check, backend: str
) -> None:
    async def main() -> None:
        with anyio.fail_after(300):
            async with pair(served, thread_model) as made:
                await check(Subject(), made)

    anyio.run(main, backend=backend)


def test_answers_that_are_given_up_hold_no_place(served: Served, thread_model: EngineEndpoint) -> None:
    """More of them than the server has slots; and those that it wrote for itself."""

    async def main() -> None:
        async with pair(served, thread_model) as made:
            for endpoint in (made, made.server):
                for _ in range(4):
                    async with endpoint.open(ask(max_tokens=500)) as attempt:
                        await first_content(attempt)
            with anyio.fail_after(4.0):  # one of which the server only heard no more would keep its slot
                while (await verifier_facts(made.server.client)).busy:  # noqa: ASYNC110 - another process's state
                    await anyio.sleep(0.02)

    anyio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device_tokens", "drafts"),
    [(2048, True), (64, True), (24, False)],
    ids=["ends behind the server's context", "ends in mid-answer", "is too small for the prompt"],
)
def test_the_contexts_of_both_end_as_they_do_alone(device_tokens: int, drafts: bool) -> None:
    """The server's ends the answer; the drafter's ends the drafts, and is no error."""
    local = EngineEndpoint(model="smollm2-135m", name="verifier", slots=1, context_tokens=96, threads=1)
    device = EngineEndpoint(name="device", context_tokens=device_tokens, threads=1)
    request = ask("Count from one to a hundred, in words.", max_tokens=None)

    async def main() -> None:
        async with pair(small, device) as made:
            async with made.open(request) as attempt:
                batches, ended = await collect(attempt)
            alone, _, end, _ = await complete(made.server, request)
            assert (text_of(batches), ended.finish_reason) == (alone, end.finish_reason)
            assert ended.finish_reason == "length"
            used = attempt.usage
            assert used.prompt_tokens + used.completion_tokens >= 95
            assert (attempt.speculation.drafted > 0) == drafts
            assert attempt.speculation.alone_tokens + attempt.speculation.distributed_tokens > 20
        await device.aclose()

    with serving(
        lambda **more: AsyncDisco(local=local, policy="private", **more), verifier=local.engine
    ) as small:
        anyio.run(main)
