"""The endpoint contract on the servers that users run, as the fakes of them answer."""

import anyio
import pytest
from loops import by_turns

from disco.testing import CHECKS
from tests.endpoints.hosts import FAKES

pytestmark = pytest.mark.real

# Of what follows from the HTTP client alone, `test_llama_server` runs these in every run.
SELDOM = {
    "closing_the_endpoint_stops_its_attempts",
    "opening_does_nothing_until_iterated",
}


@pytest.mark.parametrize("host", FAKES, ids=str)
@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 1, SELDOM))
def test_user_server(host, check, backend, request):
    behind = request.getfixturevalue(host.fixture)

    async def main():
        with anyio.fail_after(300):
            async with host.made(behind) as endpoint:
                await check(host.subject, endpoint)

    anyio.run(main, backend=backend)
