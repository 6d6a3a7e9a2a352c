"""`disco demo` and its sets of scenes, with what may be kept of a run: the route records, a picture of the terminal."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from typing import Any

from disco.cli.console import Screen
from disco.cli.demonstration.demo_runtime import require_installed
from disco.cli.demonstration.scene import Keep
from disco.cli.pictures.recorded_screen import RecordedScreen
from disco.client import RouteLog
from disco.client.endpoint_catalog.runtimes import Runtime

__all__ = ["run_scenes"]


async def run_scenes(
    screen: Screen,
    which: str,
    *,
    record: str | None,
    svg: str | None,
    runtime: Runtime = "auto",
    began_at_s: float | None = None,
) -> int:
    """Play a set of scenes; return 0 if every scene went as planned.

    Args:
        screen: where it is shown.
        which: "chaos", "cascade", "assist" or "speculate"; "": the first demonstration.
        record: file to which the route records of the answers shown are appended.
        svg: file for the picture of what was shown, in colours even where the output is no terminal.
        runtime: what runs the device's model, and the server where it is the demonstration's own.
        began_at_s: see `run_demo`.

    Raises:
        ConfigurationError: the scenes need something that is not installed, or more than the runtime can do.
    """
    require_installed(which, runtime)
    module = import_module(f"disco.cli.demonstration.{which or 'demo'}")
    run = getattr(module, f"run_{which or 'demo'}")
    options: dict[str, Any] = {} if which == "speculate" else {"runtime": runtime}
    if not which:
        options["began_at_s"] = began_at_s
    with ExitStack() as stack:
        keep: Keep | None = stack.enter_context(RouteLog(record)) if record is not None else None
        shown = RecordedScreen() if svg is not None else screen
        status: int = await run(shown, keep, **options)
    if svg is not None and isinstance(shown, RecordedScreen):
        command = " ".join(["disco demo", *([f"--{which}"] if which else [])])
        shown.save_svg(svg, title=command)
        screen.line(f"Picture: {svg}")
    return status
