"""All checks in one list."""

from __future__ import annotations

from disco.testing.answering import ANSWERING
from disco.testing.stopping import STOPPING
from disco.testing.subject import Check

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (*STOPPING, *ANSWERING)
"""Each takes a `Subject` and an endpoint that is idle, and leaves it idle, unless it closes it."""
