"""`disco demo --speculate`: a small model here drafts, a verify server answers, and the text is the server's own.

Real are the two models, the server's process, the rounds and the time. The distance is a proxy that holds each request
for 10 ms. The two models are one model in two precisions: F32, which is bound by memory as a large model is, stands for
the server's, and Q8_0 for a small one of the same family.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from disco.amounts import joules, money
from disco.cli.console import Screen
from disco.cli.demonstration.alongside import repeatedly
from disco.cli.demonstration.demo_server import DemoServer, Progress
from disco.cli.demonstration.scene import LOCAL, MAINS, PRICE, Keep
from disco.cli.demonstration.shaping_proxy import shape
from disco.cli.demonstration.speculate_picture import DRAFTED, SERVERS, DraftPicture
from disco.cli.serving.serve_setup import KEY_VARIABLE, require_extra
from disco.client import AsyncDisco
from disco.cost import Totals
from disco.dispatch.presets import CostSection, DispatchSection, PlaybackSection, Preset
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.drafting.llamacpp_drafter import LlamaCppDrafter
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.profiles import user_profile_dir
from disco.session.records.route_record import RouteRecord

__all__ = ["Answer", "VerifyServer", "compare", "run_speculate"]

ROUND_TRIP_S: Final = 0.010
TOKENS: Final = 96
TARGET, DRAFT = "F32", "Q8_0"
QUESTION: Final = "Explain in simple words why the sea is salty, and why rivers are not."
_FRAME_S: Final = 0.05  # between two pictures on a terminal
_LINE_S: Final = 1.0  # between two lines elsewhere


_CHILD = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
from disco.cli import main
sys.exit(main())
"""


class VerifyServer(DemoServer):
    """A real verify server in a process of its own: `disco serve --verify`. See `DemoServer`.

    Needs the extra `disco-llm[server]`, too.

    Attributes:
        key: of the server; made at random.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context_tokens: int = 1024,
        threads: int = 1,
        progress: Progress | None = None,
    ) -> None:
        require_extra()
        self.key = secrets.token_hex(16)
        super().__init__(
            model, context_tokens=context_tokens, threads=threads, api_key=self.key, progress=progress
        )

    def _command(self) -> list[str]:
        options = {
            "verify": self.model,
            "slots": 2,
            "context": self.context_tokens,
            "threads": self.threads,
            "port": self.port,
            "policy": "private",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-c", _CHILD, "serve", *arguments]

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        return {**own, KEY_VARIABLE: self.key}


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its record, its tokens, and the seconds from the first to the last of them."""

    text: str
    record: RouteRecord
    tokens: int
    seconds: float

    @property
    def token_s(self) -> float:
        """Seconds per token behind the first one."""
        return self.seconds / max(1, self.tokens - 1)


async def run_speculate(
    screen: Screen,
    keep: Keep | None = None,
    *,
    target: str = TARGET,
    draft: str = DRAFT,
    tokens: int = TOKENS,
) -> int:
    """Show one answer with drafts and ask for it without; return 0 if both are complete and have the same bytes."""
    screen.line("disco: drafted here, written by the server", style="bold")
    screen.line(
        f"The server has SmolLM2-135M as {target}, which stands for a large model that memory binds; this side drafts "
        f"with the same model as {draft}. Each request is held for {1000 * ROUND_TRIP_S:.0f} ms: that is the distance.",
        style="dim",
    )
    folder, source = user_profile_dir().parent / "models", resolve_model(LOCAL)
    with screen.step(f"Making {target} and {draft} from the model's file; they are kept (0.7 GB)"):
        server_file, draft_file = [
            await anyio.to_thread.run_sync(requantised, source, kind, folder) for kind in (target, draft)
        ]
    local = LlamaCppEndpoint(model=draft_file, name="device", context_tokens=1024, threads=1)
    try:
        async with _server(screen, server_file) as (base_url, key), _client(local, base_url, key) as client:
            with screen.step(f"Loading {draft}"):
                await client.warm_up()
            await _ask(client, 1, speculate=False)  # reads the prompt, for both answers
            drafted = await _show(screen, client, local.drafter(), tokens)
            if keep is not None:
                keep(drafted.record)
            with screen.step("The same question to the server alone"):
                alone = await _ask(client, tokens, speculate=False)
    finally:
        await local.aclose()
    return compare(screen, drafted, alone)


@asynccontextmanager
async def _server(screen: Screen, model: Any) -> AsyncIterator[tuple[str, str]]:
    """Yield the base URL behind the distance, and the key, of a verify server with this model."""
    with screen.step("Starting `disco serve --verify` in its own process") as progress:
        process = VerifyServer(model, progress=progress)
        await anyio.to_thread.run_sync(process.start)
    try:
        async with shape(process.port, ROUND_TRIP_S) as shaper:
            yield shaper.base_url, process.key
    finally:
        process.stop()


