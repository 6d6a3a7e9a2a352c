"""One healthy server and one proxy before it, for all tests of this folder; each test arms the proxy anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures
from faults.proxy_server.origin import origin_server
from faults.proxy_server.proxy import FaultProxy, fault_proxy


@pytest.fixture(scope="session")
def proxy() -> Iterator[FaultProxy]:
    with origin_server() as origin, fault_proxy(origin) as proxy:
        yield proxy
