"""`disco replay routes.jsonl --verdicts`: the verdicts of a recorded cascade, given again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from disco.cli.console import Screen
from disco.cli.output_files import check_output, screen_beside, write
from disco.cli.replay.policies import parse_shares
from disco.cli.shared_options import add_figures, add_recording
from disco.errors import ConfigurationError
from disco.replay.verdicts import (
    ReplayedHistory,
    read_histories,
    read_verdicts,
    replay_verdicts,
    shares_by_rule,
)

__all__ = ["add_histories", "add_of_verdicts", "replay_recorded_verdicts"]

BETAS = "0.1:0.6:0.1"


def add_of_verdicts(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay FILE --verdicts`."""
    add_recording(parser)
    parser.add_argument(
        "--verdicts",
        action="store_true",
        required=True,
        help="give the recorded verdicts again, and compare them with the recorded ones",
    )
    parser.add_argument(
        "--beta",
        default=BETAS,
        metavar="B",
        help="shares to hand up that the recorded scores are judged by as well: 0.5, 0.1,0.3 or 0.1:0.6:0.1 "
        "(default: %(default)s)",
    )
    add_histories(parser)
    add_figures(parser)
    parser.set_defaults(run=replay_recorded_verdicts)


def add_histories(parser: argparse.ArgumentParser) -> None:
    """Add the scores that a judge knew before the recording."""
    parser.add_argument(
        "--histories",
        metavar="FILE",
        help="the histories of scores as they were before the recording (default: empty ones)",
    )


def replay_recorded_verdicts(screen: Screen, arguments: argparse.Namespace) -> int:
    """Give the verdicts of a recording again, and print what other betas would have done; return the exit status.

    Raises:
        ConfigurationError: the file has no verdicts, is no recording, or an option is wrong.
    """
    check_output(arguments, json=arguments.json)
    screen = screen_beside(screen, arguments.json)
    betas = parse_shares(arguments.beta, "beta")
    if not all(0.0 < beta < 1.0 for beta in betas):
        raise ConfigurationError(
            "--beta is the share of answers to hand up, between 0 and 1, without 0 and 1"
        )
    given = read_histories(arguments.histories) if arguments.histories else {}
    verdicts, left_out = read_verdicts(arguments.trace)
    if not verdicts:
        told = "".join(f" Left out: {one}." for one in left_out.named())
        raise ConfigurationError(
            f"{arguments.trace} has no verdicts: record a client with preset='cascade' and disco.RouteLog.{told}"
        )
    for told in left_out.named():
        screen.line(f"Left out: {told}", style="dim")
    found = replay_verdicts(verdicts, given)
    screen.table(
        "The recorded verdicts, given again",
        ["task", "model", "score", "verdicts", "doubted", "identical", "different", "unknown"],
        [
            [*one.key, len(one.verdicts), f"{one.rose:.3f}", one.identical, one.different, one.unknown]
            for one in found
        ],
    )
    shares = [shares_by_rule(one.verdicts, betas) for one in found]
    screen.table(
        "Share of these answers that would have been doubted, by beta",
        ["task", "model", "score", "rule", *[f"{beta:g}" for beta in betas]],
        [
            [*one.key, rule, *[f"{share:.3f}" for share in row]]
            for one, rules in zip(found, shares, strict=True)
            for rule, row in rules.items()
        ],
    )
    if any(one.unknown for one in found):
        screen.line(
            "Unknown: these verdicts were given by scores that are not in the recording. Give the histories as they "
            "were before it with --histories FILE.",
            style="dim",
        )
    if arguments.json is not None:
        figures = [_figures(one, betas, rules) for one, rules in zip(found, shares, strict=True)]
        write(screen, arguments.json, json.dumps(figures, indent=2, ensure_ascii=False), "Figures")
    return 1 if any(one.different for one in found) else 0


def _figures(
    one: ReplayedHistory, betas: Sequence[float], shares: Mapping[Any, Sequence[float]]
) -> dict[str, Any]:
    return {
        **one.key._asdict(),
        "verdicts": len(one.verdicts),
        "doubted": one.rose,
        "identical": one.identical,
        "different": one.different,
        "unknown": one.unknown,
        "betas": list(betas),
        "would_be_doubted": dict(shares),
    }
