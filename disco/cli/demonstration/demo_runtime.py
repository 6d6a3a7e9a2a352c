"""What the demonstrations run on: llama-cpp-python, or without a compiler the prebuilt llama-server."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from disco.cli.demonstration.demo_server import DemoServer
from disco.cli.demonstration.prebuilt_server import PrebuiltDemoServer
from disco.client.endpoint_catalog.runtimes import Runtime, chosen_runtime, is_installed
from disco.errors import ConfigurationError

__all__ = ["require_compiled", "server_class"]

_OF_ITS_SERVER: Final = (
    "starlette_context"  # of the packages that llama_cpp.server needs, the one that few others do
)
_NEEDS: Final = {
    "speculate": "drafts what another model checks",
}
"""Of the demonstrations that the prebuilt runtime cannot show: what their device does."""


def server_class(runtime: Runtime) -> type[DemoServer]:
    """Return the demonstration's server for a runtime: the compiled one's only where its packages are there."""
    has_packages = find_spec(_OF_ITS_SERVER) is not None or not is_installed("prebuilt")
    return DemoServer if chosen_runtime(runtime) == "compiled" and has_packages else PrebuiltDemoServer


def require_compiled(demonstration: str, runtime: Runtime) -> None:
    """Raise an error with the remedy where a demonstration needs more than the runtime can do.

    Raises:
        ConfigurationError: the runtime is the prebuilt one, and the demonstration needs llama-cpp-python.
    """
    if demonstration in _NEEDS and chosen_runtime(runtime) == "prebuilt":
        raise ConfigurationError(
            f"disco demo --{demonstration} needs a device that {_NEEDS[demonstration]}, which llama-cpp-python can and "
            f'the prebuilt runtime cannot. Type: pip install "disco-llm[demo,server]" (compiles llama.cpp, which takes '
            f"minutes), then disco demo --{demonstration}"
        )
