"""The endpoint contract on a verify server's engine, with `make test-slow`. The short way: test_verify_command.py."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from disco.endpoints.llamacpp import EngineEndpoint
from disco.testing import CHECKS, Subject

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared():
    endpoint = EngineEndpoint(model="smollm2-135m", name="verifier", slots=2, context_tokens=2048, threads=1)
    anyio.run(endpoint.warm_up)
    yield endpoint
    anyio.run(endpoint.aclose)


@asynccontextmanager
async def unless_closed(check, shared):
    if "closing_the_endpoint" not in check.__name__:
        yield shared
        return
    own = EngineEndpoint(model="smollm2-135m", name="closing", slots=2, context_tokens=2048, threads=1)
    try:
        yield own
    finally:
        await own.aclose()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_engine_keeps_the_contract(shared, check, backend):
    async def main():
        with anyio.fail_after(300):
            async with unless_closed(check, shared) as made:
                await check(Subject(), made)

    anyio.run(main, backend=backend)
