"""The setting of `disco demo`: a real device, a real server far away, and how one scene is played.

Only the distance is simulated: the server runs on this machine behind a proxy that delays it as a
measured server profile says. The race's winner, the migrations and the failovers are decided live.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread
import httpx2
import openai

from disco.amounts import spent
from disco.cli.console import Screen
from disco.cli.demonstration.demo_runtime import server_class
from disco.cli.demonstration.demo_server import DemoServer
from disco.cli.demonstration.shaping_proxy import Shaper, shape
from disco.client import AsyncDisco
from disco.client.endpoint_catalog.runtimes import Runtime, model_endpoint
from disco.dispatch.presets import (
    CostSection,
    DispatchSection,
    MigrationSection,
    PlaybackSection,
    Preset,
)
from disco.endpoints.continuation import Continuation
from disco.profiles import DeviceProfile, load_server
from disco.session.records.route_record import RouteRecord

if TYPE_CHECKING:
    from disco.endpoints.llamacpp import LlamaCppEndpoint
    from disco.endpoints.prebuilt import PrebuiltEndpoint

__all__ = [
    "BATTERY",
    "MAINS",
    "SAMPLING",
    "DemoDevice",
    "Keep",
    "Remote",
    "Scene",
    "as_expected",
    "make_client",
    "messages",
    "play",
    "prepare",
    "read_instructions",
    "revive",
    "start_remote",
]

LOCAL = "smollm2-135m"
SERVER_PROFILE = "gpt-4o-mini-2024"  # the delays of the simulated distance
PRICE = (0.15, 0.60)  # USD per million tokens in and out: gpt-4o-mini's, so that the costs are realistic
SAMPLING: dict[str, Any] = {"temperature": 0.7, "seed": 3}
KILL_AFTER = 25  # chunks
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only SIGTERM
TRIES = 3  # on a busy machine, a race may end the other way; then the scene is repeated

INSTRUCTIONS = (
    "You are the guide of a small museum by the sea. You tell visitors about ships in bottles, brass instruments, "
    "charts with sea monsters, letters that were never sent, and the great lamp of the old lighthouse. You use "
    "plain, warm sentences, never lists, and answer at some length, because the visitors have come a long way."
)


Keep = Callable[[RouteRecord], object]
"""Called with the route record of each answer that a scene shows."""

MAINS, BATTERY = 4e-12, 2e-8  # USD per 10⁶ FLOPs: a wall socket, an almost empty battery


@dataclass(frozen=True)
class Scene:
    """One scene of the demonstration.

    Attributes:
        title, story: the text for the viewer.
        prompt: the question asked.
        policy: `race` or `server_only`.
        exchange_rate: USD per 10⁶ FLOPs of the device's work: mains (low) or an almost empty battery (high).
        delay_quantile: how slow the server is, as a quantile of its profile's TTFT.
        expects: (winner, last writer) that make the scene a success.
        cold: whether the device's model is not loaded yet.
        pace_tps: reading pace in tokens/s while text is banked.
        kills: the side whose process is killed in mid-answer; None: no kill.
        max_tokens: limit of the answer. A migration pays only while enough of the answer is left.
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
    kills: Literal["server", "device"] | None = None
    max_tokens: int = 160


@dataclass
class Remote:
    """The server of the demo. `process` and `shaper` are None if it is the user's own server."""

    base_url: str
    api_key: str = field(repr=False)
    model: str
    continuation: str | Continuation
    process: DemoServer | None = None
    shaper: Shaper | None = None


class DemoDevice:
    """The local model. Mutable: `endpoint`, replaced by an endpoint that is not loaded when a scene starts cold.

    Args:
        isolation: where the model runs; a model in a process of its own can be killed.
        runtime: what runs it.
    """

    def __init__(
        self, isolation: Literal["thread", "process"] = "thread", *, runtime: Runtime = "auto"
    ) -> None:
        self._isolation: Literal["thread", "process"] = isolation
        self._runtime: Runtime = runtime
        self.endpoint = self._new()

    def _new(self) -> LlamaCppEndpoint | PrebuiltEndpoint:
        return model_endpoint(
            LOCAL, runtime=self._runtime, isolation=self._isolation, context_tokens=2048, threads=1
        )

    async def cool(self) -> None:
        """Unload the model."""
        await self.endpoint.aclose()
        self.endpoint = self._new()

    async def aclose(self) -> None:
        """Free the model."""
        await self.endpoint.aclose()


