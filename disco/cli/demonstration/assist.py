"""`disco demo --assist`: the server speaks while the device reads a long prompt, and the device goes on.

What is drawn while an answer comes is the state of its live session. The figures behind it are those of its route
record.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import openai

from disco.amounts import joules, money
from disco.cli.console import Screen
from disco.cli.demonstration.alongside import alongside, repeatedly
from disco.cli.demonstration.assist_picture import SEAM, Shown, explain, in_words, picture, text_of
from disco.cli.demonstration.comparison import Row, beside
from disco.cli.demonstration.scene import (
    MAINS,
    PRICE,
    SERVER_PROFILE,
    DemoDevice,
    Keep,
    Remote,
    messages,
    start_remote,
)
from disco.cli.demonstration.texts import KEEPERS_BOOK
from disco.cli.profile import measure_device
from disco.client import AsyncDisco
from disco.client.endpoint_catalog.runtimes import Runtime
from disco.dispatch.presets import CostSection, DispatchSection, MigrationSection, PlaybackSection, Preset
from disco.profiles import DeviceProfile, load_server
from disco.session.records.route_record import RouteRecord

__all__ = ["compare", "run_assist", "show_answer"]

PACE_TPS = 10.0
ANSWER_TOKENS = 256
QUESTION = "Tell me in your own words, and at some length, what there is to see in this museum, room by room."
MEASURED = (16, 128, 1024)  # lengths of prompts by which the device's speed is measured, tokens
SHORT = 2  # paragraphs of the prompt where the device is too slow for all of them

_FRAME_S = 0.1  # between two pictures on a terminal
_LINE_S = 1.0  # between two lines elsewhere
_TOO_SLOW = frozenset({"too_many", "not_cheaper"})  # reasons that a shorter prompt may remove


async def run_assist(screen: Screen, keep: Keep | None = None, *, runtime: Runtime = "auto") -> int:
    """Answer one long prompt in three ways; return 0 if each answer is complete and none has a broken seam."""
    screen.line("disco: the server speaks while the device reads", style="bold")
    async with AsyncExitStack() as stack:
        device = DemoDevice(runtime=runtime)
        stack.push_async_callback(device.aclose)
        remote = await stack.enter_async_context(start_remote(screen, runtime=runtime))
        async with _writing(remote):
            profile = await measure_device(
                device.endpoint, screen, name="this-machine", quick=True, lengths=MEASURED
            )
        screen.legend(["server", "device"])
        paragraphs = KEEPERS_BOOK.split("\n\n")
        records = []
        for number in (len(paragraphs), SHORT):
            prompt = "\n\n".join([*paragraphs[:number], QUESTION])
            screen.line(
                f"The prompt is a text of {len(prompt.split())} words. The server may write only as many tokens as "
                f"the device needs to read it, and they are shown no slower than {PACE_TPS:g} a second.",
                style="dim",
            )
            async with _ready("assist", screen, device, profile, remote, prompt) as client:
                records.append(await show_answer(screen, client, remote.model, prompt, ANSWER_TOKENS))
            explain(screen, records[-1])
            if keep is not None:
                keep(records[-1])
            assist = records[-1].assist
            if assist is None or assist.why not in _TOO_SLOW or number == SHORT:
                break
            screen.line("Once more, with the beginning of the text only.")
        beside = {"assist": records[-1]}
        for way in ("server_only", "device_only"):
            async with _ready(way, screen, device, profile, remote, prompt) as client:
                with screen.step(f"For comparison, the same prompt with {way.replace('_', ' ')}"):
                    beside[way] = await _read(client, remote.model, prompt)
    compare(screen, beside)
    if all(r.finish_reason is not None and r.seamless for r in [*records, *beside.values()]):
        return 0
    screen.line("An answer is incomplete, or its seam is broken; see above.", style="bold red")
    return 1


@asynccontextmanager
async def _writing(remote: Remote) -> AsyncIterator[None]:
    """Keep the demo's own server writing, as it will while the device reads: both share the cores of this machine."""
    if remote.shaper is None:
        yield
        return

    async def write() -> None:
        async with openai.AsyncOpenAI(base_url=remote.base_url, api_key=remote.api_key) as plain:
            while True:
                stream = await plain.chat.completions.create(
                    model=remote.model, messages=messages("Tell me a story."), max_tokens=256, stream=True
                )
                async for _ in stream:
                    pass

    async with alongside(write):
        yield


@asynccontextmanager
async def _ready(
    way: str, screen: Screen, device: DemoDevice, profile: DeviceProfile, remote: Remote, prompt: str
) -> AsyncIterator[AsyncDisco]:
    """Yield a client for one way to answer. The device has not read the prompt, and the demo's own server has."""
    await _warm(screen, remote, prompt)
    preset = Preset(
        name=way,
        dispatch=DispatchSection(policy=way),
        cost=CostSection(exchange_rate=MAINS),
        migration=MigrationSection(enabled=way == "assist"),
        playback=PlaybackSection(pace_tps=PACE_TPS),
    )
    async with AsyncDisco(
        local=device.endpoint,
        preset=preset,
        base_url=remote.base_url,
        api_key=remote.api_key,
        continuation=remote.continuation,
        device_profile=profile,
        server_profile=SERVER_PROFILE,
        price=PRICE if remote.process is not None else None,
    ) as client:
        await _read_something_else(client)
        yield client


