"""What the state file is worth: a client's first 100 requests at its first start and at its second, beside an oracle.

The real client in virtual time, with a server whose time to first token (TTFT) is drawn from a shipped profile other
than the one that a client begins with, and a device whose line is not the assumed one. Both starts and the oracle get
the same requests and the same draws. The oracle knows the server's distribution, the device's line and the lengths.

error:    mean of |expected TTFT - what happened| over the endpoints that the plans started and that wrote, s; expected
          is the median, or the device's line. Of the oracle: what no plan can foresee.
excess:   the error beyond the oracle's.
F:        mean distance of the quantiles of the server's TTFT that plans are made from to the true ones, s.
regret:   mean TTFT of the answers beyond the oracle's, s.
share:    of the prompt tokens, what the side got that the budget of one half limits.

Intervals: 95 %, bootstrap over the seeds. "left" is the second start's figure as a share of the first one's.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import anyio
import numpy as np
from helpers import tests_path  # noqa: F401 - makes the tests' helpers importable
from helpers.measuring import Columns, options
from moved_clock import VirtualLoop

from disco import AsyncDisco
from disco.dispatch import Preset, features_of
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import (
    DeviceProfile,
    Empirical,
    FlopsPerToken,
    Lengths,
    Rolling,
    RollingLine,
    load_lengths,
    load_server,
)
from disco.request import Request

SERVERS = {
    "DeepSeek-V3": "deepseek-v3-2025",
    "GPT-4.1-nano": "gpt-4.1-nano-2026",
    "Llama-2-70B, Replicate": "llama-2-70b-replicate-2023",
    "Llama-2-70B, Anyscale": "llama-2-70b-anyscale-2023",
}
RATES = {"device dearer": 1e-8, "server dearer": 4e-12}  # USD per 10^6 FLOPs; decides what the budget limits
LEVELS = np.arange(0.005, 1.0, 0.01)
MODEL = "gpt-4o-mini"
DEVICE_NOISE_S = 0.02


class Draw:
    """The draw of the present request. Mutable: `at`."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.at = values, 0

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.full(n, self.values[self.at])


class Server(SimulatedEndpoint):
    address, has_route = ("server.example", 443), True


@dataclass
class World:
    """One seed's requests and draws."""

    truth: Empirical
    line: tuple[float, float]
    tokens: np.ndarray
    server_s: Draw
    noise_s: Draw

    def prompt(self, number: int) -> str:
        return " ".join([f"request-{number}", *["wave"] * (int(self.tokens[number]) - 2)])

    def estimated_tokens(self) -> list[int]:
        """The lengths as plans see them."""
        requests = (
            Request([{"role": "user", "content": self.prompt(i)}], MODEL) for i in range(len(self.tokens))
        )
        return [features_of(r, stream=False, local_only=False).prompt_tokens for r in requests]

    @classmethod
    def drawn(cls, server: str, line: tuple[float, float], requests: int, seed: int) -> World:
        rng = np.random.default_rng(seed)
        truth = load_server(server).ttft()
        lengths = load_lengths("lengths-azure-conv-2023").prompt(weight=50.0).sample(rng, 4 * requests)
        tokens = lengths[(lengths > 8) & (lengths < 1500)][:requests]
        noise_s = rng.exponential(DEVICE_NOISE_S, requests)
        return cls(truth, line, tokens, Draw(truth.sample(rng, requests)), Draw(noise_s))

    def go_to(self, number: int) -> None:
        self.server_s.at = self.noise_s.at = number


@dataclass
class Figures:
    error_s: float
    quantiles_s: float
    ttft_s: float
    limited_share: float


def preset(rate: float) -> Preset:
    return Preset(
        name="bench",
        dispatch={"policy": "auto", "budget": 0.5, "tail": 0.05},
        cost={"exchange_rate": rate},
        playback={"pace_tps": "off"},
        migration={"enabled": False},
    )


