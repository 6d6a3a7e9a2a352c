"""Baseline policies that start the same side for every request: one of the two, or both at once."""

from __future__ import annotations

from dataclasses import dataclass

from disco.candidate import Candidate
from disco.dispatch.policies.policy import alone, expected
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
        features: Features,
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        if device is None:
            return alone(None, server, features.prompt_tokens)
        return (Start(device.name, 0.0, expected("device_only", device, features.prompt_tokens)),)


@dataclass(frozen=True, slots=True)
class ServerOnly:
    """The server answers; the device only serves what the server cannot.

    Attributes:
        name: the policy's name in presets.
    """

    name: str = "server_only"

    def starts(
        self,
        features: Features,
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        if server is None:
            return alone(device, None, features.prompt_tokens)
        return (Start(server.name, 0.0, expected("server_first", server, features.prompt_tokens)),)


@dataclass(frozen=True, slots=True)
class Race:
    """Both start at once: the shortest TTFT, at the cost of both.

    Attributes:
        name: the policy's name in presets.
    """

    name: str = "race"

    def starts(
        self,
        features: Features,
        device: Candidate | None,
        server: Candidate | None,
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server, features.prompt_tokens)
        tokens = features.prompt_tokens
        return tuple(Start(one.name, 0.0, expected("race", one, tokens)) for one in (device, server))
