"""Runs one drawn fleet with every static window, the target alone and the windows that are compared.

The label of a fleet is its best static window by the objective. Its rows come from all of its runs, not from the best
one: there the last window, which is an input, is the label, and the network would learn to repeat its input.

In the run of the target alone nothing is drafted, so that acceptance and round trip would be stale; its rows come from
a second run, with a probe now and then, as the live window makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, NamedTuple

from disco.speculate import Network, Seen, Window, inputs_of, window_of
from papers.fleet.drawn_fleets import drawn_fleet
from papers.fleet.fleet_figures import fleet_figures
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_simulator import Finished, requests_of, simulate_fleet

__all__ = [
    "ALONE",
    "COMPARED",
    "STATIC",
    "TPOT_WEIGHT",
    "Outcome",
    "Trial",
    "objective",
    "try_fleet",
    "try_windows",
]

STATIC: Final = tuple(range(2, 13))
"""The static windows of the sweep, as in the paper."""
ALONE: Final = 1
"""The label of the target alone: the paper's network asks for a window near 1 then."""
TPOT_WEIGHT: Final = 0.8
"""Of the objective; the paper has weights, and does not say which."""
COMPARED: Final = ("dynamic", "optimal", "adaptive")

_ROWS: Final = 12  # of each run
_PROBE_EVERY: Final = 8


class Outcome(NamedTuple):
    """What a window gave: ms, ms, tokens/s."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float


class Row(NamedTuple):
    """Inputs of the network at one choice, in the order of `network.INPUTS`."""

    inputs: tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A fleet's sweep.

    Attributes:
        seed, number: of the fleet.
        outcomes: of each static window, by its tokens; of the target alone by `ALONE`.
        label: the best one.
        rows: what windows saw, of all runs.
    """

    seed: int
    number: int
    outcomes: dict[int, Outcome]
    label: int
    rows: list[Row]


def objective(outcome: Outcome, reference: Outcome) -> float:
    """Return what a window costs: TPOT and TTFT relative to a reference, weighed; 1 is as much as the reference."""
    return (
        TPOT_WEIGHT * outcome.tpot_ms / reference.tpot_ms
        + (1 - TPOT_WEIGHT) * outcome.ttft_ms / reference.ttft_ms
    )


class _Watching:
    """A window of always the same tokens that notes what it could look at."""

    __slots__ = ("_notes", "_window", "stop_below")

    def __init__(self, window: int, notes: list[Row]) -> None:
        self._window, self._notes = window, notes
        self.stop_below = 0.0

    def choose(self, seen: Seen) -> int:
        self._notes.append(Row(inputs_of(seen)))
        return self._window

    def judged(self, drafted: int, accepted: int) -> None:
        pass


class _Probing(_Watching):
    """The target alone, but for a probe now and then."""

    __slots__ = ("_until",)

    def __init__(self, notes: list[Row]) -> None:
        super().__init__(0, notes)
        self._until = _PROBE_EVERY

    def choose(self, seen: Seen) -> int:
        super().choose(seen)
        self._until -= 1
        if self._until:
            return 0
        self._until = _PROBE_EVERY
        return 4


def try_fleet(seed: int, number: int) -> Trial:
    """Run a fleet's sweep; runs in a worker."""
    scenario = drawn_fleet(seed, number)
    requests = requests_of(scenario)
    rng = Random(f"{seed} rows {number}")
    outcomes: dict[int, Outcome] = {}
    rows: list[Row] = []
    notes: list[Row] = []

    def run(window: Window) -> Outcome:
        notes.clear()
        outcome = _outcome(scenario, simulate_fleet(scenario, requests, new_window=lambda: window))
        rows.extend(rng.sample(notes, min(_ROWS, len(notes))))
        return outcome

    for tokens in STATIC:
        outcomes[tokens] = run(_Watching(tokens, notes))
    run(_Probing(notes))
    outcomes[ALONE] = run(window_of("static", n=0))
    reference = outcomes[4]
    label = min(outcomes, key=lambda tokens: objective(outcomes[tokens], reference))
    return Trial(seed, number, outcomes, label, rows)


def try_windows(seed: int, number: int, network: Network) -> Mapping[str, Outcome]:
    """Run a fleet with the windows that adapt; runs in a worker."""
    scenario = drawn_fleet(seed, number)
    requests = requests_of(scenario)

    def new(name: str) -> Window:
        return window_of(name, weights=network) if name == "adaptive" else window_of(name)

    return {
        name: _outcome(scenario, simulate_fleet(scenario, requests, new_window=partial(new, name)))
        for name in COMPARED
    }


def _outcome(scenario: FleetScenario, finished: Finished) -> Outcome:
    figures = fleet_figures(scenario, finished)
    return Outcome(figures.ttft_ms.mean, figures.tpot_ms.mean, figures.tokens_per_s)
