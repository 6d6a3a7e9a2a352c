"""Live assists beside other ways to answer: SmolLM2 in this process, and behind a proxy in llama.cpp's own server.

On a machine with few cores the server reads a prompt no faster than the device, which no server does. So its cache is
WARMED: before each request the prompt is sent to the server once, without the proxy and outside every figure. The
proxy then makes it answer after `--ttft` seconds. One thread each. The server writes without flash attention, with
which it would write more slowly behind long prompts. A frequency penalty keeps so small a model from repeating itself.

The prompts are made of the pages of docs, 600 to 1,500 tokens by the model's own count. Each is answered in every way
before the next one is. Prints, for each way: the reader's time to first token (also as a ratio to "server", prompt by
prompt), the longest gap between two pieces of text per token, the answers without a late token, tokens and money by
side, and the time to the end. Then for the assist: the server's own count of its tokens beside the limit, the seams,
and why answers were not divided.

A machine that is shared, or has fewer cores than there are threads here, at times runs this process late; then any
display stutters, whatever it does. So a clock in the same event loop ticks all the time, and the gaps and late tokens
are also counted for those answers alone during which no tick was late by more than a frame.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import anyio
import openai
from helpers import tests_path  # noqa: F401 - finds the servers of the tests
from helpers.measuring import Columns, options, percentile
from servers import native_llama_server

from disco import AsyncDisco
from disco.cli.console import Screen
from disco.cli.profile import measure_device
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.playback import reader_metrics
from disco.profiles import DeviceProfile, QuantileTable, ServerProfile
from disco.session.records.route_record import RouteRecord
from disco.testing import shape

PRICE = (0.15, 0.60)  # USD per million tokens, of gpt-4o-mini
FRAME_S = 1 / 60
DOCS = Path(__file__).parents[3] / "docs"
TASK = "Explain in your own words what this text is about:\n\n"


@dataclass(frozen=True)
class Way:
    """A way of answering: a preset, and whether there is a device, and a server."""

    preset: dict[str, Any] = field(default_factory=dict)
    device: bool = True
    server: bool = True


def ways(pace_tps: float) -> dict[str, Way]:
    playback = {"playback": {"pace_tps": pace_tps}}
    return {
        "device": Way({"dispatch": {"policy": "device_only"}, **playback}, server=False),
        "server": Way({"dispatch": {"policy": "server_only"}, **playback}, device=False),
        "race and move": Way({"dispatch": {"policy": "race"}, **playback}),
        "assist": Way({"dispatch": {"policy": "assist"}, **playback}),
        "assist, Eq. 4": Way({"dispatch": {"policy": "assist"}, "assist": {"tempo": "once"}, **playback}),
    }


@dataclass
class Seen:
    """The answers of one way: records, the prompts' lengths, and by how much a tick was late at most meanwhile, s."""

    records: list[RouteRecord] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    latest_s: list[float] = field(default_factory=list)


@dataclass
class Ticks:
    """A clock in the event loop. Mutable: `latest_s`, by how much a tick was late at most, s."""

    latest_s: float = 0.0

    async def run(self) -> None:
        while True:
            due_at = time.monotonic() + 0.01
            await anyio.sleep(0.01)
            self.latest_s = max(self.latest_s, time.monotonic() - due_at)


async def main(
    count: int, ttft: float, answer: int, pace: float, quant: str, only: Sequence[str], seed: int
) -> None:
    screen = Screen(width=200)
    model = resolve_model("smollm2-135m")
    if quant:
        model = requantised(model, quant, Path(tempfile.gettempdir()))
    device = HostEndpoint(model=model, name="device", context_tokens=4096, threads=1)
    try:
        profile = await measure_device(device, screen, name="here", quick=True, lengths=(16, 256, 1024))
        with native_llama_server(context_tokens=4096, model=model, flash_attention=False) as server:
            async with shape(int(server.base_url.split(":")[2].split("/")[0]), ttft, seed=seed) as shaper:
                asked = await prompts(server, count, seed)
                how = Continuation(method="completions", template=str(server.gguf))
                found = await measure(
                    screen, asked, answer, pace, device, profile, server, shaper.base_url, ttft, how, only
                )
    finally:
        await device.aclose()
    show(found, pace)


