"""The host program "llama-server": llama.cpp's own server, out of the wheel `xllamacpp`, for one model.

Started by its path, so that it imports nothing of disco and is there in a tenth of a second. The first line of stdin
holds its settings as JSON (`HostSettings`), the key of its API among them: other users of the machine can read a
command line. Once the server answers, it prints `READY` and its address. It ends when stdin does: so it never outlives
the process that started it, however that one ended. What it does for that serves the other host program, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

READY = "disco-host-ready"
"""How the line begins that holds the host's address."""
REFUSED = 3
"""The exit code where the host could not load the model; its last line on stderr may say why."""
OOM_SCORE = "500"  # of 1000: when memory runs out, the system ends this process before the application

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0  # how often it looks whether its parent is still there
_ERRORS_ONLY = 1
_IMAGE_TOKENS = 512  # the batch of llama.cpp's own default, for which its models with images are made


def main() -> NoReturn:
    """Serve the model that stdin names, until stdin ends."""
    settings = begin()
    if settings["socket"] is None:
        _bind_once(settings["port"])
    xllamacpp: Any = importlib.import_module("xllamacpp")  # now, so that the above holds while it loads

    try:
        server = xllamacpp.Server(_params(xllamacpp, settings))
    except RuntimeError:  # its log, on stderr, says why
        os._exit(REFUSED)
    outlive_the_thread_that_started_this()
    try:
        sys.stdout.write(f"{READY} {server.listening_address}\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
    finally:  # also where nobody reads any more what it prints; the server's destructor may wait for ever
        leave(settings)


def begin() -> dict[str, Any]:
    """Read the settings, and make this process one that ends with the one that started it; return the settings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles Ctrl-C
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _end_with(settings)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    return settings


def leave(settings: dict[str, Any]) -> NoReturn:
    """End this process, and take its socket's folder away: the one that made it may be gone."""
    if settings["socket"] is not None:
        path = Path(settings["socket"])
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()
    os._exit(0)


def outlive_the_thread_that_started_this() -> None:
    """Let Linux end this process no more when the thread ends that started it: the model is loaded."""
    _when_the_starter_ends(None)


def _bind_once(port: int) -> None:
    """End this process where the port is taken: the end of the process may cut off what the server says of it."""
    with socket.socket() as probe:
        if os.name == "posix":
            # One that was closed just now is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            sys.stderr.write(f"OSError: port {port} cannot be bound: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(REFUSED)


def _params(xllamacpp: Any, settings: dict[str, Any]) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["alias"]}
    # A name that ends in ".sock" is a Unix socket's path.
    params.hostnames = [settings["socket"] or "127.0.0.1"]
    params.port = settings["port"]
    if settings["api_key"] is not None:
        params.api_keys = [settings["api_key"]]
    if settings["chat_template"] is not None:
        params.chat_template = settings["chat_template"]
    params.use_jinja = True
    params.n_parallel = settings["slots"]
    # Each slot has a cache of its own: in a common one the numbers of an answer depend on what else is there.
    params.kv_unified = False
    params.n_ctx = settings["context_tokens"] * settings["slots"]
    # It looks between two batches whether its client has left.
    params.n_batch = params.n_ubatch = min(settings["batch_tokens"], settings["context_tokens"])
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(*lora) for lora in settings["loras"]]
    if settings["mmproj"] is not None:
        params.mmproj.path = settings["mmproj"]
        # Some models see an image only where all of its tokens are in one batch.
        params.n_batch = params.n_ubatch = min(max(params.n_batch, _IMAGE_TOKENS), settings["context_tokens"])
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.n_threads_http = settings["slots"] + 4  # each open answer keeps one
    params.n_gpu_layers = settings["gpu_layers"]
    params.fit_params = False  # take the sizes as given
    params.cache_ram_mib = 0  # no copies of earlier prompts in memory, of which it would keep 8 GiB
    params.endpoint_slots = False  # it shows prompts
    params.endpoint_metrics = True  # it shows how many answers are written
    params.offline = True
    params.ui = False
    params.verbosity = _ERRORS_ONLY
    return params


def _end_with(settings: dict[str, Any]) -> None:
    """End this process when the one that started it has ended, while the library loads, too.

    The end of stdin says so once the server answers; a process forked off the parent may keep stdin open, so a thread
    looks as well. While the model loads, no other thread of this program runs: there, Linux ends it. Elsewhere it ends
    when it has loaded.
    """
    if os.name != "posix":
        return
    parent_pid = settings["parent_pid"]
    _when_the_starter_ends(signal.SIGKILL)
    if os.getppid() != parent_pid:  # it has ended already, or another program stands between the two
        _when_the_starter_ends(None)
        if select.select([sys.stdin], [], [], 0)[0]:  # nothing but its end comes behind the settings
            leave(settings)
        return

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_LOOK_S)
        leave(settings)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _when_the_starter_ends(sent: signal.Signals | None) -> None:
    """Let Linux send this process a signal, or none, when the thread ends that started it.

    That thread waits until the model is loaded. Then it may end before its process does.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent or 0)


if __name__ == "__main__":
    main()
