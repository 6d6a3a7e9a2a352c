"""The paper's fleets as scenarios, at 3/10 of their size: one of the three families of models.

The paper's drafters draft for targets of their own vocabulary only, so that its 20 targets and 600 drafters are three
fleets beside each other, and their models have nearly the same costs. One of the three, of 6 targets, is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from papers.dsd.calibrated import DataSet
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_toml import scenario_from

__all__ = ["PAPER_TARGETS", "RAMP", "TARGETS", "paper_fleet"]

PAPER_TARGETS: Final = 20
TARGETS: Final = 6
RAMP: Final = 0.4
"""Time over which the first requests come, of the usual time of an answer."""
_TARGET_CARDS: Final = ("a100", "h100", "a6000")
_DRAFTER_CARDS: Final = ("a40", "v100")


def paper_fleet(
    data: DataSet, *, drafters: int, rtt_ms: float, until_ms: float, **changed: Any
) -> FleetScenario:
    """Return a scenario: a closed loop without an end, see `steady_state`.

    Args:
        data: requests, and what was calibrated for them.
        drafters: of the paper's whole fleet.
        rtt_ms: round trip.
        until_ms: when the run ends.
        changed: keys of the scenario, in place of the usual ones; "link": keys of the link.
    """
    own = round(drafters * TARGETS / PAPER_TARGETS)
    link = {"rtt_ms": rtt_ms, **changed.pop("link", {})}
    batching = {"max_batch": 64, "padded": True, **changed.pop("batching", {})}
    content: Mapping[str, Any] = {
        "name": f"dsd {data.name}",
        "mode": "distributed",
        "window": {"name": "static", "n": 4},
        "routing": {"policy": "shortest_queue"},
        "batching": batching,
        "arrivals": {
            "kind": "closed_loop",
            "ramp_ms": RAMP * data.usual_ms,
            "think_ms": data.admission_ms,
        },
        "until_ms": until_ms,
        "requests": {
            "made_up": {
                "count": 4 * own,
                "prompt_tokens": {"mean": data.prompt_tokens, "sd": 0.45 * data.prompt_tokens},
                "output_tokens": {"mean": data.output_tokens, "sd": 0.2 * data.output_tokens},
                "acceptance": data.acceptance,
                "spread": 0.08,
                "correlation": 0.2,
            }
        },
        "targets": [
            {
                "name": card,
                "count": TARGETS // len(_TARGET_CARDS),
                "model": "llama-2-70b",
                "hardware": card,
                "gpus": 4,
                "draft_model": "llama-2-7b",
            }
            for card in _TARGET_CARDS
        ],
        "drafters": [
            {"name": card, "share": 1, "model": "llama-2-7b", "hardware": card} for card in _DRAFTER_CARDS
        ],
        "auto_topology": {"drafters": own, "link": link},
    }
    return scenario_from({**content, **changed}, where="the paper's fleet")