async def prompts(server: Any, count: int, seed: int) -> list[tuple[str, int]]:
    """Beginnings of pages' parts, with their length as the model counts it, evenly spread over 600 to 1,500 tokens."""
    del seed
    text = "\n\n".join(page.read_text() for page in sorted(DOCS.rglob("*.md")))
    paragraphs = [
        part for part in text.split("\n\n") if len(part) > 200 and "|" not in part and "```" not in part
    ]
    out = []
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        for number in range(count):
            wanted, at, chosen, tokens = 600 + 900 * number // max(1, count - 1), number * 7, "", 0
            while tokens < wanted:
                chosen += paragraphs[at % len(paragraphs)] + "\n\n"
                at += 1
                if len(chosen) > 3 * wanted:
                    tokens = await count_tokens(client, chosen)
            while tokens > wanted + 20:
                chosen = chosen[: int(len(chosen) * (wanted + 10) / tokens)]
                tokens = await count_tokens(client, chosen)
            out.append((TASK + chosen.strip(), tokens))
    return out


async def count_tokens(client: openai.AsyncOpenAI, text: str) -> int:
    path = str(client.base_url).removesuffix("/v1/") + "/tokenize"
    counted: Any = await client.post(path, body={"content": text}, cast_to=object)
    return len(counted["tokens"])


async def measure(
    screen: Screen,
    asked: list[tuple[str, int]],
    answer: int,
    pace: float,
    device: HostEndpoint,
    profile: DeviceProfile,
    server: Any,
    base_url: str,
    ttft: float,
    how: Continuation,
    only: Sequence[str],
) -> dict[str, Seen]:
    known = ServerProfile(
        name="shaped",
        source="this benchmark's proxy",
        licence="none",
        rows=1,
        ttft_s=QuantileTable(levels=(0.0, 1.0), values=(ttft, ttft + 0.1), mean=ttft + 0.05),
        tpot_s=QuantileTable(levels=(0.0, 1.0), values=(0.02, 0.06), mean=0.04),
    )
    taken = {name: way for name, way in ways(pace).items() if not only or name in only}
    found = {name: Seen() for name in taken}
    clients: dict[str, AsyncDisco] = {}
    began, ticks = time.monotonic(), Ticks()
    async with (
        openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as direct,
        anyio.create_task_group() as group,
    ):
        group.start_soon(ticks.run)
        for name, way in taken.items():
            given: dict[str, Any] = {"policy": Preset(name=name, **way.preset)}
            if way.device:
                given |= {"local": device, "device_profile": profile}
            if way.server:
                given |= {"base_url": base_url, "api_key": "none", "price": PRICE}
                given |= {"server_profile": known, "continuation": how}
            else:
                given |= {"base_url": None, "api_key": None}
            clients[name] = AsyncDisco(**given)
        try:
            with screen.step("Answering") as show_step:
                for number, (text, tokens) in enumerate(asked):
                    messages: Any = [{"role": "user", "content": text}]
                    for name, client in clients.items():
                        if taken[name].server:
                            await direct.chat.completions.create(
                                model="smollm2-135m", messages=messages, max_tokens=1
                            )
                        await forget(device)
                        ticks.latest_s = 0.0
                        stream = await client.chat.completions.create(
                            model="smollm2-135m",
                            messages=messages,
                            max_tokens=answer,
                            temperature=0.0,
                            frequency_penalty=0.5,
                            stream=True,
                        )
                        async for _ in stream:
                            pass
                        found[name].records.append(stream.route)
                        found[name].prompts.append(tokens)
                        found[name].latest_s.append(ticks.latest_s)
                    show_step(time.monotonic() - began, f"prompt {number + 1} of {len(asked)}")
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for client in clients.values():
                    await client.close()
    return found


async def forget(device: HostEndpoint) -> None:
    """Let the device read something else, so that it begins each prompt cold."""
    async with AsyncDisco(policy="private", local=device, base_url=None, api_key=None) as client:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Say something else."}], max_tokens=1
        )


def without_empty(found: dict[str, Seen]) -> None:
    """Leave out the prompts to which the model has nothing to say in one of the ways, and say how many."""
    count = min(len(seen.records) for seen in found.values())
    kept = [n for n in range(count) if all(seen.records[n].released for seen in found.values())]
    print(f"{count} prompts; {count - len(kept)} of them left out, as the model answered nothing")
    for seen in found.values():
        seen.records, seen.prompts = [seen.records[n] for n in kept], [seen.prompts[n] for n in kept]
        seen.latest_s = [seen.latest_s[n] for n in kept]