@asynccontextmanager
async def start_remote(
    screen: Screen, *, own: bool = True, runtime: Runtime = "auto"
) -> AsyncIterator[Remote]:
    """Yield the user's own server if the environment names one (unless `own` is False), else one started here."""
    key = os.environ.get("OPENAI_API_KEY")
    if key and own:
        base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        shown = httpx2.URL(base_url).copy_with(userinfo=b"", query=None)  # these parts may contain a key
        screen.line(f"Using your server at {shown}, model {model}.")
        yield Remote(base_url, key, model, "auto")
        return
    async with AsyncExitStack() as stack:
        with screen.step("Starting a real OpenAI-compatible server in its own process") as progress:
            process = server_class(runtime)(LOCAL, context_tokens=2048, threads=1, progress=progress)
            await anyio.to_thread.run_sync(process.start)
        stack.callback(process.stop)
        shaper = await stack.enter_async_context(shape(process.port, 0.0, seed=1))
        screen.line(
            f"The server runs here, and answers through a proxy that delays it like {SERVER_PROFILE} (measured TTFT "
            "quantiles).",
            style="dim",
        )
        # The server's chat route cannot continue a half-written answer, but its plain completions route can. It runs
        # the same file as the device, so the file's own chat template fits.
        continuation = Continuation(method="completions", template=str(process.model))
        yield Remote(shaper.base_url, "demo-key", LOCAL, continuation, process, shaper)


async def play(
    number: int,
    scene: Scene,
    screen: Screen,
    device: DemoDevice,
    profile: DeviceProfile,
    remote: Remote,
    on_text: Callable[[], None] = lambda: None,
) -> RouteRecord:
    """Print the scene's story and play the scene; repeat it if it did not go as announced.

    `on_text` is called before each piece of text is shown.
    """
    screen.line(f"\n{number}. {scene.title}", style="bold")
    screen.line(scene.story, style="dim")
    for attempt in range(1, TRIES + 1):
        if scene.cold:
            await device.cool()
        await revive(remote, screen)
        await prepare(scene, remote)
        async with make_client(scene, device, profile, remote) as client:
            if not scene.cold:
                await read_instructions(client)
            if remote.process is None:
                await client.warm_up()
            record = await _show(scene, screen, client, device, remote, on_text)
        explain(screen, record)
        if as_expected(scene, record) or attempt == TRIES:
            return record
        screen.line(
            "That went another way than announced (on a busy machine a race can end either way). Once more:"
        )
    raise AssertionError


async def _show(
    scene: Scene,
    screen: Screen,
    client: AsyncDisco,
    device: DemoDevice,
    remote: Remote,
    on_text: Callable[[], None],
) -> RouteRecord:
    """Ask, and print the answer as it comes, each word in the colour of its writer."""
    stream = await client.chat.completions.create(
        model=remote.model,
        messages=messages(scene.prompt),
        stream=True,
        max_tokens=scene.max_tokens,
        **SAMPLING,
    )
    writer = None
    chunks = 0
    async for chunk in stream:
        text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if text:
            on_text()
        if text and stream.writer != writer:
            writer = stream.writer
            if not screen.is_terminal:
                screen.stream(f"[{writer}]", writer or "server")
        screen.stream(text, writer or "server")
        chunks += 1
        if scene.kills is not None and chunks == KILL_AFTER:
            await _kill(scene.kills, device, remote)
            if not screen.is_terminal:
                screen.stream(f"[the {scene.kills}'s process is killed]", scene.kills)
    screen.line()
    return stream.route


async def _kill(side: Literal["server", "device"], device: DemoDevice, remote: Remote) -> None:
    """Kill a process with `kill -9`, so that it cannot clean up."""
    if side == "device":
        pid = device.endpoint.process_id
        assert pid is not None, "only a model in a process of its own can be killed"
        os.kill(pid, KILL)
    elif remote.process is not None:
        await anyio.to_thread.run_sync(remote.process.kill)


