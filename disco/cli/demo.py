"""`disco demo`: a real local model and a real server give one answer together, before your eyes.

Nothing is staged but the distance: the server runs on this machine behind a proxy that delays it as a
measured server profile says. Who wins, where the answer moves and what survives is decided live.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.to_thread
import openai

from disco.cli.local_server import LocalServer
from disco.cli.measure import measure_device
from disco.cli.screen import Screen
from disco.cli.shaper import Shaper, shape
from disco.client import AsyncDisco
from disco.dispatch.presets import (
    CostSection,
    DispatchSection,
    MigrationSection,
    PlaybackSection,
    Preset,
)
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.profiles import DeviceProfile, load_server
from disco.session.record import RouteRecord

__all__ = ["run_demo"]

LOCAL = "smollm2-135m"
SERVER_PROFILE = "gpt-4o-mini-2024"  # how far away the server feels
PRICE = (0.15, 0.60)  # USD per million tokens in and out: gpt-4o-mini's, so that the money means something
SAMPLING: dict[str, Any] = {"max_tokens": 160, "temperature": 0.7, "seed": 3}
TRIES = 3  # a busy machine may decide a race the other way; then the scene is played again

INSTRUCTIONS = (
    "You are the guide of a small museum by the sea. You tell visitors about ships in bottles, brass instruments, "
    "charts with sea monsters, letters that were never sent, and the great lamp of the old lighthouse. You use "
    "plain, warm sentences, never lists, and answer at some length, because the visitors have come a long way."
)


@dataclass(frozen=True)
class Scene:
    """One thing to be shown.

    Attributes:
        title, story: what the viewer is told.
        prompt: the question asked.
        policy: `race` or `server_only`.
        exchange_rate: USD per 10⁶ FLOPs of the device's work: mains (low) or an almost empty battery (high).
        delay_quantile: how slow the server is, as a quantile of its profile's TTFT.
        expects: (winner, last writer) that make the scene a success.
        cold: the device's model is not loaded yet.
        pace_tps: reading pace while text is banked.
        kill_after: chunks after which the server's process is killed; None never.
    """

    title: str
    story: str
    prompt: str
    policy: str
    exchange_rate: float
    delay_quantile: float
    expects: tuple[str, str]
    cold: bool = False
    migrate: bool = True
    pace_tps: float = 8.0
    kill_after: int | None = None


MAINS, BATTERY = 4e-12, 2e-8
SCENES = (
    Scene(
        "The server wins the race, and the answer moves to the device",
        "Both start. The device must first load its model and read the instructions; the server has them "
        "cached. The server is the dear one here, so the device takes over in mid-sentence.",
        "Tell me about the great lamp of the old lighthouse.",
        "race",
        MAINS,
        0.02,
        ("server", "device"),
        cold=True,
    ),
    Scene(
        "The device wins the race and keeps the answer",
        "The server is having a slow moment. The device has the instructions in its cache by now.",
        "Tell me about the ships in bottles.",
        "race",
        MAINS,
        0.9,
        ("device", "device"),
    ),
    Scene(
        "The device wins the race, and the answer moves to the server",
        "The battery is almost empty: now the device's work is the dear one. It still speaks first, and "
        "hands over as soon as enough text is banked to hide the server's delay.",
        "Tell me about the letters that were never sent.",
        "race",
        BATTERY,
        0.5,
        ("device", "server"),
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
        kill_after=25,
    ),
)


@dataclass
class Remote:
    """The server of the demo. `process` and `shaper` are None when it is the user's own."""

    base_url: str
    api_key: str
    model: str
    continuation: str | Continuation
    process: LocalServer | None = None
    shaper: Shaper | None = None


class Device:
    """The local model. Mutable: `endpoint`, replaced by one that is not loaded where a scene starts cold."""

    def __init__(self) -> None:
        self.endpoint = self._new()

    def _new(self) -> LlamaCppEndpoint:
        return LlamaCppEndpoint(model=LOCAL, name="device", context_tokens=2048, threads=1)

    async def cool(self) -> None:
        """Unload the model."""
        await self.endpoint.aclose()
        self.endpoint = self._new()

    async def aclose(self) -> None:
        """Free the model."""
        await self.endpoint.aclose()


@dataclass(frozen=True)
class Row:
    """One answer in the final table."""

    scene: int
    how: str
    record: RouteRecord


