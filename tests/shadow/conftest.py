"""What the tests of this folder have in common."""

from faults.in_memory import no_thread  # noqa: F401 - a fixture
