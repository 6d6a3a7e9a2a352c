"""The setting of `disco demo`: a real device, real servers far away, and how one scene is played.

Only the distance is simulated: the servers run on this machine behind a proxy that delays them as a measured server
profile says. The race's winner, the migrations and the failovers are decided live.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx2
import openai

from disco.cli.console import Screen
from disco.cli.demonstration.comparison import COMPLETE, Row, explain
from disco.cli.demonstration.texts import INSTRUCTIONS, voiced
from disco.client import AsyncDisco, Backup
from disco.client.endpoint_catalog.runtimes import model_endpoint
from disco.dispatch.presets import (
    CostSection,
    DispatchSection,
    MigrationSection,
    PlaybackSection,
    Preset,
)
from disco.endpoints.continuation import Continuation
from disco.endpoints.runtimes import Runtime
from disco.plan import Order
from disco.profiles import DeviceProfile, load_server
from disco.session.records.route_record import RouteRecord
from disco.testing import ModelServer, Shaper, shape

if TYPE_CHECKING:
    from disco.endpoints.host import HostEndpoint

__all__ = [
    "BATTERY",
    "DEFAULT",
    "MAINS",
    "DemoDevice",
    "Keep",
    "Remote",
    "Scene",
    "Stage",
    "alone",
    "as_expected",
    "messages",
    "play",
    "revive",
    "start_remote",
]

LOCAL = "smollm2-135m"
SERVER_PROFILE = "gpt-4o-mini-2024"  # the delays of the simulated distance
PRICE = (0.15, 0.60)  # USD per million tokens in and out: gpt-4o-mini's, so that the costs are realistic
SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "seed": 3,
    "frequency_penalty": 0.6,
}  # a small model repeats itself
KILL_AFTER = 28  # chunks
TRIES = 3  # on a busy machine, a race may end the other way; then the scene is repeated

Keep = Callable[[RouteRecord], object]
"""Called with the route record of each answer that a scene shows."""

DEFAULT = "server_only"  # the policy of the default preset, server-first
MAINS, BATTERY = 4e-12, 2e-8  # USD per 10⁶ FLOPs: a wall socket, an almost empty battery


@dataclass(frozen=True)
class Scene:
    """One scene of the demonstration.

    Attributes:
        title, story: the text for the viewer.
        prompt: the question asked.
        policy: of disco's answer.
        exchange_rate: USD per 10⁶ FLOPs of the device's work: mains (low) or an almost empty battery (high).
        delay_quantile: how slow the server is, as a quantile of its profile's TTFT.
        expects: (winner, last writer) that make the scene a success.
        cold: whether the device's model is not loaded yet.
        order: what becomes of the writer when the answer moves.
        pace_tps: reading pace in tokens/s while text is banked.
        kills: whether the server's process is killed in mid-answer.
        refused: whether the server refuses the key. Then a backup is there, and no local model.
        max_tokens: limit of the answer. A migration pays only while enough of the answer is left.
        beside: what is asked the same alone, for comparison: "server", "device".
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
    order: Order = "auto"
    pace_tps: float = 8.0
    kills: bool = False
    refused: bool = False
    max_tokens: int = 100
    beside: tuple[str, ...] = ("server",)


@dataclass
class Remote:
    """The server of the demo. `process` and `shaper` are None if it is the user's own server."""

    base_url: str
    api_key: str = field(repr=False)
    model: str
    continuation: str | Continuation
    process: ModelServer | None = None
    shaper: Shaper | None = None


class DemoDevice:
    """The local model. Mutable: `endpoint`, replaced by an endpoint that is not loaded when a scene starts cold.

    Args:
        runtime: what runs it.
    """

    def __init__(self, *, runtime: Runtime = "auto") -> None:
        self._runtime: Runtime = runtime
        self.endpoint = self._new()

    def _new(self) -> HostEndpoint:
        return model_endpoint(LOCAL, runtime=self._runtime, context_tokens=2048, threads=1)

    async def cool(self) -> None:
        """Unload the model."""
        await self.endpoint.aclose()
        self.endpoint = self._new()

    async def aclose(self) -> None:
        """Free the model."""
        await self.endpoint.aclose()


@dataclass
class Stage:
    """What the scenes of one demonstration share."""

    screen: Screen
    device: DemoDevice
    profile: DeviceProfile
    remote: Remote
    backup: Remote | None = None


@asynccontextmanager
async def start_remote(
    screen: Screen,
    *,
    own: bool = True,
    voice: tuple[str, str] | None = None,
    what: str = "server",
) -> AsyncIterator[Remote]:
    """Yield the user's own server if the environment names one (unless `own` is False), else one started here.

    Args:
        screen: where it is said.
        own: whether a server that the environment names is taken.
        voice: how that one sounds; None: like the device.
        what: its name, for the viewer.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if key and own:
        base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        shown = httpx2.URL(base_url).copy_with(userinfo=b"", query=None)  # these parts may contain a key
        screen.line(f"Using your server at {shown}, model {model}.")
        yield Remote(base_url, key, model, "auto")
        return
    template = None if voice is None else voiced(voice)
    async with AsyncExitStack() as stack:
        with screen.step(f"Starting a real OpenAI-compatible {what} in its own process") as progress:
            process = ModelServer(
                LOCAL,
                context_tokens=2048,
                threads=1,
                api_key="demo-key",
                chat_template=template,
                progress=progress,
            )
            await anyio.to_thread.run_sync(process.start)
        stack.callback(process.stop)
        shaper = await stack.enter_async_context(shape(process.port, 0.0, seed=1))
        # The server's chat route cannot continue a half-written answer, but its plain completions route can. Without a
        # voice it renders chats by the template in the device's file, which it runs, too.
        continuation = Continuation(method="completions", template=template or str(process.model))
        yield Remote(shaper.base_url, "demo-key", LOCAL, continuation, process, shaper)


async def play(
    stage: Stage, number: int, scene: Scene, on_text: Callable[[], None] = lambda: None
) -> Row | None:
    """Print the scene's story and play the scene; repeat it if it did not go as announced.

    `on_text` is called before each piece of text is shown. Returns what became of it; None where there is no record.
    """
    screen = stage.screen
    screen.line(f"\n{number}. {scene.title}", style="bold")
    screen.line(scene.story, style="dim")
    for attempt in range(1, TRIES + 1):
        row = await _answered(stage, number, scene, "disco", on_text)
        if row is not None:
            explain(screen, row)
            if as_expected(scene, row.record) or attempt == TRIES:
                return row
        screen.line(
            "That went another way than announced (on a busy machine a race can end either way). Once more:"
        )
    return None


async def alone(stage: Stage, number: int, scene: Scene, way: str) -> Row | None:
    """Ask the scene's question of the "server" or the "device" alone, under the same conditions, and show no text."""
    with stage.screen.step(f"The same question to the {way} alone"):
        return await _answered(stage, number, scene, way)


