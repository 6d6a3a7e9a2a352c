"""Small fleets drawn at random: what the adaptive window's network learns from, and what it is judged on.

Each is one or two targets of one kind, a few drafters of one kind, and one sort of requests. A quarter has costs from
the shipped tables; the others have made-up ones, since on cards of data centres drafting hardly ever pays, and the
network would learn just that. The bounds are such that it pays in three fifths of the fleets. Everything is drawn
independently and mostly log-uniformly:

| what | from | to |
|---|---|---|
| target: time of one row | 20 ms | 200 ms |
| rows that cost about as much as one | 8 | 256 |
| a drafted token, of the target's time for one row | 0.02 | 0.6 |
| round trip | 1 ms | 100 ms |
| acceptance | 0.4 | 0.97 |
| drafters per target | 1 | 32 |
| pause between a drafter's requests | 0 (half of the fleets) | 3 s |
| prompt, answer: tokens | 30, 60 | 800, 200 |
"""

from __future__ import annotations

from math import exp, log
from random import Random
from typing import Any, Final

from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_toml import scenario_from

__all__ = ["drawn_fleet"]

_TARGETS: Final = ("a100", "h100", "a40", "a6000")
_DRAFTERS: Final = ("a100", "a40", "v100")
_TOKENS: Final = 4_000
"""Tokens of all answers of a run, about: more takes longer, fewer is noise."""


def drawn_fleet(seed: int, number: int) -> FleetScenario:
    """Return one fleet; the same two numbers give the same fleet."""
    rng = Random(f"{seed} fleet {number}")
    targets = rng.choice((1, 1, 2))
    drafters = round(_log_uniform(rng, 1, 32)) * targets
    output = _log_uniform(rng, 60, 200)
    acceptance = rng.uniform(0.4, 0.97)
    requests = max(8, 2 * drafters, round(_TOKENS / output))
    rtt_ms = _log_uniform(rng, 1, 100)
    target, drafter = _tabled(rng) if rng.random() < 1 / 4 else _made_up(rng)
    return scenario_from(
        {
            "name": f"drawn-{seed}-{number}",
            "seed": rng.randrange(1_000_000),
            "targets": [{"name": "target", "count": targets, **target}],
            "drafters": [{"name": "drafter", "count": drafters, **drafter}],
            "links": [{"rtt_ms": rtt_ms, "jitter_ms": rtt_ms * rng.choice((0.0, 0.05, 0.2))}],
            "batching": {"max_batch": rng.choice((8, 32, 64))},
            "arrivals": {
                "kind": "closed_loop",
                "requests": requests,
                "think_ms": rng.choice((0.0, rng.uniform(0, 3000))),
                "ramp_ms": 10 * output * rng.random(),
            },
            "requests": {
                "made_up": {
                    "count": requests,
                    "prompt_tokens": {"mean": _log_uniform(rng, 30, 800), "sd": 20},
                    "output_tokens": {"mean": output, "sd": 0.25 * output},
                    "acceptance": acceptance,
                    "spread": 0.4 * acceptance * (1 - acceptance),
                    "correlation": rng.uniform(0, 0.4),
                }
            },
        }
    )


def _made_up(rng: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return costs of a target whose rows are nearly free up to a knee, and of a drafter."""
    one_ms = _log_uniform(rng, 20, 200)
    knee = round(_log_uniform(rng, 8, 256))
    at_knee_ms = one_ms * rng.uniform(1.0, 1.3)
    per_row_ms = at_knee_ms / knee * rng.uniform(0.3, 1.0)
    target = [[1, one_ms], [knee, at_knee_ms], [knee + 1000, at_knee_ms + 1000 * per_row_ms]]
    draft_ms = one_ms * _log_uniform(rng, 0.02, 0.6)
    return {"steps_ms": target}, {"steps_ms": [[1, draft_ms], [32, 1.3 * draft_ms], [1000, 10 * draft_ms]]}


def _tabled(rng: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    target = {"model": "llama-2-70b", "hardware": rng.choice(_TARGETS), "gpus": 4}
    return target, {
        "model": rng.choice(("llama-2-7b", "phi-2")),
        "hardware": rng.choice(_DRAFTERS),
    }


def _log_uniform(rng: Random, low: float, high: float) -> float:
    return exp(rng.uniform(log(low), log(high)))
