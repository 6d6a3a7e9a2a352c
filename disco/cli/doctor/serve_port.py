"""`disco serve`: a running one to attach to, and whether its port is free."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from disco.cli.doctor.finding import Facts, Finding, Setup, command, does_not, works
from disco.cli.doctor.server_address import ADDRESS, address
from disco.client.endpoint_catalog.attaching import attaching
from disco.client.endpoint_catalog.local_servers import is_loopback
from disco.client.endpoint_catalog.runtimes import model_endpoint
from disco.endpoints.attached.announcement import VARIABLE, Announcement, live_announcements, serve_folder
from disco.endpoints.attached.running_host import HostGoneError, RunningHost

if TYPE_CHECKING:
    from disco.endpoints.contract import Endpoint

__all__ = ["check_attach", "check_port"]


async def check_attach(setup: Setup, facts: Facts) -> list[Finding] | Finding:
    """Look for the announcements of running servers, and ask each host whether it lives."""
    folder = serve_folder()
    if folder is None:
        return works("attach", f"{VARIABLE} switches it off: every program loads its own model.")
    if folder.exists() and not _is_closed(folder):
        return does_not(
            "attach",
            f"{folder} is open to other users, so no announcement in it counts.",
            f"chmod 700 {shlex.quote(str(folder))}, or name another folder in {VARIABLE}",
        )
    live = live_announcements(folder)
    if not live:
        return works("attach", "No disco serve of this user runs here; each program loads its own model.")
    fits = _served_port(setup)
    found = []
    for one in live:
        try:
            await RunningHost(one, name=one.model.name).serving()
        except HostGoneError:
            found.append(
                does_not(
                    "attach",
                    f"The model of a disco serve (process {one.serve_pid}) is announced, and its host "
                    f"(process {one.pid}) does not answer.",
                    f"End that disco serve, or set {VARIABLE}=off",
                )
            )
            continue
        if one.serve_port == fits:
            facts.served_port = one.serve_port
            told = f'programs with --local {setup.shown_local} and attach="auto" use its model'
        elif not setup.local:
            told = "it has a local model"
        elif any(one.model == other.model and other.serve_port == fits for other in live):
            told = f"so does the one on port {fits}, which programs use"
        else:
            told = f"it has another model than --local {setup.shown_local}, or less context"
        found.append(
            works("attach", f"A disco serve on port {one.serve_port} runs {one.model.name}: {told}.")
        )
    return found


def check_port(setup: Setup, facts: Facts) -> Finding:
    """Look whether `disco serve` could listen on its port."""
    del facts
    if _is_free(setup.port):
        return works("port", f"Port {setup.port} is free for disco serve.")
    server = address()
    if server is not None and server.port == setup.port and is_loopback(server.host):
        another = command("serve", "--port", str(_a_free_one()))
        return works("port", f"Port {setup.port} is that of the server in {ADDRESS}. Beside it: {another}")
    folder = serve_folder()
    live = [] if folder is None else live_announcements(folder)
    if any(one.serve_port == setup.port for one in live):
        return works(
            "port", f'disco serve listens on port {setup.port}: base_url="http://127.0.0.1:{setup.port}/v1".'
        )
    return does_not(
        "port",
        f"Port {setup.port} is taken by another program.",
        f"{command('serve', '--port', str(_a_free_one()))}",
    )


def _served_port(setup: Setup) -> int | None:
    """Return the port of the server whose model a client with this `local` would use."""
    if setup.local is None or not setup.names_a_model:
        return None
    endpoint: Endpoint = attaching(model_endpoint(setup.local, runtime=setup.runtime), "auto", drafts=False)
    served: Announcement | None = getattr(endpoint, "served", None)
    return None if served is None else served.serve_port


def _is_closed(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return os.name != "posix" or (found.st_uid == os.getuid() and not found.st_mode & 0o077)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        if os.name == "posix":  # as the server itself; on Windows, it would allow a port in use
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _a_free_one() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])