async def run(world: World, rate: float, state: Path | bool, *, is_oracle: bool = False) -> Figures:
    """One start of the client: all requests, one after the other."""
    k, c = world.line
    device = SimulatedEndpoint(
        "device",
        SimulatedProfile(
            prefill_tps=1.0 / k, overhead_s=c, ttft_s=world.noise_s, decode_tps=30.0, answer_tokens=12
        ),
        place="device",
    )
    writes = SimulatedProfile(ttft_s=world.server_s, decode_tps=50.0, answer_tokens=12)
    server = Server("server", writes, place="server")
    known = None if not is_oracle else oracles_profile(world)
    client = AsyncDisco(
        api_key="x", local=device, preset=preset(rate), state=state, device_profile=known, price=(0.15, 0.60)
    )
    client.server = server
    router = client.router
    members = router.endpoints.members(server)
    router.learnt.ready_now(members, MODEL, anyio.current_time())
    if is_oracle:
        router.statistics.prompts = Lengths.from_samples(world.estimated_tokens())
    errors_s, distances_s, ttfts_s, limited_tokens, all_tokens = [], [], [], 0, 0
    limited = "server" if rate == RATES["server dearer"] else "device"
    true_quantiles = world.truth.quantile(LEVELS)
    async with client:
        for number, tokens in enumerate(world.tokens):
            world.go_to(number)
            theirs, ours = (
                router.learnt.known(m, MODEL, router.catalog.known(m, MODEL)) for m in reversed(members)
            )
            if is_oracle:  # what it sees changes nothing
                theirs.ttft = Rolling(prior=world.truth, prior_weight=1e6)
                ours.line = RollingLine(k, c + DEVICE_NOISE_S)
            expected = theirs.ttft.snapshot()
            happened_s = k * tokens + c + world.noise_s.values[number]
            planned = {
                "server": abs(expected.quantile(0.5) - world.server_s.values[number]),
                "device": abs(ours.line.k_s_per_token * tokens + ours.line.c_s - happened_s),
            }
            distances_s.append(float(np.abs(expected.quantile(LEVELS) - true_quantiles).mean()))
            asked = [{"role": "user", "content": world.prompt(number)}]
            route = (await client.chat.completions.create(model=MODEL, messages=asked)).route
            errors_s += [planned[a.endpoint] for a in route.attempts if a.first_content_s is not None]
            ttfts_s.append(route.pace.ttft_raw_s)
            limited_tokens += sum(route.prompt_tokens for a in route.attempts if a.endpoint == limited)
            all_tokens += route.prompt_tokens
            await anyio.sleep(5.0)
    share = limited_tokens / all_tokens
    return Figures(*(float(np.mean(v)) for v in (errors_s, distances_s, ttfts_s)), share)


def oracles_profile(world: World) -> DeviceProfile:
    k, c = world.line
    flops = FlopsPerToken(prompt_tokens=(128.0,), prefill=(1e9,), decode=1e9)
    return DeviceProfile(
        name="oracle",
        source="the truth",
        prefill_tps=1 / k,
        decode_tps=30.0,
        k_s_per_token=k,
        c_s=c,
        flops=flops,
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    rng = np.random.default_rng(1)
    means = rng.choice(np.asarray(values), (2000, len(values))).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def text(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{statistics.fmean(values):.3f} [{low:.3f}, {high:.3f}]"


def left(first: Sequence[float], second: Sequence[float]) -> str:
    return (
        f"{statistics.fmean(second) / statistics.fmean(first):.2f}" if statistics.fmean(first) > 1e-9 else "-"
    )


def main() -> None:
    given = options(__doc__, seeds=10, requests=100, prefill_tps=600.0, overhead_s=0.1)
    line = 1.0 / given.prefill_tps, given.overhead_s
    columns = Columns(
        "server <23 | budget on <14 | what <7 | first start >24 | second start >24 | left >5 | oracle >7"
    )
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, tempfile.TemporaryDirectory() as folder:
        for title, server in SERVERS.items():
            for regime, rate in RATES.items():
                first, second, oracle = [], [], []
                for seed in range(given.seeds):
                    world = World.drawn(server, line, given.requests, seed)
                    file = Path(folder) / f"{server}-{regime}-{seed}.sqlite3"
                    first.append(runner.run(run(world, rate, file)))
                    second.append(runner.run(run(world, rate, file)))
                    oracle.append(runner.run(run(world, rate, False, is_oracle=True)))
                rows = {
                    "error": ([f.error_s for f in first], [f.error_s for f in second]),
                    "excess": tuple(
                        [f.error_s - o.error_s for f, o in zip(start, oracle, strict=True)]
                        for start in (first, second)
                    ),
                    "F": ([f.quantiles_s for f in first], [f.quantiles_s for f in second]),
                    "regret": tuple(
                        [f.ttft_s - o.ttft_s for f, o in zip(start, oracle, strict=True)]
                        for start in (first, second)
                    ),
                    "share": ([f.limited_share for f in first], [f.limited_share for f in second]),
                }
                oracles = {
                    "error": statistics.fmean(o.error_s for o in oracle),
                    "regret": statistics.fmean(o.ttft_s for o in oracle),
                    "share": statistics.fmean(o.limited_share for o in oracle),
                }
                for what, (one, other) in rows.items():
                    known = f"{oracles[what]:.3f}" if what in oracles else ""
                    columns.row(title, regime, what, text(one), text(other), left(one, other), known)


if __name__ == "__main__":
    main()
