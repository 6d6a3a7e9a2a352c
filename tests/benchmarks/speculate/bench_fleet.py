"""The fleet simulator's speed: rounds per second of one core, by window and by windows in flight.

The bar is 50,000 rounds/s with a static window drafted in turn. A round is one window of one answer: drafted, sent,
verified in a batch with others, heard. Times are of the processor, so that other processes count little; a machine's
own speed counts, so each line also has the ratio to the bar, and to the first line.
"""

from __future__ import annotations

import time

from papers.fleet.fleet_simulator import requests_of, simulate_fleet
from papers.fleet.fleet_toml import scenario_from

BAR = 50_000
CONTENT = {
    "name": "bench",
    "targets": [{"name": "t", "count": 20, "model": "llama-2-70b", "hardware": "a100", "gpus": 4}],
    "drafters": [{"name": "d", "count": 600, "model": "llama-2-7b", "hardware": "a40"}],
    "links": [{"rtt_ms": 10}],
    "requests": {
        "made_up": {
            "count": 400,
            "prompt_tokens": {"mean": 100, "sd": 50},
            "output_tokens": {"mean": 500, "sd": 100},
            "acceptance": 0.8,
            "correlation": 0.2,
        }
    },
}
SETTINGS = {
    "static, in turn": {},
    "static, jitter": {"links": [{"rtt_ms": 10, "jitter_ms": 2}]},
    "static, 3 in flight": {"parallel": 3},
    "dynamic": {"window": {"name": "dynamic"}},
    "optimal": {"window": {"name": "optimal"}},
    "the target alone": {"mode": "alone"},
}


def rounds_per_s(changed: dict[str, object], requests: int) -> float:
    arrivals = {"kind": "closed_loop", "requests": requests}
    scenario = scenario_from(CONTENT | {"arrivals": arrivals} | changed)
    drawn = requests_of(scenario)
    began_s = time.process_time()
    finished = simulate_fleet(scenario, drawn)
    took_s = time.process_time() - began_s
    return sum(len(answer.windows) for answer in finished.answers) / took_s


def main() -> None:
    print(f"{'setting':22}{'rounds/s':>12}{'× bar':>8}{'× first':>9}")
    first = 0.0
    for name, changed in SETTINGS.items():
        rate = max(rounds_per_s(changed, 1200) for _ in range(3))
        first = first or rate
        print(f"{name:22}{rate:12,.0f}{rate / BAR:8.1f}{rate / first:9.2f}")


if __name__ == "__main__":
    main()
