"""What virtual time needs of the SDK: no thread, which a clock that jumps would not wait for."""

from __future__ import annotations

import openai._base_client
import pytest


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK finds out in a thread which platform it is on, before the first request of every client."""

    def inline(function):
        async def call(*arguments, **named):
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(openai._base_client, "asyncify", inline)
