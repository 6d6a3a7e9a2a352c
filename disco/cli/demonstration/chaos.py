"""`disco demo --chaos`: kill the processes behind an answer while it is written, and show that it goes on.

The kills are real (`kill -9`): a real server's process and the process that runs the local model.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from disco.cli.console import Screen
from disco.cli.demonstration.scene import (
    MAINS,
    DemoDevice,
    Keep,
    Scene,
    Stage,
    as_expected,
    play,
    revive,
    start_remote,
)
from disco.cli.demonstration.texts import SAILOR
from disco.cli.profile import measure_device
from disco.client.endpoint_catalog.runtimes import Runtime

__all__ = ["run_chaos"]

SCENES = (
    Scene(
        "The server's process is killed in mid-answer, and the device carries on",
        "The server writes alone; the device has nothing to do until the server is gone.",
        "Tell me about the charts with sea monsters.",
        "server_only",
        MAINS,
        0.1,
        ("server", "device"),
        migrate=False,
        kills="server",
    ),
    Scene(
        "The model's process is killed in mid-answer, and the server carries on",
        "The device writes alone, in a process of its own. What kills that process (here kill -9; in practice a GGML "
        "abort, or the system when memory is short) does not kill the application.",
        "Tell me about the brass instruments.",
        "device_only",
        MAINS,
        0.1,
        ("device", "server"),
        migrate=False,
        kills="device",
    ),
    Scene(
        "The next question is answered as before",
        "The model's process was started again by itself.",
        "Tell me about the ships in bottles.",
        "device_only",
        MAINS,
        0.1,
        ("device", "device"),
        migrate=False,
    ),
)


async def run_chaos(screen: Screen, keep: Keep | None = None, *, runtime: Runtime = "auto") -> int:
    """Play every scene; return 0 if every answer survived without a gap or a repeat.

    Never kills the user's own server: the demonstration starts one of its own, whatever the environment names.
    """
    screen.line("disco: one answer, whichever process dies", style="bold")
    survived = True
    async with AsyncExitStack() as stack:
        device = DemoDevice(isolation="process", runtime=runtime)
        stack.push_async_callback(device.aclose)
        profile = await measure_device(device.endpoint, screen, name="this-machine", quick=True)
        remote = await stack.enter_async_context(
            start_remote(screen, own=False, runtime=runtime, voice=SAILOR)
        )
        stage = Stage(screen, device, profile, remote)
        screen.legend(["device", "server"])
        for number, scene in enumerate(SCENES, 1):
            row = await play(stage, number, scene)
            if row is not None and keep is not None:
                keep(row.record)
            survived = survived and row is not None and as_expected(scene, row.record)
        await revive(remote, screen)
    screen.line()
    if survived:
        screen.line(
            "Two processes were killed, and no answer lost, repeated or garbled a character.", style="bold"
        )
    else:
        screen.line("Not every scene went as planned on this machine; see the notes above.", style="bold red")
    return 0 if survived else 1
