"""What `disco serve` writes down for the other programs of its user, so that they can use the host of its model."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from disco.endpoints.attached.announcement import Announcement, ServedModel, announce, serve_folder
from disco.endpoints.attached.process_identity import process_start
from disco.endpoints.host import HostEndpoint

__all__ = ["announcing"]


@contextlib.contextmanager
def announcing(endpoint: HostEndpoint, *, port: int) -> Iterator[None]:
    """Announce the endpoint's host while the context is open: that which runs at the time, and none while none does.

    Args:
        endpoint: its model is loaded.
        port: where the server listens.
    """
    folder, fingerprint = serve_folder(), endpoint.fingerprint
    if folder is None or fingerprint is None:
        yield
        return
    told = _Announcer(endpoint, folder, fingerprint, port)
    endpoint.on_host_change = told.look
    try:
        told.look()
        yield
    finally:
        endpoint.on_host_change = None
        told.end()


class _Announcer:
    """Keeps the announcement true; from any thread. Mutable, under `_lock`: `_file`, `_is_over`."""

    def __init__(self, endpoint: HostEndpoint, folder: Path, fingerprint: str, port: int) -> None:
        self._endpoint = endpoint
        self._folder = folder
        self._fingerprint = fingerprint
        self._port = port
        self._began_at = time.time()
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._is_over = False

    def look(self) -> None:
        """Announce the host that runs now."""
        with self._lock:
            if self._is_over:
                return
            self._remove()
            if (announcement := self._announcement()) is not None:
                self._file = announce(announcement, self._folder)

    def end(self) -> None:
        """Announce nothing any more."""
        with self._lock:
            self._is_over = True
            self._remove()

    def _remove(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _announcement(self) -> Announcement | None:
        host, endpoint = self._endpoint.host, self._endpoint
        if host is None:
            return None
        settings = host.settings
        model = ServedModel(
            name=endpoint.full_name,
            path=os.path.abspath(settings.path),  # noqa: PTH100 - as it is, without following links
            fingerprint=self._fingerprint,
            context_tokens=settings.context_tokens,
            slots=settings.slots,
            threads=settings.threads,
            batch_tokens=settings.batch_tokens,
            vocabulary=endpoint.vocabulary(),
            parameters=endpoint.parameters,
        )
        port = None if host.socket is not None else int(host.base_url.rpartition(":")[2].partition("/")[0])
        return Announcement(
            pid=host.pid,
            process_start=process_start(host.pid),
            started_s=self._began_at,
            serve_pid=os.getpid(),
            serve_port=self._port,
            program=endpoint.runtime,
            socket=host.socket,
            port=port,
            key=host.api_key,
            load_s=host.load_s,
            model=model,
        )
