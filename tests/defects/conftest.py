"""All of these tests but those of real processes and models are in virtual time."""

from __future__ import annotations

from faults.in_memory import no_thread  # noqa: F401 - a fixture
