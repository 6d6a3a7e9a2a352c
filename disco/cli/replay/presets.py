"""`disco replay routes.jsonl --preset NAME`: recorded requests under whole presets, beside what was."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from disco.amounts import plural
from disco.cli.console import Screen
from disco.cli.output_files import check_output, screen_beside, write
from disco.cli.replay.policies import add_pair, add_seeds
from disco.cli.replay.situation import add_max_tokens
from disco.cli.replay.verdicts import add_histories
from disco.cli.shared_options import add_figures, add_recording, check_least
from disco.dispatch import Preset, load_preset
from disco.dispatch.policies.policy_registry import CASCADE
from disco.replay.pairs import load_pair
from disco.replay.report.findings import number
from disco.replay.stations.as_live import AsLive
from disco.replay.stations.recorded_stations import Recording, read_recording
from disco.replay.stations.replayed_presets import (
    PresetFigures,
    as_it_was,
    kept_histories,
    replay_preset,
)

__all__ = ["add_of_presets", "replay_presets"]


def add_of_presets(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay FILE --preset P`."""
    add_recording(parser)
    parser.add_argument(
        "--preset",
        action="append",
        required=True,
        metavar="P",
        help="follow a whole preset, shipped or a file, as a live client does; may be given several times",
    )
    add_pair(parser, "let the device draft for the server, for a preset with [speculate]")
    add_histories(parser)
    add_max_tokens(parser)
    add_seeds(parser)
    add_figures(parser)
    parser.set_defaults(run=replay_presets)


def replay_presets(screen: Screen, arguments: argparse.Namespace) -> int:
    """Replay a recording under each preset, and print the figures beside what was; return the exit status.

    Raises:
        ConfigurationError: the file is no recording, a preset is unknown or cannot be replayed, or an option is wrong.
    """
    check_least(arguments, seeds=1, max_tokens=1)
    check_output(arguments, json=arguments.json)
    screen = screen_beside(screen, arguments.json)
    presets = [load_preset(name) for name in arguments.preset]
    for preset in presets:
        AsLive(preset)  # reports what cannot be replayed before minutes of work
    pair = None if arguments.pair is None else load_pair(Path(arguments.pair))
    histories = None if arguments.histories is None else kept_histories(Path(arguments.histories))
    path = Path(arguments.trace)
    with screen.step(f"Reading {path.name}"):
        recording = read_recording(path)
    found = [as_it_was(recording)]
    for preset in presets:
        with screen.bar(f"Replaying {preset.name}") as tell:
            found.append(
                replay_preset(
                    recording,
                    preset,
                    seeds=arguments.seeds,
                    max_tokens=arguments.max_tokens,
                    pair=pair,
                    histories=histories,
                    progress=tell,
                )
            )
    notes = _notes(recording, presets, drafts=pair is not None)
    for note in notes:
        screen.line(note, style="dim")
    names = list(dict.fromkeys(name for one in found for name in one.first))
    screen.table(
        f"{path.name} · {plural(len(recording.answers), 'request')} · first words in s",
        [
            *("preset", "P50", "P90", "P99", "to servers, USD/1000", "cost, USD/1000"),
            *(f"begun by {name}" for name in names),
            *("moved", "rose", "late tokens", "unanswered"),
        ],
        [_row(one, names) for one in found],
    )
    if arguments.json is not None:
        figures = {"notes": notes, "presets": [one.to_dict() for one in found]}
        write(screen, arguments.json, json.dumps(figures, indent=2, ensure_ascii=False), "Figures")
    return 0


def _row(one: PresetFigures, names: list[str]) -> list[str]:
    return [
        one.preset,
        *(number(seconds) for seconds in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s)),
        number(1e3 * one.bill_usd),
        number(1e3 * one.policy_cost),
        *(f"{one.first.get(name, 0.0):.0%}" for name in names),
        f"{one.moved:.0%}",
        f"{one.rose:.0%}",
        number(one.late_tokens),
        f"{one.unanswered:.1%}",
    ]


def _notes(recording: Recording, presets: list[Preset], *, drafts: bool) -> list[str]:
    """Return what a reader must know about the figures."""
    notes = []
    if left_out := recording.left_out.named():
        notes.append(f"Left out: {'; '.join(left_out)}.")
    if recording.never_seen:
        notes.append(
            f"Left out, because no time to a first token of theirs is recorded: {', '.join(recording.never_seen)}. "
            "Record some answers that they begin to have them replayed."
        )
    notes += recording.notes()
    if recording.failed:
        notes.append(
            f"{plural(recording.failed, 'attempt')} failed here, and none does in the replay: their times are drawn."
        )
    if any(preset.dispatch.policy == CASCADE for preset in presets):
        unscored = recording.unscored(recording.stations(presets[0]))
        if unscored:
            notes.append(
                f"No answer of {', '.join(unscored)} was judged here: how many rise is right, and which ones is "
                "drawn. Record with preset='cascade' to have their scores."
            )
    if not drafts and any("speculate" in preset.model_fields_set for preset in presets):
        notes.append(
            "[speculate] has no effect here without --pair FILE, which says how long drafting takes."
        )
    return notes
