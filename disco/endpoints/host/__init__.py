"""A model on this machine in a process of its own: the process, what is asked of it, and the endpoint over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disco._lazy import loader  # the programs of hosts need no endpoint

if TYPE_CHECKING:
    from disco.endpoints.host.host_endpoint import HostEndpoint

__all__ = ["HostEndpoint"]

__getattr__ = loader(__name__, {"host_endpoint": ("HostEndpoint",)})