async def _warm(screen: Screen, remote: Remote, prompt: str) -> None:
    """Let the demo's own server read the prompt outside all figures; a user's own server is left as it is."""
    if remote.shaper is None:
        return
    remote.shaper.delay = 0.0
    with screen.step(
        "Warming the server's cache with the prompt (on this machine it reads no faster than the device)"
    ):
        async with openai.AsyncOpenAI(base_url=remote.base_url, api_key=remote.api_key) as plain:
            await plain.chat.completions.create(model=remote.model, messages=messages(prompt), max_tokens=1)
    remote.shaper.delay = float(load_server(SERVER_PROFILE).ttft().quantile(0.5))


async def _read_something_else(client: AsyncDisco) -> None:
    """Let the device read another prompt, so that it begins the next one without any of it in its cache."""
    await client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Say something else."}],
        max_tokens=1,
        extra_body={"disco": {"local_only": True}},
    )


def _asked(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages(prompt),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
    }


async def _read(client: AsyncDisco, model: str, prompt: str) -> RouteRecord:
    """Read an answer to its end without showing it."""
    stream: Any = await client.chat.completions.create(**_asked(model, prompt, ANSWER_TOKENS))
    async for _ in stream:
        pass
    record: RouteRecord = stream.route
    return record


async def show_answer(
    screen: Screen, client: AsyncDisco, model: str, prompt: str, max_tokens: int
) -> RouteRecord:
    """Ask, and show the answer while it comes: the device's prefill, the bank, the tempo, the text with its seam."""
    screen.line()
    shown = Shown(anyio.current_time())
    stream: Any = await client.chat.completions.create(**_asked(model, prompt, max_tokens))
    with screen.board() as draw:

        def show() -> None:
            state = stream.assist
            if draw is not None:
                draw(picture(screen, state, stream.buffered_tokens, shown))
            elif state is not None and state.outcome == "running":
                elapsed_s = anyio.current_time() - shown.began_at
                screen.line(f"{elapsed_s:5.1f} s  {in_words(state, stream.buffered_tokens)}", style="dim")

        async with repeatedly(show, _LINE_S if draw is None else _FRAME_S):
            async for chunk in stream:
                text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
                shown.add(text, stream.writer or "server")
        if draw is not None:
            draw([text_of(screen, shown)])
    if draw is None:
        for number, (text, writer) in enumerate(shown.pieces):
            screen.stream(
                f"{f' {SEAM} ' if number else ''}[{writer}] {text.lstrip() if number else text}", writer
            )
        screen.flush_line()
    record: RouteRecord = stream.route
    return record


def compare(screen: Screen, records: dict[str, RouteRecord]) -> None:
    """Print a table of the same prompt answered in several ways."""
    columns = ("way", "TTFT", "TBT P99", "late", "server", "device", "bill", "energy", "end")
    rows = []
    for way, record in records.items():
        totals = record.ledger.by_endpoint()
        tokens = {
            place: f"{t.prompt_tokens - t.cached_tokens}+{t.completion_tokens}" for place, t in totals.items()
        }
        rows.append(
            (
                way.replace("_", " "),
                f"{record.pace.ttft_released_s or math.nan:.2f} s",
                f"{record.pace.tbt_released_p99_s or math.nan:.2f} s",
                record.pace.late_tokens,
                tokens.get("server", "–"),
                tokens.get("device", "–"),
                money(record.bill_usd),
                "–" if record.device_energy_j is None else joules(record.device_energy_j),
                f"{record.released[-1][0]:.1f} s",
            )
        )
    screen.line()
    screen.table("The same prompt, answered in three ways", columns, rows)
    mine, *others = [Row(1, way.removesuffix("_only"), record) for way, record in records.items()]
    for other in others:
        screen.line(beside(mine, other), style="bold")
    for way, record in records.items():
        failed = [f"{a.endpoint} failed ({a.failure})" for a in record.attempts if a.failure is not None]
        if failed:
            screen.line(f"{way.replace('_', ' ')}: {'; '.join(failed)}, and another endpoint went on.")
    screen.line(
        "TTFT, TBT, end of the text: as shown to the reader; late: tokens after the reader's deadline at "
        f"{PACE_TPS:g} tokens/s; server, device: tokens of prompt + answer as charged, without cached ones; bill: "
        "paid to the server; energy: of the device, an estimate. The server's price of the prompt is "
        "the same with and without the device: the assist saves the price of the rest of the answer.",
        style="dim",
    )