def explain(screen: Screen, record: RouteRecord) -> None:
    """Print what the route record says, in words."""
    pace = record.pace
    parts = [f"{record.winner} wrote first after {pace.ttft_raw_s:.2f} s"]
    parts += [f"{t.endpoint} lost the race" for t in record.attempts if t.outcome == "lost"]
    parts += [f"{t.endpoint} lost, and kept its prefill" for t in record.attempts if t.outcome == "parked"]
    parts += [
        f"moved from {t.source} to {t.target} at character {t.cut_char} (token {t.cut_tokens}) in {t.took_s:.2f} s, "
        f"{t.late_tokens} tokens late"
        for t in record.migrations
        if t.outcome == "switched" and t.took_s is not None
    ]
    parts += [
        f"a migration to {t.target} was given up ({t.outcome})" for t in record.migrations if t.took_s is None
    ]
    parts += [f"{t.endpoint} failed ({t.failure})" for t in record.attempts if t.failure]
    parts.append(spent(record.bill_usd, record.device_energy_j))
    screen.line("→ " + "; ".join(parts) + ".")
    segments = " + ".join(f"{s.endpoint} {s.start_char}…{s.end_char}" for s in record.segments)
    whole = "exactly what each wrote, nothing twice, nothing missing (checksums agree)"
    verdict = whole if record.seamless else "SEAM BROKEN: text may stand there twice or be missing"
    screen.line(f"  record: {segments}: {verdict}.", style="dim")


def as_expected(scene: Scene, record: RouteRecord) -> bool:
    """Return whether the record shows what the scene announced."""
    last = record.segments[-1].endpoint if record.segments else None
    return (record.winner, last) == scene.expects and record.seamless


def messages(prompt: str) -> list[Any]:
    """Return the messages: the guide's instructions, then the question."""
    return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": prompt}]


def _preset(scene: Scene, policy: str | None = None) -> Preset:
    return Preset(
        name=policy or scene.policy,
        dispatch=DispatchSection(policy=policy or scene.policy),
        cost=CostSection(exchange_rate=scene.exchange_rate),
        migration=MigrationSection(enabled=scene.migrate and policy is None),
        playback=PlaybackSection(pace_tps=scene.pace_tps),
    )


def make_client(
    scene: Scene, device: DemoDevice, profile: DeviceProfile, remote: Remote, policy: str | None = None
) -> AsyncDisco:
    """Make a client for the scene; `policy` replaces the scene's policy, for comparison."""
    return AsyncDisco(
        local=device.endpoint,
        preset=_preset(scene, policy),
        base_url=remote.base_url,
        api_key=remote.api_key,
        continuation=remote.continuation,
        device_profile=profile,
        server_profile=SERVER_PROFILE,
        price=PRICE if remote.process is not None else None,
    )


async def prepare(scene: Scene, remote: Remote) -> None:
    """Set the delay, and make the server cache the instructions, as those of a busy service are cached."""
    if remote.shaper is None:
        return
    remote.shaper.delay = 0.0
    async with openai.AsyncOpenAI(base_url=remote.base_url, api_key=remote.api_key) as plain:
        await plain.chat.completions.create(model=remote.model, messages=messages("Hello."), max_tokens=1)
    remote.shaper.delay = float(load_server(SERVER_PROFILE).ttft().quantile(scene.delay_quantile))


async def read_instructions(client: AsyncDisco) -> None:
    """Have the device answer an earlier question of the same visitor, so that it has the instructions cached."""
    await client.chat.completions.create(
        model="any",
        messages=messages("Hello."),
        max_tokens=1,
        extra_body={"disco": {"local_only": True}},
    )


async def revive(remote: Remote, screen: Screen) -> None:
    """Start the server again if it was killed."""
    if remote.process is not None and not remote.process.running:
        with screen.step("Starting the server again") as progress:
            remote.process.progress = progress
            await anyio.to_thread.run_sync(remote.process.start)
