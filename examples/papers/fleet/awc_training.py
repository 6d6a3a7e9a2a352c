"""From drawn fleets to the adaptive window's network: sweep, train, and judge on other fleets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from disco.errors import ConfigurationError
from disco.replay import Figure, Progress, run_all
from disco.speculate import Network
from papers.fleet.fleet_trials import (
    ALONE,
    COMPARED,
    TPOT_WEIGHT,
    Outcome,
    Trial,
    try_fleet,
    try_windows,
)
from papers.fleet.network_training import train
from papers.fleet.window_comparison import Line, compare, compare_with

__all__ = ["Trained", "train_awc"]

WIDTH: Final = 16
EPOCHS: Final = 100
_FEWEST: Final = 4


@dataclass(frozen=True, slots=True)
class Trained:
    """A network, and how it did.

    Attributes:
        network: its weights.
        fleets, held_out: how many fleets it was trained and judged on; `rows`: of the training.
        seed: of everything that was drawn.
        epochs: of the training.
        labels: how many training fleets had which label; 1 is the target alone.
        error: mean absolute error of the held-out fleets' rows, in tokens; `without`: of always the median label.
        lines: windows against the oracle, on held-out fleets.
        against: the adaptive window's cost against other windows', on held-out fleets.
    """

    network: Network
    fleets: int
    held_out: int
    rows: int
    seed: int
    epochs: int
    labels: dict[int, int]
    error: float
    without: float
    lines: list[Line]
    against: dict[str, Figure]

    def to_json(self) -> str:
        """Return the weights, and how they were made, as the package's JSON file."""
        weights: dict[str, Any] = json.loads(self.network.to_json())
        made = {
            "by": f"python -m papers.fleet train --fleets {self.fleets} --held-out {self.held_out} --seed {self.seed} "
            f"--epochs {self.epochs}",
            "objective": f"{TPOT_WEIGHT:g} TPOT + {1 - TPOT_WEIGHT:g} TTFT, each relative to a static window of 4",
            "labels": {str(label): count for label, count in sorted(self.labels.items())},
            "rows": self.rows,
            "error": round(self.error, 3),
            "error_of_the_median_label": round(self.without, 3),
            "held_out": {
                line.window: {
                    name: _rounded(getattr(line, name)) for name in ("tpot", "ttft", "throughput", "cost")
                }
                for line in self.lines
            },
            "against": {name: _rounded(one) for name, one in self.against.items()},
        }
        return json.dumps({"made": made} | weights)


def _rounded(found: Figure) -> list[float]:
    return [round(value, 4) for value in (found.mean, found.low, found.high)]


def train_awc(
    *,
    fleets: int = 800,
    held_out: int = 200,
    seed: int = 1,
    epochs: int = EPOCHS,
    width: int = WIDTH,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Sweep fleets, train the network, and judge it on other fleets.

    The fleets `0` to `fleets - 1` are for training, those after them are held out: whole fleets, since rows of one
    fleet are alike.

    Args:
        fleets: to train on, at least 4.
        held_out: to judge on, at least 4.
        seed: of the fleets and the training.
        epochs: passes over the rows.
        width: of the network's hidden layers.
        executor: for the sweeps; None: this process.
        progress: called after each fleet and each epoch.

    Raises:
        ConfigurationError: a number out of range.
    """
    if fleets < _FEWEST or held_out < _FEWEST or epochs < 1 or width < 1 or seed < 0:
        raise ConfigurationError(
            f"fleets and held_out must be at least {_FEWEST}, epochs and width at least 1, and seed at least 0"
        )
    everything = fleets + held_out + epochs + held_out

    def tell(before: int) -> Progress:
        return lambda done, _total: None if progress is None else progress(before + done, everything)

    numbers = [(seed, number) for number in range(fleets + held_out)]
    trials: list[Trial] = run_all(executor, try_fleet, numbers, tell(0))
    network = train(
        *_rows(trials[:fleets]), width=width, epochs=epochs, seed=seed, progress=tell(fleets + held_out)
    )
    kept = trials[fleets:]
    tried: list[Mapping[str, Outcome]] = run_all(
        executor,
        try_windows,
        [(*each, network) for each in numbers[fleets:]],
        tell(fleets + held_out + epochs),
    )
    inputs, labels = _rows(kept)
    lines = compare(kept, tried)
    adaptive = COMPARED[-1]
    return Trained(
        network=network,
        fleets=fleets,
        held_out=held_out,
        rows=sum(len(trial.rows) for trial in trials[:fleets]),
        seed=seed,
        epochs=epochs,
        labels=dict(Counter(trial.label for trial in trials[:fleets])),
        error=float(np.abs(np.clip(network(inputs), ALONE, 12) - labels).mean()),
        without=float(np.abs(np.median(_rows(trials[:fleets])[1]) - labels).mean()),
        lines=lines,
        against={
            line.window: compare_with(kept, tried, adaptive, line.window)
            for line in lines
            if line.window != adaptive
        },
    )


def _rows(trials: list[Trial]) -> tuple[Any, Any]:
    """Return inputs and labels of all rows: every row has the label of its fleet."""
    inputs = np.array([row.inputs for trial in trials for row in trial.rows])
    labels = np.array([float(trial.label) for trial in trials for _ in trial.rows])
    return inputs, labels
