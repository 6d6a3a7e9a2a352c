"""What the tests of this folder have in common."""

import anyio.to_thread
import pytest
from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def hook_inline(monkeypatch):
    """The hook runs in a thread; a clock that jumps would not wait for it. The tests on sockets leave it there."""

    async def inline(function, *, abandon_on_cancel=False):
        del abandon_on_cancel
        return function()

    monkeypatch.setattr(anyio.to_thread, "run_sync", inline)
