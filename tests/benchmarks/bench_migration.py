"""Moves in mid-answer on the real model and a real server: is the reader ever late?

Prints one row per way and pace: reading pace (4.8 tokens/s) and two screen paces (25 and 75). Besides lateness: how
long a hand-over took, how many tokens its target had to read (those in its cache not counted), and how many tokens its
source wrote behind the cut in vain. `--quant Q4_0` takes SmolLM2 in that quantisation on both sides: it reads and
writes faster, as the fast paces need. With --bytes, instead: what a half-written answer weighs on its way, of README
and docs or of the files given.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
from helpers import prefix_bytes
from helpers.measuring import options

from disco import AsyncDisco
from disco.cli.console import Screen
from disco.cli.profile import measure_device
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.playback.reader_metrics import quantile, tbt_s
from disco.profiles import load_server
from disco.session.records.route_record import RouteRecord
from disco.testing import ModelServer, Shaper, shape

PACES = (4.8, 25.0, 75.0)
PAPER = "3.25–17.17"  # mean late tokens at 4.8 tokens/s, over its servers and regimes
QUESTIONS = (
    *("Tell me about the sea.", "What is a lighthouse for?", "Describe a morning in the mountains."),
    *(
        "How is bread made?",
        "Tell me about the moon.",
        "What do bees do all day?",
        "Describe an old library.",
    ),
    "Tell me about a long journey by train.",
)
# λ in USD per 10⁶ FLOPs: free energy makes the device the cheap side, an empty battery the dear one.
WAYS = {"server → device": ("server_only", 0.0), "device → server": ("device_only", 1e-7)}


async def main(runs: int, profile_name: str, paces: Sequence[float], quant: str) -> None:
    screen = Screen(width=200)
    ttft = load_server(profile_name).ttft()
    model = resolve_model("smollm2-135m")
    if quant:
        model = requantised(model, quant, Path(tempfile.gettempdir()))
    device = HostEndpoint(model=model, name="device", context_tokens=2048, threads=1)
    try:
        profile = await measure_device(device, screen, name="here", quick=True)
        with ModelServer(model, model_name="smollm2-135m", threads=1) as server:
            async with shape(server.port, ttft, seed=7) as shaper:
                how = Continuation(method="completions", template=str(server.model))
                given = {"local": device, "device_profile": profile, "continuation": how}
                ways = [(way, pace) for way in WAYS for pace in paces]
                rows = [await measure(screen, runs, way, pace, shaper, **given) for way, pace in ways]
    finally:
        await device.aclose()
    columns = (
        *(
            "way",
            "pace tok/s",
            "runs",
            "moved",
            "late mean",
            "late P99",
            "whole-answer late mean",
            "TBT P99 s",
        ),
        *("1/pace s", "hand-over s P50", "read again", "in vain", "given up", "paper's late mean"),
    )
    screen.table(f"Moves in mid-answer, {runs} runs each, server delayed like {profile_name}", columns, rows)


async def measure(
    screen: Screen, runs: int, way: str, pace: float, shaper: Shaper, **client_options: Any
) -> tuple[object, ...]:
    policy, exchange_rate = WAYS[way]
    cost, playback = {"exchange_rate": exchange_rate}, {"pace_tps": pace}
    preset = Preset(name="bench", dispatch={"policy": policy}, cost=cost, playback=playback)
    records: list[RouteRecord] = []
    began = time.monotonic()
    address = {"base_url": shaper.base_url, "api_key": "none", "server_profile": "gpt-4o-mini-2024"}
    async with AsyncDisco(policy=preset, price=(0.15, 0.60), **address, **client_options) as client:
        await client.warm_up()
        with screen.step(f"{way} at {pace:g} tokens/s") as show:
            for run in range(runs):
                asked = {"role": "user", "content": QUESTIONS[run % len(QUESTIONS)]}
                drawn: Any = {"stream": True, "max_tokens": 100, "temperature": 0.7, "seed": run}
                stream = await client.chat.completions.create(model="smollm2-135m", messages=[asked], **drawn)
                async for _ in stream:
                    pass
                assert stream.route.seamless, "a seam is broken"
                records.append(stream.route)
                show(time.monotonic() - began, f"run {run + 1} of {runs}")
    return row(way, pace, records)


def row(way: str, pace: float, records: list[RouteRecord]) -> tuple[object, ...]:
    moved = [t for r in records for t in r.migrations if t.outcome == "switched"]
    given_up = Counter(t.outcome for r in records for t in r.migrations if t.outcome != "switched")
    late = [t.late_tokens for t in moved]
    whole = [r.pace.late_tokens for r in records]
    gaps = [gap for r in records for gap in tbt_s(r.released)]
    took = [t.took_s for t in moved if t.took_s is not None]
    late_mean, late_p99, took_p50 = ("–",) * 3
    if moved:
        late_mean, late_p99 = f"{sum(late) / len(late):.2f}", f"{quantile(late, 0.99):.1f}"
        took_p50 = f"{quantile(took, 0.5):.2f}"
    why = ", ".join(f"{n} {why}" for why, n in given_up.items()) or "–"
    read, vain = work(records)
    tbt = (f"{sum(whole) / len(whole):.2f}", f"{quantile(gaps, 0.99):.3f}", f"{1 / pace:.3f}")
    found = (way, f"{pace:g}", len(records), len(moved), late_mean, late_p99, *tbt, took_p50, read, vain, why)
    return (*found, PAPER if pace == PACES[0] else "–")


def work(records: list[RouteRecord]) -> tuple[str, str]:
    """Tokens per move that its target read, and that its source wrote in vain."""
    pairs = [(r.attempts[a.attempt], r.attempts[b.attempt]) for r in records for a, b in pairwise(r.segments)]
    if not pairs:
        return "–", "–"
    read = sum(target.prompt_tokens - target.cached_tokens for _, target in pairs) / len(pairs)
    vain = sum(source.tokens - source.kept_tokens for source, _ in pairs) / len(pairs)
    return f"{read:.1f}", f"{vain:.1f}"


if __name__ == "__main__":
    quants = ("", "quantisation of the model, such as Q4_0; as it comes by default")
    sizes = {"bytes": False, "files": [Path()]}
    given = options(__doc__, runs=50, profile="gpt-4o-mini-2024", paces=[*PACES], quant=quants, **sizes)
    if given.bytes:
        sys.exit(prefix_bytes.main([file for file in given.files if file != Path()]))
    sys.exit(anyio.run(main, given.runs, given.profile, given.paces, given.quant))
