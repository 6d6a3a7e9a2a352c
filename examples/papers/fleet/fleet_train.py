"""`python -m papers.fleet train`: the adaptive window's network, from random fleets."""

from __future__ import annotations

import argparse
from typing import Final

from disco.replay import Figure, open_executor
from papers.fleet.awc_training import Trained, train_awc
from papers.terminal import Screen, check_output, write

__all__ = ["run_train"]

_HEADER: Final = (
    "window",
    "TPOT",
    "TTFT",
    "tokens/s",
    "cost",
    "cost, 90 % of fleets",
    "adaptive's cost against it",
)


def run_train(screen: Screen, arguments: argparse.Namespace) -> int:
    """Train, compare, and write the weights; return the exit status."""
    check_output(arguments, "out")
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Training") as tell:
        trained = train_awc(
            fleets=arguments.fleets,
            held_out=arguments.held_out,
            epochs=arguments.epochs,
            seed=arguments.seed,
            executor=executor,
            progress=tell,
        )
    title = (
        f"Windows on {trained.held_out} fleets held out, against the best static one of each (95 % intervals)"
    )
    screen.table(title, _HEADER, _rows(trained))
    screen.line(
        f"Mean absolute error of the network on their rows: {trained.error:.2f} tokens; of always the median label: "
        f"{trained.without:.2f}.",
        style="dim",
    )
    if arguments.out is not None:
        write(screen, arguments.out, trained.to_json(), "Weights")
    return 0


def _rows(trained: Trained) -> list[list[str]]:
    return [
        [
            line.window,
            *(_ratio(one) for one in (line.tpot, line.ttft, line.throughput, line.cost)),
            f"{line.worst:.2f}",
            _ratio(trained.against[line.window]) if line.window in trained.against else "",
        ]
        for line in trained.lines
    ]


def _ratio(one: Figure) -> str:
    return f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]"
