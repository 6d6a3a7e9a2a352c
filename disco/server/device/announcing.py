"""What `disco serve` writes down for the other programs of its user, so that they can use its model."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
from collections.abc import Iterator

from disco.endpoints.attached.announcement import Announcement, ServedModel, announced, serve_folder
from disco.endpoints.attached.process_identity import process_start
from disco.endpoints.contract import Endpoint

__all__ = ["announcing", "may_be_attached_to"]


def may_be_attached_to(endpoint: Endpoint | None) -> bool:
    """Return whether other programs could use it: it is a model that this process itself holds."""
    return endpoint is not None and endpoint.reach == "device" and hasattr(endpoint, "fingerprint")


@contextlib.contextmanager
def announcing(endpoint: Endpoint, key: str, *, host: str, port: int) -> Iterator[None]:
    """Announce the model while the context is open. Nothing is announced where programs here could not reach it.

    Args:
        endpoint: the model, loaded.
        key: the attach key.
        host: where the server listens, as the socket has it.
        port: the same.
    """
    here, folder = _loopback(host), serve_folder()
    fingerprint = getattr(endpoint, "fingerprint", None)
    if here is None or folder is None or fingerprint is None:
        yield
        return
    can = endpoint.capabilities()
    model = ServedModel(
        name=str(getattr(endpoint, "profile_name", endpoint.name)),
        fingerprint=fingerprint,
        context_tokens=can.context_tokens,
        vocabulary=can.vocabulary,
        parameters=getattr(endpoint, "parameters", None),
        features=tuple(sorted(can.features or ())),
        logp=can.logp,
        label_scores=can.label_scores,
        progress=can.progress,
    )
    announcement = Announcement(
        pid=os.getpid(),
        process_start=process_start(os.getpid()),
        started_s=time.time(),
        host=here,
        port=port,
        key=key,
        model=model,
    )
    with announced(announcement, folder):
        yield


def _loopback(host: str) -> str | None:
    """Return the address of this machine at which a server that listens on `host` is reached; None: at none."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address) if address.is_loopback else None
