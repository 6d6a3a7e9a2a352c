"""The contract of devices as code: endpoints with turns, warm followers and progress, besides `disco.testing`.

A check is an async function of a `Subject` and an endpoint that is idle; `test_conformance.py` runs each on every
endpoint. `conformance_writing` and `conformance_assist` hold them, and enter them in `OF_DEVICES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from disco.endpoints.contract import Endpoint
from disco.testing import CHECKS, Check, Subject
from disco.testing.asking import ask, collect, complete, first_content, next_event, text_of

__all__ = [
    "CHECKS",
    "NEEDED",
    "OF_DEVICES",
    "Check",
    "Subject",
    "ask",
    "check_of_devices",
    "collect",
    "complete",
    "first_content",
    "needs",
    "next_event",
    "text_of",
]

OF_DEVICES: list[Check] = []
NEEDED: set[str] = set()  # capabilities that some check needs


def check_of_devices(function: Check) -> Check:
    OF_DEVICES.append(function)
    return function


def needs(*abilities: str) -> Callable[[Check], Check]:
    """Skip the check, with the names of what is missing, on an endpoint that lacks one of these `Capabilities`."""
    NEEDED.update(abilities)

    def needing(function: Check) -> Check:
        @functools.wraps(function)
        async def gated(subject: Subject, endpoint: Endpoint) -> None:
            able = endpoint.capabilities()
            if missing := [name for name in abilities if not getattr(able, name)]:
                pytest.skip(f"the endpoint lacks: {', '.join(missing)}")
            await function(subject, endpoint)

        return gated

    return needing
