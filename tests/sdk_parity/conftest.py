"""The folder's own event loop, and its kinds of clients."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from disco import AsyncDisco, Disco


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # as applications of the openai package; both loops are tried in `tests/client`


@pytest.fixture(params=[(openai.OpenAI, Disco), (openai.AsyncOpenAI, AsyncDisco)], ids=["sync", "async"])
def kinds(request: pytest.FixtureRequest) -> Any:
    """A client class of the SDK, and disco's that stands in for it."""
    return request.param


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits half a second before its first retry, where the server names no time."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
