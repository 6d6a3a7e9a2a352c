"""`disco shadow FILE`: what happened beside what another preset would have done, from a recording in shadow mode."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from disco.cli.console import Screen
from disco.cli.output_files import check_output, screen_beside, write
from disco.cli.shared_options import add_figures, add_recording, check_least
from disco.replay.shadow import shadow_report
from disco.replay.shadow.shadow_figures import compare
from disco.replay.shadow.shadow_recording import read_shadowed
from disco.replay.shadow.shadow_runs import play_shadows

__all__ = ["add"]


DRAWS = 16


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco shadow`."""
    parser.description = (
        "Reads the route records of a client that ran with shadow=PRESET, and compares what happened with "
        "what that preset would have come to: first words, cost, and how each number is known."
    )
    add_recording(parser)
    parser.add_argument(
        "--draws",
        type=int,
        default=DRAWS,
        metavar="N",
        help=f"how often a time that is not known is drawn (default: {DRAWS})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all draws (default: 0)")
    add_figures(parser)
    parser.set_defaults(run=_run)


def _run(screen: Screen, arguments: argparse.Namespace) -> int:
    check_least(arguments, draws=1, seed=0)
    check_output(arguments, json=arguments.json)
    screen = screen_beside(screen, arguments.json)
    recording = read_shadowed(Path(arguments.trace))
    with screen.bar("Both plans of every answer") as progress:
        runs = play_shadows(recording, draws=arguments.draws, seed=arguments.seed, progress=progress)
    found = compare(runs, seed=arguments.seed)
    for one in found:
        for table in shadow_report.tables(one):
            screen.table(table.title, table.header, table.rows)
        for note in shadow_report.notes(one):
            screen.line(note, style="dim")
        screen.line(shadow_report.sentence(one))
    for told in recording.left_out.named():
        screen.line(f"Left out: {told}", style="dim")
    if arguments.json is not None:
        figures = {
            "draws": arguments.draws,
            "seed": arguments.seed,
            "left_out": dict(recording.left_out.reasons),
            "comparisons": [{**one.to_dict(), "finding": shadow_report.sentence(one)} for one in found],
        }
        write(screen, arguments.json, json.dumps(figures, indent=2, ensure_ascii=False), "Figures")
    for one in found:
        for sentence in shadow_report.verdict(one):
            screen.line(sentence, style="bold")
    return 0