def _client(local: LlamaCppEndpoint, base_url: str, key: str) -> AsyncDisco:
    preset = Preset(
        name="speculate",
        dispatch=DispatchSection(policy="server_only"),
        cost=CostSection(exchange_rate=MAINS),
        playback=PlaybackSection(pace_tps="off"),
    )
    # "always": the scene is about drafting. Without it, disco drafts only where that is predicted to pay.
    return AsyncDisco(
        local=local, preset=preset, base_url=base_url, api_key=key, price=PRICE, speculate="always"
    )


async def _show(screen: Screen, client: AsyncDisco, drafter: Any, tokens: int) -> Answer:
    """Ask, and show the answer while it comes."""
    assert isinstance(drafter, LlamaCppDrafter)
    picture = DraftPicture(drafter.text_of)
    assert client.server is not None
    pair = client.router.endpoints.pairs.pair(client.server, client.router.preset.speculate)
    pair.pairing.watch = picture.see
    screen.line()
    if screen.is_terminal:
        screen.line("■ drafted here, and right", style=DRAFTED)
        screen.line("■ the server's own", style=SERVERS)
        screen.line("grey: on its way to the server; struck: rejected", style="bright_black")
    began_at = anyio.current_time()
    with screen.board() as draw:

        def show() -> None:
            elapsed_s = anyio.current_time() - began_at
            if draw is not None:
                draw(picture.lines(elapsed_s))
            else:
                screen.line(picture.status(elapsed_s), style="dim")

        async with repeatedly(show, _LINE_S if draw is None else _FRAME_S):
            answer = await _ask(client, tokens)
        if draw is not None:
            draw(picture.lines(anyio.current_time() - began_at))
    pair.pairing.watch = None
    if draw is None:
        screen.line(picture.marked())
        screen.line("⟨ ⟩: the server's own; all else was drafted here, and right.", style="dim")
    return answer


async def _ask(client: AsyncDisco, tokens: int, *, speculate: bool = True) -> Answer:
    stream: Any = await client.chat.completions.create(
        model=LOCAL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=tokens,
        temperature=0.8,
        seed=3,
        stream=True,
        extra_body={"disco": {"migrate": False} | ({} if speculate else {"speculate": False})},
    )
    text, times = "", []
    async for chunk in stream:
        piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if piece:
            text += piece
            times.append(anyio.current_time())
    record: RouteRecord = stream.route
    return Answer(text, record, record.attempts[-1].tokens, times[-1] - times[0] if times else 0.0)


def _cells(record: RouteRecord, endpoint: str) -> tuple[str, str]:
    """Return what an answer cost at an endpoint: tokens of prompt + answer, without cached ones, and money or energy.

    A probe in the background belongs to no answer.
    """
    own = [c for c in record.ledger.charges if c.endpoint == endpoint and c.attempt is not None]
    if not own:
        return "–", "–"
    prompt, written = (
        sum(c.prompt_tokens - c.cached_tokens for c in own),
        sum(c.completion_tokens for c in own),
    )
    sums = Totals.of(own)
    is_free = not sums.bill_usd and sums.device_energy_j
    return f"{prompt}+{written}", joules(sums.device_energy_j or 0.0) if is_free else money(sums.bill_usd)


def compare(screen: Screen, drafted: Answer, alone: Answer) -> int:
    """Print both answers' figures, and whether they are one text; return the exit status."""
    report = drafted.record.attempts[0].speculation
    rows = []
    for way, answer in (("drafted", drafted), ("alone", alone)):
        said = answer.record.attempts[0].speculation
        spent = [cell for endpoint in ("device", "server") for cell in _cells(answer.record, endpoint)]
        rounds = ("–", "–") if said is None else (said.rounds, f"{said.accepted} of {said.judged}")
        rows.append((way, f"{1000 * answer.token_s:.1f}", *rounds, *spent))
    screen.line()
    screen.table(
        f"One question, {alone.tokens} tokens",
        ("", "ms/tok", "rounds", "right", "device", "energy", "server", "bill"),
        rows,
    )
    screen.line(
        "right: drafted tokens that the server chose too, of those it compared; device, server: tokens of prompt + "
        "answer as charged, without cached ones: drafts cost the device, rejected ones the server, too. The "
        "server's price is gpt-4o-mini's; the device's energy is an estimate.",
        style="dim",
    )
    if report is not None:
        windows = ", ".join(f"{window}: {count}" for window, count in report.windows)
        screen.line(f"Rounds by drafted tokens: {windows or 'none'}.", style="dim")
    ratio = alone.token_s / drafted.token_s if drafted.seconds and alone.seconds else 1.0
    slow = "" if ratio > 1 else ": drafting does not pay on this machine"
    screen.line(f"With drafts, the server's text came {ratio:.2f} times as fast as without{slow}.")
    if any(one.record.finish_reason is None for one in (drafted, alone)):
        screen.line("An answer is incomplete.", style="bold red")
        return 1
    if drafted.text == alone.text:
        size = len(alone.text.encode())
        screen.line(f"Both texts are the same, byte for byte ({size} bytes).", style="bold")
        return 0
    pairs = zip(drafted.text, alone.text, strict=False)
    shorter = min(len(drafted.text), len(alone.text))
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), shorter)
    screen.line(f"The texts are not the same: they differ from character {at} on.", style="bold red")
    return 1
