"""One healthy server and one proxy before it, for all tests of this folder; each test arms the proxy anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import moved_clock
import pytest
from faults.in_memory import no_thread  # noqa: F401 - a fixture
from faults.proxy_server.fault import Direction, Moment
from faults.proxy_server.origin import Origin, origin_server
from faults.proxy_server.proxy import FaultProxy, fault_proxy


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One event loop is enough for most of the matrix; `test_server_fails` runs all of it on both.

    Its clock is moved by `lab.get` while nothing can come.
    """
    return moved_clock.backend("asyncio")


@pytest.fixture(scope="session")
def origin() -> Iterator[Origin]:
    with origin_server() as server:
        yield server


@pytest.fixture(scope="session")
def _the_proxy(origin: Origin) -> Iterator[FaultProxy]:
    with fault_proxy(origin.base_url) as proxy:
        yield proxy


@pytest.fixture
def proxy(_the_proxy: FaultProxy, origin: Origin, request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    _the_proxy.arm([])
    _the_proxy.passages.clear()
    _the_proxy.asked = 0
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    # A server can only notice that its client has left while it still writes.
    up = case is not None and case.fault.direction is Direction.UP and case.fault.moment is not Moment.REQUEST
    origin.token_s = 0.002 if up else 0.0
    yield _the_proxy
    _the_proxy.wait_idle()
    assert not _the_proxy.errors
