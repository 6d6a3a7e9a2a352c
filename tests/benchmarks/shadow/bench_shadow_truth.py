"""How right shadow mode is: what it predicts of a preset, beside what then happens under that preset.

In virtual time by default: the live client on a simulated device and server, whose times are drawn from shipped
profiles; each request has the same times in both runs. `--real` asks the real model and a real llama-server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import numpy as np
import openai._base_client

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2] / "support" / "servers"))
from helpers.measuring import Columns, options
from moved_clock import virtual
from servers import native_llama_server
from shadow_pairs import Pair, Truth, predicted_and_happened

from disco import AsyncDisco, RouteLog
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import load_device, load_lengths, load_server
from disco.session.records.route_record import RouteRecord

PAIRS = [
    Pair("balanced", "cheap"),
    Pair("cheap", "balanced"),
    Pair("balanced", "server-first"),
    Pair("server-first", "balanced"),
    Pair("balanced", "fast"),
    Pair("fast", "cheap"),
    Pair("private", "fast"),
]
SERVERS = ("gpt-4o-mini-2024", "deepseek-v3-2025")
MODEL = "gpt-4o-mini"
PAUSE_S = 30.0  # between two requests: long enough for every answer


class Given:
    """The seconds of the request that is being asked. Mutable: `value`."""

    value = 0.0

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.full(n, self.value)


@contextmanager
def no_threads() -> Iterator[None]:
    """The SDK looks up its platform in a thread, for which a clock that jumps does not wait."""

    def inline(function: Any) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return call

    with mock.patch.object(openai._base_client, "asyncify", inline):
        yield


def workload(requests: int, seed: int) -> tuple[list[int], list[int]]:
    """Prompts in words, and limits of answers."""
    rng = np.random.default_rng(seed)
    lengths = load_lengths("lengths-azure-conv-2023")
    words = np.clip(lengths.prompt(weight=1.0).sample(rng, requests), 5, 1_500)
    answers = np.clip(np.interp(rng.random(requests), *_table(lengths)), 8, 250)
    return [int(w) for w in words], [int(a) for a in answers]


def _table(lengths: Any) -> tuple[Any, Any]:
    return lengths.output_tokens.levels, lengths.output_tokens.values


async def virtual_truths(server_profile: str, requests: int, seed: int) -> list[Truth]:
    words, limits = workload(requests, seed)
    drawn = load_server(server_profile).ttft().sample(np.random.default_rng([seed, 1]), requests)
    jitter = np.random.default_rng([seed, 2]).lognormal(0.0, 0.15, requests)
    profile = load_device("xiaomi14-qwen1.5-0.5b")

    async def ask(pair: Pair, log: RouteLog) -> tuple[list[RouteRecord], list[RouteRecord]]:
        ttft = Given()
        async with AsyncExitStack() as stack:
            sides = []
            for preset, shadow in ((pair.real, pair.shadow), (pair.shadow, None)):
                device, routes = SimulatedEndpoint("device", place="device"), list[RouteRecord]()
                server = SimulatedEndpoint("cloud", place="server")
                client = AsyncDisco(
                    local=device,
                    tiers=[server],
                    preset=preset,
                    shadow=shadow,
                    state=False,
                    power=False,
                    device_profile=profile,
                    on_route=[log, routes.append] if shadow else routes.append,
                )
                await stack.enter_async_context(client)
                sides.append((client, device, server, routes))
            for number in range(requests):
                ttft.value = float(drawn[number])
                for client, device, server, _ in sides:
                    device.profile = SimulatedProfile(
                        prefill_tps=profile.prefill_tps / jitter[number],
                        overhead_s=profile.c_s * jitter[number],
                        decode_tps=profile.decode_tps,
                        answer_tokens=limits[number],
                    )
                    server.profile = SimulatedProfile(
                        ttft_s=ttft, decode_tps=60.0, answer_tokens=limits[number]
                    )
                    text = " ".join([f"sea{number}", *["wave"] * (words[number] - 1)])
                    await read(client, MODEL, text)
                    await anyio.sleep(PAUSE_S)
        return sides[0][-1], sides[1][-1]

    return await predicted_and_happened(PAIRS, ask)


async def read(client: AsyncDisco, model: str, text: str, **more: Any) -> None:
    """Ask, and read to the end."""
    messages: Any = [{"role": "user", "content": text}]
    async for _ in await client.chat.completions.create(model=model, messages=messages, stream=True, **more):
        pass


async def real_truths(requests: int, pairs: list[Pair]) -> list[Truth]:
    from disco.endpoints.host import HostEndpoint

    rng = np.random.default_rng(3)
    repeats = rng.integers(0, 24, requests).tolist()
    with native_llama_server(slots=2) as server:
        there = {
            "base_url": server.base_url,
            "api_key": "none",
            "price": (0.15, 0.6),
            "state": False,
            "power": False,
        }
        device = HostEndpoint(model="smollm2-135m", name="device", context_tokens=2048, threads=1)
        await device.warm_up()

        async def ask(pair: Pair, log: RouteLog) -> tuple[list[RouteRecord], list[RouteRecord]]:
            before, then = list[RouteRecord](), list[RouteRecord]()
            real = {"preset": pair.real, "shadow": pair.shadow, "on_route": [log, before.append]}
            other = {"preset": pair.shadow, "on_route": then.append}
            async with (
                AsyncDisco(local=device, **real, **there) as one,
                AsyncDisco(local=device, **other, **there) as two,
            ):
                for client in (one, two):
                    await client.warm_up(server.model)
                for number, often in enumerate(repeats):
                    # By turns, so that both see the same machine; no prompt begins as the one before it.
                    for side, client in (("a", one), ("b", two)):
                        text = f"{side}{number}: what is a wave?" + " Say it in a few plain words." * often
                        await read(client, server.model, text, max_tokens=16, temperature=0)
            return before, then

        try:
            return await predicted_and_happened(pairs, ask)
        finally:
            await device.aclose()


def show(title: str, truths: list[Truth]) -> None:
    print(f"\n{title}")
    table = Columns(
        "real <14 | shadow <14 | mean s >8.3f | predicted >10.3f | dev. >7 | P99 s >8.3f | predicted >10.3f | "
        "dev. >7 | USD/1000 >9.4f | predicted >10.4f | dev. >7 | measured >9 | assumed >8"
    )
    for one in truths:
        other, (mean, p99, cost) = one.predicted.other, one.deviations()
        known = one.predicted.ttft_from
        table.row(
            *(one.pair.real, one.pair.shadow, one.mean_s, other.ttft_mean_s, f"{mean:+.1%}"),
            *(one.p99_s, other.ttft_p99_s, f"{p99:+.1%}"),
            *(one.cost_usd * 1e3, other.cost_usd * 1e3, f"{cost:+.1%}"),
            *(f"{known['measured']:.0%}", f"{known['assumed']:.0%}"),
        )
    for one in truths:
        mean, ratio = one.predicted.ttft_mean_s, one.predicted.cost_ratio
        print(
            f"  {one.pair.real} > {one.pair.shadow}: mean {mean.value:+.3f} s [{mean.low:+.3f}, {mean.high:+.3f}], "
            f"cost {ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]; the real plans' runs: first token "
            f"{one.predicted.run_ttft_s:+.4f} s, cost {one.predicted.run_cost:.3f}x; {one.ended}"
        )


def main() -> None:
    given = options(
        __doc__,
        requests=(500, "requests of each run in virtual time"),
        seed=(1, "of the workload"),
        real=(False, "ask the real model and a real server instead"),
        real_requests=(50, "requests of each real run"),
    )
    if given.real:
        pairs = [Pair("fast", "balanced"), Pair("fast", "server-first"), Pair("server-first", "fast")]
        truths = anyio.run(real_truths, given.real_requests, pairs)
        show(f"SmolLM2-135M here, llama-server there; {given.real_requests} answers a run", truths)
        return
    for server in SERVERS:
        backend, how = virtual("asyncio")
        with no_threads():
            truths = anyio.run(
                virtual_truths, server, given.requests, given.seed, backend=backend, backend_options=how
            )
        show(f"{server}, {given.requests} requests a run, in virtual time", truths)


if __name__ == "__main__":
    main()