async def run_demo(screen: Screen) -> int:
    """Play every scene and print the table; 0 when everything that was to be shown was shown."""
    screen.line("disco: one answer from two models", style="bold")
    rows: list[Row] = []
    shown = True
    async with AsyncExitStack() as stack:
        device = Device()
        stack.push_async_callback(device.aclose)
        profile = await measure_device(device.endpoint, screen, name="this-machine", quick=True)
        remote = await stack.enter_async_context(_remote(screen))
        screen.legend(["device", "server"])
        for number, scene in enumerate(SCENES, 1):
            if scene.kill_after is not None and remote.process is None:
                screen.line(
                    f"\n{number}. {scene.title}: skipped, your own server is not killed.", style="bold"
                )
                continue
            record = await _play(number, scene, screen, device, profile, remote)
            shown = shown and _as_expected(scene, record)
            rows.append(Row(number, "disco", record))
        await _revive(remote, screen)
        rows += await _baselines(screen, device, profile, remote)
    _table(screen, rows)
    if not shown:
        screen.line("Not every scene went as planned on this machine; see the notes above.", style="bold red")
    return 0 if shown else 1


@asynccontextmanager
async def _remote(screen: Screen) -> AsyncIterator[Remote]:
    """The user's own server where the environment names one, else a real one started here."""
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        screen.line(f"Using your server at {base_url}, model {model}.")
        yield Remote(base_url, key, model, "auto")
        return
    async with AsyncExitStack() as stack:
        with screen.step("Starting a real OpenAI-compatible server in its own process") as progress:
            process = LocalServer(LOCAL, context_tokens=2048, threads=1, progress=progress)
            await anyio.to_thread.run_sync(process.start)
        stack.callback(process.stop)
        shaper = await stack.enter_async_context(shape(process.port, 0.0, seed=1))
        screen.line(
            f"It answers through a proxy that delays it like {SERVER_PROFILE} (measured TTFT quantiles).",
            style="dim",
        )
        # Its chat route cannot continue a half-written answer, its plain completions route can; it runs
        # the same file as the device, so the file's own chat template is the right one.
        continuation = Continuation(method="completions", template=str(process.model))
        yield Remote(shaper.base_url, "demo-key", LOCAL, continuation, process, shaper)


async def _play(
    number: int, scene: Scene, screen: Screen, device: Device, profile: DeviceProfile, remote: Remote
) -> RouteRecord:
    screen.line(f"\n{number}. {scene.title}", style="bold")
    screen.line(scene.story, style="dim")
    for attempt in range(1, TRIES + 1):
        if scene.cold:
            await device.cool()
        await _revive(remote, screen)
        await _prepare(scene, remote)
        async with _client(scene, device, profile, remote) as client:
            if not scene.cold:
                await _read_instructions(client)
            if remote.process is None:
                await client.warm_up()
            record = await _show(scene, screen, client, remote)
        _explain(screen, record)
        if _as_expected(scene, record) or attempt == TRIES:
            return record
        screen.line("That went another way than announced (a busy machine decides races, too). Once more:")
    raise AssertionError


async def _show(scene: Scene, screen: Screen, client: AsyncDisco, remote: Remote) -> RouteRecord:
    """Ask, and print the answer as it comes, each word in its writer's colour."""
    stream = await client.chat.completions.create(
        model=remote.model,
        messages=_messages(scene),
        stream=True,
        **SAMPLING,
    )
    writer = None
    chunks = 0
    async for chunk in stream:
        text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if text and stream.writer != writer:
            writer = stream.writer
            if not screen.is_terminal:
                screen.stream(f"[{writer}]", writer or "server")
        screen.stream(text, writer or "server")
        chunks += 1
        if scene.kill_after is not None and chunks == scene.kill_after and remote.process is not None:
            await anyio.to_thread.run_sync(remote.process.kill)
            if not screen.is_terminal:
                screen.stream("[the server is killed]", "server")
    screen.line()
    return stream.route


def _explain(screen: Screen, record: RouteRecord) -> None:
    """What the route record says, in words."""
    pace = record.pace
    parts = [f"{record.winner} spoke first after {pace.ttft_raw_s:.2f} s"]
    parts += [f"{t.endpoint} lost the race" for t in record.tries if t.outcome == "lost"]
    parts += [f"{t.endpoint} lost, and kept its prefill" for t in record.tries if t.outcome == "parked"]
    parts += [
        f"moved from {t.source} to {t.target} at character {t.cut_char} (token {t.cut_tokens}) in {t.took_s:.2f} s, "
        f"{t.late_tokens} tokens late"
        for t in record.transfers
        if t.outcome == "switched" and t.took_s is not None
    ]
    parts += [
        f"a move to {t.target} was given up ({t.outcome})" for t in record.transfers if t.took_s is None
    ]
    parts += [f"{t.endpoint} failed ({t.failure})" for t in record.tries if t.failure]
    parts.append(f"{record.cost * 1e6:.1f} µ$")
    screen.line("→ " + "; ".join(parts) + ".")
    pieces = " + ".join(f"{p.endpoint} {p.start_char}…{p.end_char}" for p in record.pieces)
    verdict = "exactly what each wrote, nothing twice, nothing missing" if record.seamless else "SEAM BROKEN"
    screen.line(f"  record: {pieces}: {verdict} (checksums agree).", style="dim")


