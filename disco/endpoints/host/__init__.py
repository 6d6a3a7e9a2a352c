"""A model on this machine in a process of its own: the process, what is asked of it, and the endpoint over it."""

from __future__ import annotations

from disco.endpoints.host.host_endpoint import HostEndpoint

__all__ = ["HostEndpoint"]
