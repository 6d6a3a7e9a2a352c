"""The contract of devices as code: endpoints with turns, warm followers and progress, besides `disco.testing`.

A check is an async function of a `Subject` and an endpoint that is idle; `test_conformance.py` runs each on every
endpoint. `conformance_writing` and `conformance_assist` hold them, and enter them in `OF_DEVICES`.
"""

from __future__ import annotations

from disco.testing import CHECKS, Check, Subject
from disco.testing.asking import ask, collect, complete, first_content, next_event, text_of

__all__ = [
    "CHECKS",
    "OF_DEVICES",
    "Check",
    "Subject",
    "ask",
    "check_of_devices",
    "collect",
    "complete",
    "first_content",
    "next_event",
    "text_of",
]

OF_DEVICES: list[Check] = []


def check_of_devices(function: Check) -> Check:
    OF_DEVICES.append(function)
    return function
