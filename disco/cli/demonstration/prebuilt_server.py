"""A real llama-server on this machine, in a process of its own, for demonstrations without a compiler."""

from __future__ import annotations

from disco.cli.demonstration.demo_server import DemoServer
from disco.endpoints.prebuilt.prebuilt_endpoint import require_prebuilt
from disco.endpoints.prebuilt.server_process import (
    ServerSettings,
    server_command,
    server_environment,
    settings_line,
)

__all__ = ["PrebuiltDemoServer"]


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
            )
        )
