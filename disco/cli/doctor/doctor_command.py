"""`disco doctor`: its options, and its report as lines or as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib import metadata
from typing import Any

from disco.cli.console import Screen
from disco.cli.doctor.examination import TITLES, examine
from disco.cli.doctor.finding import Finding, Setup
from disco.cli.doctor.summary import Summary, summarise
from disco.cli.shared_options import add_local, add_preset, add_runtime, add_server_model, add_state
from disco.errors import ConfigurationError

__all__ = ["add", "run_doctor"]

_COLOURS = {"works": "green", "does not": "red", "not checked": "yellow"}
_MODEL_VARIABLE = "OPENAI_MODEL"
_USUAL_MODEL = "gpt-4o-mini"  # as for chat


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco doctor`."""
    parser.description = (
        "Looks at this machine, the packages, the local model, the server in OPENAI_BASE_URL and its key "
        "in OPENAI_API_KEY, the preset, the state file and disco serve. Shows no key and no text of yours. Sends the "
        "server only requests that cost nothing, unless --ask is given. Exit status 0: a model can answer, and no "
        "fault was found; else 1. See docs/how-to/doctor.md."
    )
    add_local(parser, others="`none`")
    add_runtime(parser)
    add_preset(parser)
    add_server_model(parser)
    add_state(parser, off=True)
    parser.add_argument(
        "--ask",
        action="store_true",
        help="also ask the server a short question, and probe whether it continues half-written answers; costs about "
        "400 tokens at most",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=60.0,
        metavar="S",
        help="limit for loading the local model, and for its first tokens, s (default: 60)",
    )
    parser.add_argument("--port", type=int, default=8642, help="of disco serve (default: 8642)")
    parser.add_argument("--json", action="store_true", help="the report as JSON, for an issue")
    parser.set_defaults(run=run_doctor)


async def run_doctor(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run all checks and print the report; return the exit status.

    Raises:
        ConfigurationError: an option is out of range.
    """
    if not 0 < arguments.within < float("inf"):
        raise ConfigurationError(f"--within is a number of seconds above 0, not {arguments.within:g}")
    if not 0 < arguments.port < 65_536:
        raise ConfigurationError(f"--port must be between 1 and 65535, not {arguments.port}")
    setup = Setup(
        local=None if arguments.local == "none" else arguments.local,
        preset=arguments.preset,
        runtime=arguments.runtime,
        model=arguments.model or os.environ.get(_MODEL_VARIABLE) or _USUAL_MODEL,
        state=arguments.state,
        ask=arguments.ask,
        within_s=arguments.within,
        port=arguments.port,
    )
    shown: set[int] = set()

    def show(title: int, finding: Finding) -> None:
        if arguments.json:
            return
        if title not in shown:
            shown.add(title)
            screen.line(TITLES[title], style="bold")
        screen.line(
            f"  {finding.verdict:<12} {finding.subject}: {finding.what}", style=_COLOURS[finding.verdict]
        )
        if finding.remedy:
            screen.line(f"  {'':<12} → {finding.remedy}")

    # A model may take a minute to load. Nothing of a report as JSON is on the screen.
    looking = nullcontext() if arguments.json else screen.waiting("Looking, and loading the local model")
    with _without_log(), looking:
        findings, facts = await examine(setup, show)
    summary = summarise(setup, findings, facts)
    if arguments.json:
        print(json.dumps(_document(setup, findings, summary), indent=1, ensure_ascii=False))
        return summary.status
    screen.line()
    for begins, what in (("You can", summary.can), ("You cannot yet", summary.cannot)):
        if what:
            screen.line(f"{begins}: {'; '.join(what)}.", style="bold")
    return summary.status


def _document(setup: Setup, findings: list[Finding], summary: Summary) -> dict[str, Any]:
    try:
        version = metadata.version("disco-llm")
    except metadata.PackageNotFoundError:
        version = "from source"
    return {
        "disco": version,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "asked": setup.ask,
        "findings": [asdict(one) for one in findings],
        "can": summary.can,
        "cannot": summary.cannot,
        "status": summary.status,
    }


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep warnings of the library off the screen: the report says the same, in its place."""
    logger = logging.getLogger("disco")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
        sys.stderr.flush()
