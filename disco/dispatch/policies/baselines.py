"""Baseline policies that start the same side for every request: one of the two, or both at once."""

from __future__ import annotations

from dataclasses import dataclass

from disco.candidate import Candidate
from disco.dispatch.policies.policy import alone
from disco.dispatch.request_features import Features
from disco.plan import Start

__all__ = ["DeviceOnly", "Race", "ServerOnly"]


@dataclass(frozen=True, slots=True)
class DeviceOnly:
    """The device answers; a server only serves what the device cannot.

    Attributes:
        name: the policy's name in presets.
    """

    name: str = "device_only"

    def starts(
        self,
        features: Features,  # noqa: ARG002 - a policy's signature
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        return alone(device, None) if device is not None else alone(None, server)


@dataclass(frozen=True, slots=True)
class ServerOnly:
    """The server answers; the device only serves what the server cannot.

    Attributes:
        name: the policy's name in presets.
    """

    name: str = "server_only"

    def starts(
        self,
        features: Features,  # noqa: ARG002 - a policy's signature
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        return alone(None, server) if server is not None else alone(device, None)


@dataclass(frozen=True, slots=True)
class Race:
    """Both start at once: the shortest TTFT, at the cost of both.

    Attributes:
        name: the policy's name in presets.
    """

    name: str = "race"

    def starts(
        self,
        features: Features,  # noqa: ARG002 - a policy's signature
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server)
        return Start(device.name), Start(server.name)
