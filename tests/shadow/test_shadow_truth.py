"""What shadow mode predicts of a preset is what then happens under it: the live client, both times, in virtual time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from defects.asking import MODEL, create, preset, text_of
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture

from disco import AsyncDisco, RouteLog
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import DeviceProfile, FlopsPerToken
from disco.replay.shadow.shadow_figures import Comparison, compare
from disco.replay.shadow.shadow_recording import read_shadowed
from disco.replay.shadow.shadow_runs import play_shadows
from disco.session.records.route_record import RouteRecord

pytestmark = pytest.mark.anyio

RATE = 4e-12
FLOPS = FlopsPerToken(prompt_tokens=(128.0,), prefill=(1e9,), decode=1e9)
HERE = DeviceProfile(
    name="here", source="this test", prefill_tps=60.0, decode_tps=30.0, c_s=0.1, load_s=1.0, flops=FLOPS
)


async def asked(
    real: Preset,
    shadow: Preset | None,
    on_route: RouteLog | None,
    *,
    answers: int,
    ttft_s: float,
    tokens: int,
) -> list[RouteRecord]:
    """The same requests in every call; the server takes a little longer each time."""
    routes: list[RouteRecord] = []
    server = SimulatedEndpoint("server", place="server")
    profile = SimulatedProfile(overhead_s=0.1, prefill_tps=60.0, decode_tps=30.0, answer_tokens=tokens)
    device = SimulatedEndpoint("device", profile, place="device")
    to = [routes.append] if on_route is None else [on_route, routes.append]
    async with AsyncDisco(
        local=device,
        tiers=[server],
        preset=real,
        shadow=shadow,
        on_route=to,
        device_profile=HERE,
        state=False,
        power=False,
    ) as one:
        for number in range(answers):
            server.profile = SimulatedProfile(
                ttft_s=ttft_s + number / 100, decode_tps=80.0, answer_tokens=tokens
            )
            words = " ".join([f"sea{number}", *["wave"] * (20 + 7 * number)])
            question = [{"role": "user", "content": words}]
            await text_of(await create(one, question, model=MODEL, stream=True))
    return routes


async def predicted_and_real(
    tmp_path: Path, real: Preset, shadow: Preset, **how: float
) -> tuple[Comparison, list[RouteRecord]]:
    path = tmp_path / "routes.jsonl"
    with RouteLog(path) as log:
        await asked(real, shadow, log, **how)
    (predicted,) = compare(play_shadows(read_shadowed(path), draws=2, seed=0), seed=0, resamples=50)
    return predicted, await asked(shadow, None, None, **how)


async def test_the_winner_of_every_race_alone_is_predicted_exactly(tmp_path):
    real, alone = preset("race", rate=RATE), preset("server_only", rate=RATE)
    predicted, then = await predicted_and_real(tmp_path, real, alone, answers=10, ttft_s=0.2, tokens=40)
    assert predicted.ttft_from["measured"] == predicted.cost_from["measured"] == 1.0
    first_s = [route.pace.ttft_raw_s for route in then]
    assert predicted.other.ttft_mean_s == pytest.approx(np.mean(first_s), abs=1e-5)
    assert predicted.other.ttft_p99_s == pytest.approx(np.quantile(first_s, 0.99), abs=1e-5)
    assert predicted.other.cost_usd == pytest.approx(np.mean([route.policy_cost for route in then]), rel=1e-6)
    assert predicted.run_ttft_s == pytest.approx(0.0, abs=1e-5)
    assert predicted.run_cost == pytest.approx(1.0, rel=0.02)


async def test_what_migrations_would_save_is_predicted(tmp_path):
    """Nothing moved; the same server's answers, with migrations to a device that is far cheaper."""
    real = preset("server_only", rate=RATE, pace_tps=8.0)
    moving = preset("server_only", rate=RATE, pace_tps=8.0, order="auto")
    predicted, then = await predicted_and_real(tmp_path, real, moving, answers=4, ttft_s=0.3, tokens=200)
    moved = np.mean([len(route.segments) > 1 for route in then])
    assert moved == predicted.other.moved == 1.0
    cost = np.mean([route.policy_cost for route in then])
    assert predicted.other.cost_usd == pytest.approx(cost, rel=0.03)
    assert cost < 0.8 * predicted.real.cost_usd
    assert predicted.differ["migrations"] == 4
    assert predicted.ttft_from["measured"] == 1.0
    assert predicted.cost_from["measured"] == 0.0