def _as_expected(scene: Scene, record: RouteRecord) -> bool:
    last = record.pieces[-1].endpoint if record.pieces else None
    return (record.winner, last) == scene.expects and record.seamless


def _messages(scene: Scene) -> list[Any]:
    return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": scene.prompt}]


def _preset(scene: Scene, policy: str | None = None) -> Preset:
    return Preset(
        name=policy or scene.policy,
        dispatch=DispatchSection(policy=policy or scene.policy),
        cost=CostSection(exchange_rate=scene.exchange_rate),
        migration=MigrationSection(enabled=scene.migrate and policy is None),
        playback=PlaybackSection(pace_tps=scene.pace_tps),
    )


def _client(
    scene: Scene, device: Device, profile: DeviceProfile, remote: Remote, policy: str | None = None
) -> AsyncDisco:
    return AsyncDisco(
        local=device.endpoint,
        policy=_preset(scene, policy),
        base_url=remote.base_url,
        api_key=remote.api_key,
        continuation=remote.continuation,
        device_profile=profile,
        server_profile=SERVER_PROFILE,
        price=PRICE if remote.process is not None else None,
    )


async def _prepare(scene: Scene, remote: Remote) -> None:
    """Set the distance, and let the server have the instructions cached, as a busy service has."""
    if remote.shaper is None:
        return
    remote.shaper.delay = 0.0
    async with openai.AsyncOpenAI(base_url=remote.base_url, api_key=remote.api_key) as plain:
        await plain.chat.completions.create(
            model=remote.model, messages=_messages(replace(scene, prompt="Hello.")), max_tokens=1
        )
    remote.shaper.delay = float(load_server(SERVER_PROFILE).ttft().quantile(scene.delay_quantile))


async def _read_instructions(client: AsyncDisco) -> None:
    """The device answers an earlier question of the same visitor, so it holds the instructions."""
    await client.chat.completions.create(
        model="any",
        messages=_messages(replace(SCENES[0], prompt="Hello.")),
        max_tokens=1,
        extra_body={"disco": {"local_only": True}},
    )


async def _revive(remote: Remote, screen: Screen) -> None:
    if remote.process is not None and not remote.process.running:
        with screen.step("Starting the server again") as progress:
            remote.process.progress = progress
            await anyio.to_thread.run_sync(remote.process.start)


async def _baselines(screen: Screen, device: Device, profile: DeviceProfile, remote: Remote) -> list[Row]:
    """The same questions with one endpoint only, under the same conditions."""
    rows = []
    for number, scene in enumerate(SCENES, 1):
        for policy in ("server_only", "device_only"):
            with screen.step(f"For comparison, question {number} with {policy.replace('_', ' ')}"):
                await _prepare(scene, remote)
                if scene.cold:
                    await device.cool()
                async with _client(scene, device, profile, remote, policy) as client:
                    if not scene.cold:
                        await _read_instructions(client)
                    stream = await client.chat.completions.create(
                        model=remote.model,
                        messages=_messages(scene),
                        stream=True,
                        **SAMPLING,
                    )
                    async for _ in stream:
                        pass
            rows.append(Row(number, policy.removesuffix("_only"), stream.route))
    return rows


def _table(screen: Screen, rows: list[Row]) -> None:
    columns = ("#", "how", "TTFT raw", "TTFT shown", "TBT P50", "TBT P99", "late", "device tok", "server tok",
               "device µ$", "server µ$", "total µ$")  # fmt: skip
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
                *(f"{by[name].cost * 1e6:.1f}" if by[name] else "–" for name in by),  # type: ignore[union-attr]
                f"{row.record.cost * 1e6:.1f}",
            )
        )
    screen.line()
    screen.table("Every answer by disco, and the same question to one of the two alone", columns, lines)
    screen.line(
        "TTFT, TBT in seconds; raw as generated, shown as released to the reader; late: tokens after the "
        f"reader's deadline at {SCENES[0].pace_tps:g} tokens/s; tokens: prompt + answer as billed, losers and "
        "re-prefills included; µ$: millionths of a dollar, the device's energy at the scene's exchange rate.",
        style="dim",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _tokens(totals: Any) -> str:
    return (
        "–" if totals is None else f"{totals.prompt_tokens - totals.cached_tokens}+{totals.completion_tokens}"
    )
