"""`disco demo`: a real local model and a real server give one answer together.

`disco/cli/demonstration/scene.py` says what is real here: everything except the distance.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from disco.amounts import joules, money
from disco.cli.console import Screen
from disco.cli.demonstration.scene import (
    BATTERY,
    MAINS,
    SAMPLING,
    DemoDevice,
    Keep,
    Remote,
    Scene,
    as_expected,
    make_client,
    messages,
    play,
    prepare,
    read_instructions,
    revive,
    start_remote,
)
from disco.cli.profile import measure_device
from disco.client.endpoint_catalog.runtimes import Runtime
from disco.profiles import DeviceProfile
from disco.session.records.route_record import RouteRecord

__all__ = ["COLUMNS", "SCENES", "run_demo"]

SCENES = (
    Scene(
        "The server wins the race, and the answer moves to the device",
        "Both start. The device must first load its model and read the instructions; the server has them "
        "cached. The server is the more expensive side here, so the device takes over in mid-sentence.",
        "Tell me about the great lamp of the old lighthouse.",
        "race",
        MAINS,
        0.02,
        ("server", "device"),
        cold=True,
    ),
    Scene(
        "The device wins the race and keeps the answer",
        "The server is slow at the moment. The device has the instructions in its cache by now.",
        "Tell me about the ships in bottles.",
        "race",
        MAINS,
        0.9,
        ("device", "device"),
    ),
    Scene(
        "The device wins the race, and the answer moves to the server",
        "The battery is almost empty, so the device is the more expensive side now. It still writes first. The "
        "answer moves as soon as enough text is banked to hide the server's delay.",
        "Tell me about the letters that were never sent.",
        "race",
        BATTERY,
        0.5,
        ("device", "server"),
        max_tokens=280,  # a device that cannot pause writes on until the server does, which costs
    ),
    Scene(
        "The server dies in mid-answer, and the device carries on",
        "The server's process is killed while it writes.",
        "Tell me about the charts with sea monsters.",
        "server_only",
        MAINS,
        0.1,
        ("server", "device"),
        migrate=False,
        kills="server",
    ),
)


COLUMNS = (
    *("#", "how", "TTFT raw", "TTFT shown", "TBT P50", "TBT P99", "late"),
    *("device tok", "server tok", "bill", "energy"),
)


@dataclass(frozen=True)
class Row:
    """One answer in the final table."""

    scene: int
    how: str
    record: RouteRecord


async def run_demo(
    screen: Screen,
    keep: Keep | None = None,
    *,
    runtime: Runtime = "auto",
    began_at_s: float | None = None,
) -> int:
    """Play every scene and print the table; return 0 if every scene went as planned.

    Args:
        screen: the screen to print on.
        keep: called with the record of each answer.
        runtime: what runs the device's model, and the server where it is the demo's own.
        began_at_s: when the command began that may have installed disco first, seconds since 1970; None: not known.
    """
    first_at_s: list[float] = []

    def on_text() -> None:
        if not first_at_s:
            first_at_s.append(time.time())

    screen.line("disco: one answer from two models", style="bold")
    rows: list[Row] = []
    shown = True
    async with AsyncExitStack() as stack:
        device = DemoDevice(runtime=runtime)
        stack.push_async_callback(device.aclose)
        profile = await measure_device(device.endpoint, screen, name="this-machine", quick=True)
        remote = await stack.enter_async_context(start_remote(screen, runtime=runtime))
        screen.legend(["device", "server"])
        for number, scene in enumerate(SCENES, 1):
            if scene.kills is not None and remote.process is None:
                screen.line(
                    f"\n{number}. {scene.title}: skipped, because your own server is not killed.",
                    style="bold",
                )
                continue
            record = await play(number, scene, screen, device, profile, remote, on_text)
            if number == 1 and began_at_s is not None and first_at_s:
                screen.line(
                    f"The first word of this answer came {first_at_s[0] - began_at_s:.0f} s after the command began, "
                    "with all that it installed.",
                    style="bold",
                )
            shown = shown and as_expected(scene, record)
            if keep is not None:
                keep(record)
            rows.append(Row(number, "disco", record))
        await revive(remote, screen)
        rows += await _baselines(screen, device, profile, remote)
    _table(screen, rows)
    screen.line(
        "More: disco demo --chaos (killed processes), disco demo --cascade (three tiers, judged answers), "
        "disco demo --assist (the server speaks while the device reads), disco demo --speculate (drafted here, written "
        "by the server)."
    )
    if not shown:
        screen.line("Not every scene went as planned on this machine; see the notes above.", style="bold red")
    return 0 if shown else 1


async def _baselines(screen: Screen, device: DemoDevice, profile: DeviceProfile, remote: Remote) -> list[Row]:
    """Ask the same questions with one endpoint only, under the same conditions."""
    rows = []
    for number, scene in enumerate(SCENES, 1):
        for policy in ("server_only", "device_only"):
            with screen.step(f"For comparison, question {number} with {policy.replace('_', ' ')}"):
                await prepare(scene, remote)
                if scene.cold:
                    await device.cool()
                async with make_client(scene, device, profile, remote, policy) as client:
                    if not scene.cold:
                        await read_instructions(client)
                    stream = await client.chat.completions.create(
                        model=remote.model,
                        messages=messages(scene.prompt),
                        stream=True,
                        max_tokens=scene.max_tokens,
                        **SAMPLING,
                    )
                    async for _ in stream:
                        pass
            rows.append(Row(number, policy.removesuffix("_only"), stream.route))
    return rows


def _table(screen: Screen, rows: list[Row]) -> None:
    lines = []
    for row in sorted(rows, key=lambda r: (r.scene, r.how != "disco", r.how)):
        pace, totals = row.record.pace, row.record.ledger.by_endpoint()
        by = {name: totals.get(name) for name in ("device", "server")}
        lines.append(
            (
                row.scene,
                row.how,
                _seconds(pace.ttft_raw_s),
                _seconds(pace.ttft_released_s),
                _seconds(pace.tbt_released_p50_s),
                _seconds(pace.tbt_released_p99_s),
                pace.late_tokens,
                *(_tokens(by[name]) for name in by),
                money(row.record.bill_usd),
                "–" if row.record.device_energy_j is None else joules(row.record.device_energy_j),
            )
        )
    screen.line()
    screen.table("Every answer by disco, and the same question to one of the two alone", COLUMNS, lines)
    screen.line(
        "TTFT, TBT in seconds; raw as generated, shown as released to the reader; late: tokens after the "
        f"reader's deadline at {SCENES[0].pace_tps:g} tokens/s; tokens: prompt + answer as billed, losers and "
        "re-prefills included; bill: paid to the server; energy: of the device, an estimate.",
        style="dim",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _tokens(totals: Any) -> str:
    return (
        "–" if totals is None else f"{totals.prompt_tokens - totals.cached_tokens}+{totals.completion_tokens}"
    )
