"""The documented table of what each host can do is what each of them does."""

import anyio
import pytest

from tests.endpoints.host_abilities import abilities
from tests.endpoints.host_table import FOUND, read_table
from tests.endpoints.hosts import HOSTS

pytestmark = pytest.mark.real


@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_the_table_says_what_the_host_does(host, request):
    behind = request.getfixturevalue(host.fixture)

    async def ask():
        with anyio.fail_after(300):
            async with host.made(behind) as endpoint:
                return await abilities(endpoint)

    found = anyio.run(ask)
    request.config.stash.setdefault(FOUND, {})[host.title] = found
    assert read_table()[host.title] == found, "run python tests/endpoints/host_table.py --write"


def test_no_host_leaves_out_a_demand_without_a_word():
    """Where a server would, disco refuses it first."""
    assert [
        (host, name) for host, can in read_table().items() for name, does in can.items() if does == "ignored"
    ] == []