async def _answered(
    stage: Stage, number: int, scene: Scene, way: str, on_text: Callable[[], None] | None = None
) -> Row | None:
    """Ask once. The text is shown where `on_text` is given."""
    if scene.cold:
        await stage.device.cool()
    await revive(stage.remote, stage.screen)
    for remote in filter(None, (stage.remote, stage.backup)):
        await _prepare(scene, remote)
    async with _client(stage, scene, way) as client:
        if not scene.cold and not scene.refused and way != "server":
            await _read_instructions(client)
        if stage.remote.process is None and way == "disco":
            await client.warm_up()
        record, became = await _ask(stage, scene, client, on_text)
    if record is None:
        return None
    return Row(number, way, record, became)


async def _ask(
    stage: Stage, scene: Scene, client: AsyncDisco, on_text: Callable[[], None] | None
) -> tuple[RouteRecord | None, str]:
    """Ask, and print the answer as it comes, each word in the colour of its writer."""
    screen, writer, chunks, chars = stage.screen, None, 0, 0
    try:
        stream: Any = await client.chat.completions.create(
            model=stage.remote.model,
            messages=messages(scene.prompt),
            stream=True,
            max_tokens=scene.max_tokens,
            **SAMPLING,
        )
        async for chunk in stream:
            text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            chunks, chars = chunks + 1, chars + len(text)
            if text and on_text is not None:
                on_text()
                if stream.writer != writer:
                    writer = stream.writer
                    if not screen.is_terminal:
                        screen.stream(f"[{writer}]", writer or "server")
                screen.stream(text, writer or "server")
            if scene.kills and chunks == KILL_AFTER and stage.remote.process is not None:
                await anyio.to_thread.run_sync(stage.remote.process.kill)
                if on_text is not None and not screen.is_terminal:
                    screen.stream("[the server's process is killed]", "server")
    except openai.OpenAIError as error:
        status = getattr(error, "status_code", None)
        became = f"was refused ({status})" if status is not None else f"broke off at character {chars}"
        return getattr(error, "route", None), became
    finally:
        if on_text is not None:
            screen.line()
    return stream.route, COMPLETE


def as_expected(scene: Scene, record: RouteRecord) -> bool:
    """Return whether the record shows what the scene announced."""
    last = record.segments[-1].endpoint if record.segments else None
    return (record.winner, last) == scene.expects and record.seamless


def messages(prompt: str) -> list[Any]:
    """Return the messages: the guide's instructions, then the question."""
    return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": prompt}]


def _client(stage: Stage, scene: Scene, way: str) -> AsyncDisco:
    """Make a client for the scene: disco's, or that of "server" or "device" alone."""
    remote, backup = stage.remote, stage.backup
    preset = Preset(
        name=scene.policy if way == "disco" else f"{way}_only",
        dispatch=DispatchSection(policy=scene.policy if way == "disco" else f"{way}_only"),
        cost=CostSection(exchange_rate=scene.exchange_rate),
        migration=MigrationSection(enabled=scene.migrate and way == "disco", order=scene.order),
        playback=PlaybackSection(pace_tps=scene.pace_tps),
    )
    others: dict[str, Any] = {}
    if not scene.refused and way != "server":
        others |= {"local": stage.device.endpoint, "device_profile": stage.profile}
    if scene.refused and way == "disco" and backup is not None:
        kept = Backup(
            base_url=backup.base_url,
            api_key=backup.api_key,
            model=backup.model,
            price=PRICE,
            continuation=backup.continuation,
            name="backup",
        )
        others |= {"backups": [kept]}
    return AsyncDisco(
        preset=preset,
        base_url=remote.base_url,
        api_key="an-old-key" if scene.refused else remote.api_key,
        continuation=remote.continuation,
        server_profile=SERVER_PROFILE,
        price=PRICE if remote.process is not None else None,
        **others,
    )


async def _prepare(scene: Scene, remote: Remote) -> None:
    """Set the delay, and make the server cache the instructions, as those of a busy service are cached."""
    if remote.shaper is None:
        return
    remote.shaper.delay = 0.0
    async with openai.AsyncOpenAI(base_url=remote.base_url, api_key=remote.api_key) as plain:
        await plain.chat.completions.create(model=remote.model, messages=messages("Hello."), max_tokens=1)
    remote.shaper.delay = float(load_server(SERVER_PROFILE).ttft().quantile(scene.delay_quantile))


async def _read_instructions(client: AsyncDisco) -> None:
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
