"""`disco replay`: its forms. What is asked of a file is said by an option; `synthetic` stands in place of a file."""

from __future__ import annotations

from typing import Final

from disco.cli.command_parser import CommandParser, Form
from disco.cli.replay.lived import add_of_lived
from disco.cli.replay.policies import add_of_file, add_of_synthetic
from disco.cli.replay.presets import add_of_presets
from disco.cli.replay.situation import SYNTHETIC
from disco.cli.replay.verdicts import add_of_verdicts

__all__ = ["add"]

FORMS: Final = {
    "": Form("FILE", add_of_file, "Policies and budgets on a trace, or on the routes that a client recorded"),
    "--as-recorded": Form(
        "FILE --as-recorded",
        add_of_lived,
        "A recording replayed as it was made, beside what was lived, with the errors",
    ),
    "--preset": Form("FILE --preset P", add_of_presets, "Whole presets on recorded routes, beside what was"),
    "--verdicts": Form(
        "FILE --verdicts",
        add_of_verdicts,
        "The verdicts of a recorded cascade, given again, and by other betas",
    ),
    SYNTHETIC: Form(SYNTHETIC, add_of_synthetic, "Policies and budgets on requests that are drawn"),
}


def add(parser: CommandParser) -> None:
    """Add the forms of `disco replay`."""
    parser.description = (
        "Replays a trace (CSV, JSONL or Parquet; public workloads, benchmark output, recorded routes) "
        "under several policies and budgets, and compares them with each other and with the best possible result."
    )
    parser.add_forms(FORMS)