def show(found: dict[str, Seen], pace: float) -> None:
    without_empty(found)
    beside = [ttft_of(r) for r in found["server"].records] if "server" in found else []
    table = Columns(
        "way <15 | answers >8 | TTFT P50 s >11.3f | P95 s >7.3f | of server's >12.3f | gap P99 s >10.3f | "
        "longest >8.3f | none late % >12.1f | server tokens >14.1f | device >7.1f | $/1000 >8.4f | end s >7.2f"
    )
    for name, seen in found.items():
        records = seen.records
        first = [ttft_of(r) for r in records]
        gaps = [gap for r in records for gap in gaps_of(r)]
        on_time = [reader_metrics.late_tokens(r.released, pace) == 0 for r in records]
        ratios = (
            [mine / other for mine, other in zip(first, beside, strict=True)] if beside else [float("nan")]
        )
        table.row(
            name,
            len(records),
            statistics.median(first),
            percentile(first, 0.95),
            statistics.median(ratios),
            percentile(gaps, 0.99),
            max(gaps),
            100 * statistics.mean(on_time),
            statistics.mean(written(r, "server") for r in records),
            statistics.mean(written(r, "device") for r in records),
            1000 * statistics.mean(r.policy_cost for r in records),
            statistics.mean(r.released[-1][0] for r in records),
        )
    for name, seen in found.items():
        if name.startswith("assist"):
            show_assists(name, seen, pace)


def show_assists(name: str, seen: Seen, pace: float) -> None:
    records = seen.records
    outcomes = Counter(r.assist.why or r.assist.outcome for r in records if r.assist)
    print(f"\n{name}: " + ", ".join(f"{count} {what}" for what, count in outcomes.most_common()))
    which = [n for n, r in enumerate(records) if r.assist and r.assist.outcome == "handed_over"]
    divided = [records[n] for n in which]
    if not divided:
        return
    within = [written(r, "server") <= r.assist.tokens for r in divided]
    longest = [max(gaps_of(r)) <= 1 / pace + FRAME_S for r in divided]
    at_seam = [max(gaps_of(r, until_s=seam_of(r) + 1.0)) <= 1 / pace + FRAME_S for r in divided]
    late = [reader_metrics.late_tokens(r.released, pace) for r in divided]
    agreed = [r.assist.agreement for r in divided if r.assist.agreement is not None]
    print(f"  prompt tokens {min(seen.prompts)} to {max(seen.prompts)}")
    print(
        f"  limit L: median {statistics.median(r.assist.tokens for r in divided)}, "
        f"{min(r.assist.tokens for r in divided)} to {max(r.assist.tokens for r in divided)}"
    )
    print(f"  server's own count of its tokens <= L: {sum(within)} of {len(divided)}")
    print(f"  seams exact: {sum(r.seamless for r in divided)} of {len(divided)}")
    print(f"  longest gap per token <= 1/pace + one frame: {sum(longest)} of {len(divided)}")
    print(f"  the same, up to a second after the device's first token: {sum(at_seam)} of {len(divided)}")
    print(f"  answers without a late token: {late.count(0)} of {len(divided)}")
    calm = [n for n, number in enumerate(which) if seen.latest_s[number] <= FRAME_S]
    print(
        f"  {len(calm)} answers while this process was never more than a frame late: no longer gap in "
        f"{sum(longest[n] for n in calm)}, no late token in {[late[n] for n in calm].count(0)}"
    )
    took = [m.took_s for r in divided for m in r.migrations if m.took_s is not None]
    print(
        f"  from the end of the server's part to the device's first token: P50 {percentile(took, 0.5):.3f} s"
    )
    if agreed:
        print(
            f"  agreement (nats per token): mean {statistics.mean(agreed):.2f}, "
            f"{min(agreed):.2f} to {max(agreed):.2f}"
        )


def ttft_of(record: RouteRecord) -> float:
    return record.released[0][0]


def seam_of(record: RouteRecord) -> float:
    """When the text of the device begins to be shown, seconds after the request."""
    move = next(m for m in record.migrations if m.outcome == "switched")
    shown = 0
    for at, tokens in record.released:
        shown += tokens
        if shown > move.cut_tokens:
            return at
    return record.released[-1][0]


def gaps_of(record: RouteRecord, until_s: float = float("inf")) -> list[float]:
    """Seconds between two pieces of text, per token of the earlier one, which is read meanwhile: words leave whole."""
    pieces: dict[float, int] = {}
    for at, tokens in record.released:
        if at <= until_s:
            pieces[at] = pieces.get(at, 0) + tokens
    shown = list(pieces.items())
    return [(later - at) / max(1, tokens) for (at, tokens), (later, _) in pairwise(shown)] or [0.0]


def written(record: RouteRecord, place: str) -> int:
    return sum(a.completion_tokens for a in record.attempts if a.place == place)


if __name__ == "__main__":
    given = options(
        __doc__,
        count=100,
        ttft=(0.6, "seconds that the proxy holds a request"),
        answer=(128, "most tokens of an answer"),
        pace=(10.0, "slowest pace, tokens/s"),
        quant=("", "quantisation of the model on both sides, such as Q4_0; as it comes by default"),
        only=([""], "ways to take; all by default"),
        seed=7,
    )
    chosen = [name for name in given.only if name]
    sys.exit(
        anyio.run(main, given.count, given.ttft, given.answer, given.pace, given.quant, chosen, given.seed)
    )
