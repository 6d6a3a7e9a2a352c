"""The endpoint contract on servers as the local side: llama-server itself, and one of quirks over it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from endpoints.conformance import CHECKS, Subject
from loops import by_turns
from quirks.ollama import Ollama
from quirks.server import running
from quirks.writers import RealModel

from disco import LocalServer

CONTEXT_TOKENS = 2048
# Ollama cuts off what is too long; its sockets are this process's.
QUIRKS = ("a_prompt_over_the_context_fails_as_such", "opening_does_nothing_until_iterated")
OF_OLLAMA = [check for check in CHECKS if check.__name__ not in QUIRKS]
# In these nothing of Ollama's own API takes part: the llama-server behind it, which `test_llama_server` asks, does it.
AS_BEHIND_IT = (
    "it_continues_exactly_where_the_prefix_ends",
    "text_is_always_complete_utf8",
    "the_same_request_gives_the_same_answer",
    "closing_before_the_start",
    "closing_after_the_end",
    "two_attempts_at_once_both_complete_unmixed",
    "cancelling_one_of_two_leaves_the_other",
)


def run(base_url, check, backend):
    @asynccontextmanager
    async def make():
        endpoint = LocalServer(base_url=base_url, continuation="flags").endpoint()
        try:
            yield endpoint
        finally:
            await endpoint.aclose()

    # It notices between two batches of its prefill that its client has left.
    subject = Subject(make, CONTEXT_TOKENS, prompt_s=10.0, long_tokens=300)

    async def main():
        with anyio.fail_after(90):
            async with subject.make() as endpoint:
                await check(subject, endpoint)

    anyio.run(main, backend=backend)


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 1))
def test_llama_server(check, backend, native_server):
    run(native_server.base_url, check, backend)


@pytest.mark.parametrize(("check", "backend"), by_turns(OF_OLLAMA, seldom=AS_BEHIND_IT))
def test_ollama(check, backend, native_server):
    with running(Ollama(RealModel(native_server.base_url))) as server:
        run(server.base_url, check, backend)
