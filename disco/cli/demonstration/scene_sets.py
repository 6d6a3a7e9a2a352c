"""`disco demo` and its sets of scenes, with what may be kept of a run: the route records, a picture of the terminal."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module

from disco.cli.console import Screen
from disco.cli.demonstration.scene import Keep
from disco.cli.pictures.recorded_screen import RecordedScreen
from disco.client import RouteLog

__all__ = ["run_scenes"]


async def run_scenes(screen: Screen, which: str, *, record: str | None, svg: str | None) -> int:
    """Play a set of scenes; return 0 if every scene went as planned.

    Args:
        screen: where it is shown.
        which: "chaos", "cascade", "assist" or "speculate"; "": the first demonstration.
        record: file to which the route records of the answers shown are appended.
        svg: file for the picture of what was shown, in colours even where the output is no terminal.
    """
    module = import_module(f"disco.cli.demonstration.{which or 'demo'}")
    run = getattr(module, f"run_{which or 'demo'}")
    with ExitStack() as stack:
        keep: Keep | None = stack.enter_context(RouteLog(record)) if record is not None else None
        shown = RecordedScreen() if svg is not None else screen
        status: int = await run(shown, keep)
    if svg is not None and isinstance(shown, RecordedScreen):
        command = " ".join(["disco demo", *([f"--{which}"] if which else [])])
        shown.save_svg(svg, title=command)
        screen.line(f"Picture: {svg}")
    return status
