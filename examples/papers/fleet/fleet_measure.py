"""`python -m papers.fleet measure`: what passes of local models cost here, and how far the predictor is off."""

from __future__ import annotations

import argparse
import os
import platform
from typing import Final

from disco.errors import ConfigurationError
from papers.fleet.measured_costs import write_costs
from papers.fleet.pass_times import answer_s, pass_times
from papers.fleet.predictor_errors import (
    Measured,
    Profile,
    fitted,
    predictor_errors,
    write_profile,
)
from papers.local_model import LocalModel
from papers.model_argument import model_file
from papers.terminal import Screen, check_output

__all__ = ["error_rows", "run_measure"]

_DECODE: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
_PROMPT: Final = (8, 16, 24, 32, 48, 64, 96, 128)
_BEFORE: Final = (0, 300)
_ANSWERS: Final = ((50, 32, 0), (250, 32, 0), (50, 30, 4), (250, 36, 8))
"""(prompt, tokens behind it, window) of whole answers."""

HEADER: Final = ("model", "decode passes", "prompt chunks", "whole answers", "predicted")


def run_measure(screen: Screen, arguments: argparse.Namespace) -> int:
    """Measure, print the predictor's errors, and write the files; return the exit status."""
    check_output(arguments, "out", "costs")
    if arguments.repeats < 1 or arguments.threads < 1:
        raise ConfigurationError("--repeats and --threads must be at least 1")
    if arguments.costs is not None and len(arguments.model) > 1:
        raise ConfigurationError("--costs is for one model; measure the others in runs of their own")
    profiles = [_measured(screen, name, arguments.threads, arguments.repeats) for name in arguments.model]
    screen.table(
        "Errors of predictions from half of the points: mean size (mean with sign), %",
        HEADER,
        error_rows(profiles),
    )
    clock = "processor time" if arguments.threads == 1 else "wall time"
    source = (
        f"python -m papers.fleet measure, {arguments.threads} thread(s) of {_machine()}, {clock}, the shortest of "
        f"{arguments.repeats}"
    )
    if arguments.out is not None:
        write_profile(arguments.out, profiles, source)
        screen.line(f"Profile: {arguments.out}", style="dim")
    if arguments.costs is not None:
        (profile,) = profiles
        costs = fitted(profile.of("decode") + [one for one in profile.of("prompt") if one.rows > _DECODE[-1]])
        points = [(int(rows), seconds) for rows, seconds in zip(costs.layers.x, costs.layers.y, strict=True)]
        write_costs(
            arguments.costs,
            points,
            hardware="cpu",
            model=profile.model,
            source=source,
            kv_s=costs.kv_s,
            row_kv_s=costs.row_kv_s,
        )
        screen.line(f"Costs: {arguments.costs}", style="dim")
    return 0


def error_rows(profiles: list[Profile]) -> list[list[str]]:
    """Return a table's line for each profile."""
    rows = []
    for profile in profiles:
        found = predictor_errors(profile)
        parts = (found.decode, found.prompt, found.answers)
        rows.append(
            [
                found.model,
                *(f"{100 * size:.1f} ({100 * signed:+.1f})" for size, signed in parts),
                str(found.points),
            ]
        )
    return rows


def _measured(screen: Screen, name: str, threads: int, repeats: int) -> Profile:
    with screen.step(f"Loading {name}"):
        model = LocalModel(model_file(name), threads=threads, context_tokens=2048)
    try:
        points = [
            (rows, before, all_logits)
            for before in _BEFORE
            for sizes, all_logits in ((_DECODE, True), (_PROMPT, False))
            for rows in sizes
        ]
        with screen.bar(f"Measuring {name}") as tell:
            taken = pass_times(model, points, repeats=repeats, progress=tell)
        lines = [
            Measured("decode" if one.all_logits else "prompt", one.rows, one.before, 0, one.seconds)
            for one in taken
        ]
        with screen.step("Writing whole answers"):
            for prompt, output, window in _ANSWERS:
                _, seconds = answer_s(model, prompt, output, window, repeats=repeats)
                lines.append(Measured("answer", window + 1, prompt, output, seconds))
    finally:
        model.close()
    return Profile(name, tuple(lines))


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
