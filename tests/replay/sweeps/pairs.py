"""What the tests of sweeps run on: two shipped pairs of device and server, one of each regime."""

from __future__ import annotations

from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED
from disco.profiles import load_device, load_lengths, load_server
from disco.replay.workload.scenario import Scenario, scenario_for

LENGTHS = load_lengths("lengths-azure-conv-2023")


def scenarios() -> list[Scenario]:
    """A server-constrained pair and a device-constrained one."""
    server = load_server("gpt-4o-mini-2024")
    return [
        scenario_for(load_device(device), server, exchange_rate=rate, max_tokens=64)
        for device, rate in (
            ("xiaomi14-qwen1.5-0.5b", PAPER_SERVER_CONSTRAINED),
            ("pixel7pro-bloom-560m", PAPER_DEVICE_CONSTRAINED),
        )
    ]
