"""What the tests of this folder have in common."""

from faults.in_memory import anyio_backend, no_thread  # noqa: F401 - fixtures
