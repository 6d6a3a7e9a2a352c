"""The host program "engine": disco's own engine over llama.cpp, for one model, which may be cut in two.

The first line of stdin holds its settings as JSON (`HostSettings`), the key of its API among them. Once the model is
loaded and the API answers, it prints `READY` and its address; what else it prints for the process that started it is in
`host_process`. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
import anyio.from_thread
import uvicorn

from disco.endpoints.event_coding import error_fields
from disco.endpoints.host.engine_app import EngineApp
from disco.endpoints.host.host_process import BEAT, FAILED, IDLE, WARNED
from disco.endpoints.host.llama_server_main import (
    READY,
    REFUSED,
    begin,
    leave,
    outlive_the_thread_that_started_this,
)
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import DiscoWarning, EndpointFailure

if TYPE_CHECKING:
    from disco.endpoints.split.split_endpoint import SplitEndpoint

__all__ = ["main", "make_engine", "make_split"]

_BACKLOG: Final = 256
_KEEP_ALIVE_S: Final = 3600  # its client decides about connections
_BEATS: Final = 8  # in the time that a step may take
_LONGEST_BEAT_S: Final = 1.0


def make_engine(settings: dict[str, Any]) -> EngineEndpoint:
    """Return what runs the model in this process; nothing is loaded yet.

    Args:
        settings: the fields of `HostSettings`.
    """
    cache = settings["prompt_cache"]
    return EngineEndpoint(
        model=Path(settings["path"]),
        name=settings["alias"],
        context_tokens=settings["context_tokens"],
        threads=settings["threads"],
        batch_tokens=settings["batch_tokens"],
        slots=settings["slots"],
        gpu_layers=settings["gpu_layers"],
        max_queue=settings["max_queue"],
        chat_template=settings["chat_template"],
        lora=settings["loras"],
        prompt_cache=None if cache is None else PromptCache(**cache),
    )


def make_split(settings: dict[str, Any]) -> SplitEndpoint:
    """Return the same of a split model."""
    from disco.endpoints.split.layer_link import LayerServer  # noqa: PLC0415 - most models are whole
    from disco.endpoints.split.split_endpoint import SplitEndpoint  # noqa: PLC0415 - as above
    from disco.endpoints.split.split_options import SplitOptions  # noqa: PLC0415 - as above
    from disco.endpoints.split.wire import Dtype  # noqa: PLC0415 - as above

    server = settings["split"]["server"]
    return SplitEndpoint(
        Path(settings["path"]),
        LayerServer(**{**server, "dtype": Dtype(server["dtype"])}),
        SplitOptions(**settings["split"]["options"]),
        name=settings["alias"],
        slots=settings["slots"],
        context_tokens=settings["context_tokens"],
        threads=settings["threads"],
        batch_tokens=settings["batch_tokens"],
        gpu_layers=settings["gpu_layers"],
    )


class _Out:
    """Lines for the process that started this one; from any thread."""

    def __init__(self) -> None:
        self._to = os.dup(1)
        os.dup2(2, 1)  # what a library prints may be in the middle of a line

    def say(self, what: str, content: object = None) -> None:
        line = what if content is None else f"{what} {json.dumps(content)}"
        try:
            os.write(self._to, line.encode("ascii") + b"\n")  # one write, so that no other line comes between
        except OSError:  # nobody reads it any more
            os._exit(0)


async def _serve(settings: dict[str, Any], out: _Out) -> None:
    try:
        split = None if settings["split"] is None else make_split(settings)
        engine = make_engine(settings) if split is None else split.inner
        await engine.engine.load()
    except Exception as error:  # noqa: BLE001 - any error must be reported
        what = f"The model of endpoint {settings['alias']!r} could not be loaded"
        failure = error if isinstance(error, EndpointFailure) else failure_of(error, what)
        out.say(FAILED, error_fields(failure))
        os._exit(REFUSED)
    threading.Thread(
        target=_beat, args=(split or engine, settings["hang_s"], out), name="beat", daemon=True
    ).start()
    app = EngineApp(engine, split=split, key=settings["api_key"], settings=settings)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    listening, address = _listening(settings)
    server = uvicorn.Server(config)
    threading.Thread(target=_end_with_stdin, args=(server, app, settings), name="stdin", daemon=True).start()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(server.serve, sockets=[listening]))
        while not server.started and not server.should_exit:  # noqa: ASYNC110 - uvicorn tells it in no other way
            await anyio.sleep(0.002)
        outlive_the_thread_that_started_this()
        out.say(f"{READY} {address}")
    if settings["prompt_cache"] is not None:
        await engine.aclose()  # which saves prompts, for a limited time


def _listening(settings: dict[str, Any]) -> tuple[socket.socket, str]:
    if (path := settings["socket"]) is not None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        address = f"unix://{path}"
    else:
        listening = socket.create_server(("127.0.0.1", settings["port"]))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.listen(_BACKLOG)
    return listening, address


def _beat(engine: EngineEndpoint | SplitEndpoint, hang_s: float, out: _Out) -> None:
    """Tell now and then whether the engine works, for as long as it comes on."""
    every_s = min(_LONGEST_BEAT_S, hang_s / _BEATS)
    was: tuple[bool, int] = (False, -1)
    while True:
        now = engine.pulse
        if now[0] and now != was:
            out.say(BEAT)
        elif was[0] and not now[0]:
            out.say(IDLE)
        was = now
        threading.Event().wait(every_s)


def _end_with_stdin(server: uvicorn.Server, app: EngineApp, settings: dict[str, Any]) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    if not app.saves:
        leave(settings)
    server.force_exit = server.should_exit = True


def main() -> NoReturn:
    """Serve the model that stdin names, until stdin ends."""
    settings = begin()
    out = _Out()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if isinstance(message, DiscoWarning):
            out.say(WARNED, str(message))

    warnings.showwarning = show
    anyio.run(_serve, settings, out)
    leave(settings)


if __name__ == "__main__":
    main()
